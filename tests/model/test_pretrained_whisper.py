"""Whisper's encoder as a start for CTC: states of transformers, padding, attention, long recordings."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from once import once
from pretrained_models import load_model, states, transformers, utterances
from runs import assert_same_weights, killed
from sounds import speech_like
from tiny_whisper import SECONDS, save_whisper
from tone_corpora import make_cut, save_cuts
from torch.nn.functional import gelu

from asr.cli import main
from asr.errors import UserError
from asr.model import pretrained_whisper
from asr.model.options import AugmentConfig
from asr.model.pretrained_folder import encoder_options, read_pretrained
from asr.recognizer import Recognizer
from asr.training.config import train_options
from asr.training.run import train
from asr.transcription.options import EncodingOptions
from asr.transcription.posteriors import posteriors

LENGTHS = torch.tensor([16000, 7001, 3001, 100, 1])  # 100, 44, 19, 1 and 1 frames of 10 ms
TRAINING = [
    "recipe=folder",
    "tokenizer.kind=character",
    "data.frames_per_batch=600",
    "data.workers=0",
    "trainer.accelerator=cpu",
    "trainer.max_epochs=1",
    "trainer.max_steps=4",
    "trainer.checkpoint_every=2",
    "optimizer.warmup_steps=0",
]


@pytest.fixture(scope="module")
def folder(shared: Path) -> Path:
    return once(shared / "whisper_encoder", save_whisper)


def their_features(folder: Path, samples: torch.Tensor) -> torch.Tensor:
    """Return transformers' features of a recording padded to the longest input, [1, F, T]."""
    extractor = transformers.WhisperFeatureExtractor.from_pretrained(folder)
    return extractor(samples.numpy(), sampling_rate=16000, return_tensors="pt").input_features


@torch.no_grad()
def cut_states(folder: Path, samples: torch.Tensor) -> torch.Tensor:
    """Run transformers' layers on the features and positions of the recording alone, [T, M]."""
    encoder = transformers.WhisperModel.from_pretrained(folder).eval().encoder
    x = their_features(folder, samples)[..., : -(-len(samples) // 160)]
    x = gelu(encoder.conv2(gelu(encoder.conv1(x)))).mT
    x = x + encoder.embed_positions.weight[: x.shape[1]]
    for layer in encoder.layers:
        x = layer(x, None)
    return encoder.layer_norm(x)[0]


@pytest.mark.parametrize("padding", [float("nan"), 1e9])
def test_states_equal_those_of_transformers_layers_with_any_padding(padding: float, folder: Path) -> None:
    model = load_model(folder)
    ours, frames = states(model, utterances(LENGTHS, padding), LENGTHS)
    assert frames.tolist() == [50, 22, 10, 1, 1]
    for i, (length, count) in enumerate(zip(LENGTHS.tolist(), frames.tolist(), strict=True)):
        samples = utterances(LENGTHS, 0.0)[i, :length]
        expected = cut_states(folder, samples)
        assert len(expected) == count == model.encoder_frames(length / 16000)
        torch.testing.assert_close(ours[i, :count], expected, rtol=0, atol=1e-4)
        alone, _ = states(model, samples[None], LENGTHS[i : i + 1])
        torch.testing.assert_close(ours[i, :count], alone[0], rtol=0, atol=1e-5)


@torch.no_grad()
def test_the_longest_input_has_the_states_of_transformers_encoder(folder: Path) -> None:
    """Nothing is cut there. The last samples are zeros, because transformers mirrors them at the very end."""
    samples = 0.1 * torch.randn(SECONDS * 16000, generator=torch.Generator().manual_seed(0))
    samples[-200:] = 0.0
    encoder = transformers.WhisperModel.from_pretrained(folder).eval().encoder
    expected = encoder(their_features(folder, samples)).last_hidden_state
    found, _ = states(load_model(folder), samples[None], torch.tensor([len(samples)]))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


def test_energies_do_not_depend_on_blocks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    front_end = load_model(folder).front_end
    whole, _ = front_end(utterances(LENGTHS, 1e9), LENGTHS)
    monkeypatch.setattr(pretrained_whisper, "BLOCK_FRAMES", 35)  # seven of five utterances
    torch.testing.assert_close(front_end(utterances(LENGTHS, 1e9), LENGTHS)[0], whole, rtol=0, atol=1e-6)


def test_an_empty_recording_has_no_frames(folder: Path) -> None:
    log_probs, frames = load_model(folder)(torch.zeros(2, 0), torch.tensor([0, 0]))
    assert (log_probs.shape[1], frames.tolist()) == (1, [0, 0])


def test_attention_is_exchanged(folder: Path) -> None:
    """With as many clusters, keys or neighbours as frames, every mechanism is full attention."""
    model = load_model(folder)
    full, frames = states(model, utterances(LENGTHS, 0.0), LENGTHS)
    keep = torch.arange(full.shape[1]) < frames.unsqueeze(1)
    for name in ("local-99", "clustered-99", "i-clustered-99:topk=99", "near-99"):
        model.set_attention(name)
        found, _ = states(model, utterances(LENGTHS, float("nan")), LENGTHS)
        torch.testing.assert_close(found[keep], full[keep], rtol=0, atol=1e-3)
    for name in ("local-2", "near-2:topk=2,window=1", "full*1,i-clustered-2:topk=2*1"):
        model.set_attention(name)
        found, _ = states(model, utterances(LENGTHS, float("nan")), LENGTHS)
        assert (found[keep] - full[keep]).abs().max() > 0.01
        alone, _ = states(model, utterances(LENGTHS, 0.0)[1:2, :7001], LENGTHS[1:2])
        torch.testing.assert_close(found[1, :22], alone[0], rtol=0, atol=1e-4)
    with pytest.raises(UserError, match="attention 'lsh-1' needs keys tied"):
        model.set_attention("lsh-1")


@pytest.mark.parametrize(
    "kind", ["WhisperForConditionalGeneration", "WhisperModel", "WhisperForAudioClassification"]
)
def test_the_encoder_of_any_whisper_is_found(kind: str, folder: Path, tmp_path: Path) -> None:
    """In half precision, as published models are; the decoder isn't read."""
    shutil.copytree(folder, tmp_path / "model")
    theirs = getattr(transformers, kind).from_pretrained(folder).half()
    theirs.save_pretrained(tmp_path / "model")
    weights = theirs.state_dict()
    (name,) = (x for x in weights if x.endswith("encoder.layers.1.self_attn.q_proj.weight"))
    model = load_model(tmp_path / "model")
    assert torch.equal(model.encoder.blocks[1].attention.query.weight, weights[name].float())
    assert not any("decoder" in x for x in model.state_dict())


def test_the_folder_determines_the_options(folder: Path) -> None:
    options = encoder_options(read_pretrained(folder))
    expected = {
        "model.layers": 2,
        "model.heads": 2,
        "model.head_dim": 12,
        "model.feedforward": 32,
        "model.subsampling": 2,
        "model.positions": "sinusoidal",
        "model.dropout": 0.0,
        "features.mel_bins": 20,
        "features.frame_length_ms": 25.0,
        "features.frame_shift_ms": 10.0,
    }
    assert {key: options[key] for key in expected} == expected
    with pytest.raises(UserError, match=r"model.position_scale=5: expected 1 with model.encoder="):
        train_options(["recipe=folder", f"model.encoder={folder}", "model.position_scale=5"])


def test_all_parts_but_the_positions_are_trained(folder: Path) -> None:
    """Also with an utterance of no frames, which must not turn the gradients of others into NaN."""
    masks = AugmentConfig(frequency_masks=1, time_mask_every=20)
    model = load_model(folder, augment=masks, intermediate=[1]).train()
    outputs, frames = model.emit(
        *model.input(utterances(LENGTHS, float("nan")), torch.tensor([16000, 0, 3001, 100, 1]))
    )
    assert (len(outputs), frames.tolist()) == (2, [50, 0, 10, 1, 1])
    sum(x[0].sum() + x[2, :10].sum() for x in outputs).backward()  # type: ignore[union-attr]
    for name, parameter in model.named_parameters():
        if name == "encoder.positions.weight":
            assert parameter.grad is None
        else:
            assert parameter.grad.isfinite().all(), name


def test_recordings_longer_than_the_positions_are_encoded_in_chunks(folder: Path) -> None:
    model = load_model(folder)
    samples = speech_like(16000 * SECONDS + 1).numpy()
    with pytest.raises(UserError, match=r"expected at most 150 encoder frames, .* found 151"):
        model(torch.from_numpy(samples)[None], torch.tensor([len(samples)]))
    for mode in ("auto", "chunked"):
        found = posteriors(model, samples, EncodingOptions(mode=mode))
        assert found.shape == (151, 5)
    whole = posteriors(model, samples[:-1], EncodingOptions())
    assert torch.equal(whole, posteriors(model, samples[:-1], EncodingOptions(mode="onepass")))
    for options in (EncodingOptions(mode="onepass"), EncodingOptions(chunk_s=4.0)):
        with pytest.raises(
            UserError, match=r"^tape: expected at most 3 s in a pass or chunk, .* found 3.0 s"
        ):
            posteriors(model, samples, options, "tape")
    model.config.longest_s = 2.5  # training audio: without a limit, 3.75 s in one pass
    assert posteriors(model, samples, EncodingOptions()).shape == (151, 5)


@pytest.fixture
def overrides(tmp_path: Path, folder: Path, corpus_maker: Callable[..., Path]) -> list[str]:
    """Options of a run."""
    shutil.copytree(folder, tmp_path / "encoder")
    return [*TRAINING, f"data.train=[{corpus_maker()}]", f"model.encoder={tmp_path / 'encoder'}"]


@pytest.mark.slow
def test_interrupted_equals_uninterrupted(overrides: list[str], tmp_path: Path) -> None:
    overrides += ["model.freeze_encoder_steps=1", "model.layer_drop=0.3", "model.dropout=0.2"]
    overrides += ["augment.time_mask_every=20", "attention=full*1,near-4*1"]
    train(train_options([*overrides, f"run={tmp_path / 'whole'}"]))
    with killed(3):
        train(train_options([*overrides, f"run={tmp_path / 'parts'}", "resume=auto"]))
    train(train_options([*overrides, f"run={tmp_path / 'parts'}", "resume=auto"]))
    assert_same_weights(tmp_path / "parts", tmp_path / "whole")


@pytest.mark.slow
def test_commands_use_the_run_without_the_folder(
    overrides: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, theirs = tmp_path / "run", tmp_path / "encoder"
    assert main(["transcribe", str(theirs), "x.wav"]) == 1
    assert "expected a model with a CTC head, found Whisper: train a head with" in capsys.readouterr().err
    assert main(["train", *overrides, f"run={run}", "trainer.max_steps=2", "attention=i-clustered-4"]) == 0
    shutil.rmtree(theirs)
    wav = str(tmp_path / "tones" / "wav" / "test-0.wav")
    assert main(["transcribe", str(run), wav, "min_confidence=0", "mode=chunked", "chunk_s=0.3"]) == 0
    assert main(["decode", str(run), "split=test", "attention=full"]) == 0
    assert main(["export", str(run)]) == 0
    exported = Recognizer.load(run / "model")
    assert exported.model.digest() == Recognizer.load(run).model.digest()
    capsys.readouterr()
    assert main(["export", str(run), "format=transformers"]) == 1
    assert "format=transformers: expected a model with" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("split", "speed", "message"),
    [
        ("train", 0.9, r"at most 3 s, .*, found 3.34 s \(at speed 0.9\): data.max_duration_s=2.7 leaves out"),
        ("dev", 1.0, r"at most 3 s, .*, found 3.01 s \(at speed 1\): data.max_duration_s=3 leaves out"),
    ],
)
def test_training_refuses_utterances_without_positions(
    split: str, speed: float, message: str, folder: Path, tmp_path: Path
) -> None:
    for name in ("train", "dev"):
        wav = tmp_path / f"{name}.wav"
        soundfile.write(wav, np.zeros(16000 * SECONDS + 160 * (name == split)), 16000)
        save_cuts([make_cut(wav, "a", name)], tmp_path / f"{name}.cuts.jsonl.gz")
    given = [*TRAINING, f"data.train=[{tmp_path}]", f"model.encoder={folder}", f"run={tmp_path / 'run'}"]
    with pytest.raises(UserError, match=message):
        train(train_options([*given, f"augment.speed_factors=[{speed}]"]))


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("config.json", {"encoder_attention_heads": 0}, "expected num_attention_heads 1 … 100000, found 0"),
        ("config.json", {"encoder_attention_heads": 5}, "expected num_attention_heads to divide 24, found 5"),
        ("config.json", {"activation_function": "unheard"}, "expected hidden_act to be an activation"),
        ("config.json", {"encoder_layers": 3}, "found none for layers.2"),
        ("config.json", {"encoder_layers": "x"}, "expected a configuration"),
        ("config.json", {"max_source_positions": 0}, "expected max_source_positions 1 …"),
        ("config.json", {"max_source_positions": 99}, "expected the weights of its configuration"),
        ("config.json", {"dropout": 1.5}, "expected dropout at least 0 and below 1"),
        ("config.json", {"auto_map": {"AutoConfig": "evil.Evil"}}, ""),
        ("processor_config.json", {"sampling_rate": 8000}, "expected sampling_rate 16000, found 8000"),
        ("processor_config.json", {"feature_size": 80}, "expected feature_size as num_mel_bins, found 80"),
        ("processor_config.json", {"n_fft": 0}, "expected n_fft 16 … 8192, found 0"),
        ("processor_config.json", {"hop_length": None}, "found hop_length=None"),
        ("processor_config.json", {"feature_extractor_type": "Wav2Vec2FeatureExtractor"}, "expected Whisper"),
    ],
)
def test_hostile_folders_are_one_line(
    file: str, change: dict[str, Any], message: str, folder: Path, tmp_path: Path
) -> None:
    """Nothing of a folder is run, and what doesn't fit ends in one line that names the folder."""
    shutil.copytree(folder, tmp_path / "x")
    (tmp_path / "x" / "evil.py").write_text("raise SystemExit('run')")
    content = json.loads((tmp_path / "x" / file).read_text())
    (content["feature_extractor"] if file.startswith("processor") else content).update(change)
    (tmp_path / "x" / file).write_text(json.dumps(content))
    if not message:
        assert states(load_model(tmp_path / "x"), utterances(LENGTHS, 0.0), LENGTHS)[0].isfinite().all()
        return
    with pytest.raises(UserError) as caught:
        load_model(tmp_path / "x")
    assert str(tmp_path / "x") in str(caught.value)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
