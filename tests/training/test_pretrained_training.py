"""Training from a pretrained encoder: frozen steps, resuming, options, and the commands that use the run."""

import shutil
from collections.abc import Callable
from pathlib import Path

import lightning
import pytest
import torch
from pretrained_models import CONFIGS, save_model
from runs import assert_same_weights, killed, weights

from asr.cli import main
from asr.errors import UserError
from asr.recognizer import Recognizer
from asr.training.config import train_options
from asr.training.recognition import build_recognition
from asr.training.run import train
from asr.transcription.options import EncodingOptions
from asr.transcription.posteriors import posteriors

SHORT = [
    "recipe=folder",
    "tokenizer.kind=phone",
    "data.frames_per_batch=300",
    "data.workers=0",
    "trainer.accelerator=cpu",
    "trainer.max_epochs=1",
    "trainer.max_steps=6",
    "trainer.checkpoint_every=2",
    "optimizer.learning_rate=1e-3",
    "optimizer.warmup_steps=0",
    "optimizer.schedule=constant",
]


every_family = pytest.mark.parametrize(
    "overrides",
    [name if name == "wav2vec2" else pytest.param(name, marks=pytest.mark.slow) for name in CONFIGS],
    indirect=True,
)


@pytest.fixture
def overrides(tmp_path: Path, corpus_maker: Callable[..., Path], request: pytest.FixtureRequest) -> list[str]:
    """Options of a run from a pretrained encoder: of wav2vec 2.0, or of the family given as a parameter."""
    save_model(tmp_path / "encoder", getattr(request, "param", "wav2vec2"))
    return [*SHORT, f"data.train=[{corpus_maker()}]", f"model.encoder={tmp_path / 'encoder'}"]


def test_intermediate_outputs_train_the_head_of_a_frozen_encoder(overrides: list[str]) -> None:
    """They had no gradients, although the head is not frozen."""
    options = train_options([*overrides, "loss.intermediate=[1]", "model.freeze_encoder_steps=3"])
    model = build_recognition(options, resuming=False)[0].model.train()
    model.encoder_frozen = True
    outputs, _ = model.emit(*model.input(torch.randn(1, 8000), torch.tensor([8000])))
    assert [x.requires_grad for x in outputs] == [True, True]
    outputs[0].square().sum().backward()
    assert {name for name, x in model.named_parameters() if x.grad is not None} == {
        "head.projection.weight",
        "head.projection.bias",
    }


@pytest.mark.slow
def test_the_encoder_is_frozen_in_the_first_steps_and_the_front_end_always(
    overrides: list[str], tmp_path: Path
) -> None:
    overrides = [*overrides, f"run={tmp_path / 'run'}", "model.freeze_encoder_steps=3"]
    lightning.seed_everything(0, verbose=False)
    initial = build_recognition(train_options(overrides), resuming=False)[0].model.state_dict()
    train(train_options([*overrides, "trainer.max_steps=3"]))
    frozen = weights(tmp_path / "run")
    changed = {name for name in frozen if not torch.equal(frozen[name], initial[name])}
    assert changed == {"head.projection.weight", "head.projection.bias"}
    train(train_options([*overrides, "trainer.max_steps=5", "resume=auto"]))
    later = weights(tmp_path / "run")
    unchanged = {name for name in later if torch.equal(later[name], frozen[name])}
    assert unchanged == {name for name in later if name.startswith("front_end.")}


@every_family
def test_interrupted_equals_uninterrupted(overrides: list[str], tmp_path: Path) -> None:
    """Killed while the encoder is frozen and afterwards; transformers draws masks from NumPy's generator."""
    overrides += ["model.freeze_encoder_steps=3", "model.layer_drop=0.3", "model.dropout=0.2"]
    overrides += ["augment.time_mask_every=20", "attention=clustered-4:planes=fresh"]
    train(train_options([*overrides, f"run={tmp_path / 'whole'}"]))
    for batch in (2, 5):
        with killed(batch):
            train(train_options([*overrides, f"run={tmp_path / 'parts'}", "resume=auto"]))
    train(train_options([*overrides, f"run={tmp_path / 'parts'}", "resume=auto"]))
    assert_same_weights(tmp_path / "parts", tmp_path / "whole")


@pytest.mark.parametrize("pretrained", [False, True])
def test_layers_have_mechanisms_of_their_own(
    pretrained: bool,
    overrides: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In training, in the names of folders, and exchanged afterwards."""
    monkeypatch.chdir(tmp_path)
    if not pretrained:
        overrides = [x for x in overrides if not x.startswith("model.encoder=")]
        overrides += [f"model.{x}" for x in ("layers=2", "heads=2", "head_dim=8", "feedforward=16")]
    shared = [*overrides, "trainer.max_steps=1"]
    assert main(["train", *shared, "attention=full*1,i-clustered-4:topk=2,bits=31*1"]) == 0
    run = Path("exp/folder/fullx1,i-clustered-4:topk=2,bits=31x1")
    recognizer = Recognizer.load(run)
    assert recognizer.model.attention == "full*1,i-clustered-4:topk=2,bits=31*1"
    assert main(["decode", str(run), "split=dev", "device=cpu", "attention=local-3*1,full*1"]) == 0
    assert (run / "decode/dev/local-3x1,fullx1-greedy/hyp.jsonl").is_file()
    capsys.readouterr()
    assert main(["train", *shared, "attention=full*3", "run=other"]) == 1
    assert "expected mechanisms for 2 layers, found 3" in capsys.readouterr().err


@every_family
def test_commands_use_the_run_without_the_folder(overrides: list[str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert main(["train", *overrides, f"run={run}", "trainer.max_steps=2", "attention=i-clustered-4"]) == 0
    shutil.rmtree(tmp_path / "encoder")
    wav = str(tmp_path / "tones" / "wav" / "test-0.wav")
    assert main(["transcribe", str(run), wav, "min_confidence=0"]) == 0
    assert main(["transcribe", str(run), wav, "min_confidence=0", "mode=chunked", "chunk_s=0.3"]) == 0
    assert main(["decode", str(run), "split=test", "attention=full"]) == 0
    assert main(["export", str(run)]) == 0
    exported = Recognizer.load(run / "model")
    assert exported.model.digest() == Recognizer.load(run).model.digest()


@every_family
def test_a_schedule_of_frames_in_fine_tuning(overrides: list[str], tmp_path: Path) -> None:
    """`model.frames` was refused beside a published encoder, as if its weights set the rate."""
    weights = {}
    for frames in ("1", "1,2*"):
        run = tmp_path / frames
        options = [*overrides, "trainer.max_steps=2", f"model.frames={frames}"]
        weights[frames] = Recognizer.load(train(train_options([*options, f"run={run}"]))).model
    model = weights["1,2*"]
    assert model.encoder.factors == [1, *[2] * (len(model.encoder.blocks) - 1)]
    assert any(
        not torch.equal(x, y) for x, y in zip(model.parameters(), weights["1"].parameters(), strict=True)
    )


def test_chunks_of_a_long_recording_are_joined_at_the_same_frames(
    tmp_path: Path, overrides: list[str]
) -> None:
    """Chunks are cut at multiples of the stride of the folder's convolutions."""
    recognizer = Recognizer.load(train(train_options([*overrides, f"run={tmp_path / 'run'}"])))
    audio = torch.randn(16000 * 2)
    for size in (16000 * 2, 16000 * 2 - 77):
        one = posteriors(recognizer.model, audio[:size].numpy(), EncodingOptions(mode="onepass"))
        options = EncodingOptions(mode="chunked", chunk_s=0.5)
        assert posteriors(recognizer.model, audio[:size].numpy(), options).shape == one.shape


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.subsampling=4", r"model.subsampling=4: expected 1 with model.encoder="),
        ("model.positions=rotary", r"model.positions=rotary: expected convolution with model.encoder="),
        ("features.sample_rate=8000", r"features.sample_rate=8000: expected 16000 with model.encoder="),
        ("features.normalise=window", r"features.normalise=window: expected none with model.encoder="),
        ("model=wsj", r"model.layers=9: expected \d with model.encoder="),
        ("recipe=copy", r"encoder=.*: has no effect with recipe=copy"),
        ("loss.intermediate=[2]", r"loss.intermediate=\[2\]: expected blocks before the last"),
    ],
)
def test_options_that_contradict_the_folder_are_refused(override: str, message: str, tmp_path: Path) -> None:
    save_model(tmp_path)
    with pytest.raises(UserError, match=message):
        train_options(["recipe=folder", f"model.encoder={tmp_path}", override])


def test_a_published_model_is_a_start_like_a_run(tmp_path: Path) -> None:
    """`init_from=` a folder of transformers was `expected a checkpoint`."""
    pytest.importorskip("published_models").save_ctc(tmp_path)
    options = train_options(["recipe=demo", f"init_from={tmp_path}"])
    assert (options.init_from, options.model.encoder) == ("", str(tmp_path))
    assert (options.tokenizer.kind, options.model.layers) == ("character", 2)
    with pytest.raises(UserError, match=r"^tokenizer.kind=phone: expected character with init_from="):
        train_options(["recipe=demo", f"init_from={tmp_path}", "tokenizer.kind=phone"])


def test_the_folder_replaces_the_sizes_of_a_recipe(tmp_path: Path) -> None:
    save_model(tmp_path)
    options = train_options(["recipe=prompts", f"model.encoder={tmp_path}", "model.dropout=0.2"])
    assert (options.model.block, options.model.layers, options.model.positions) == (
        "transformer",
        2,
        "convolution",
    )
    assert options.features.sample_rate == 16000
    assert options.model.dropout == 0.2


def test_resuming_notices_another_encoder(overrides: list[str], tmp_path: Path) -> None:
    overrides = [*overrides, f"run={tmp_path / 'run'}"]
    train(train_options([*overrides, "trainer.max_steps=2"]))
    save_model(tmp_path / "encoder", initializer_range=0.2)
    with pytest.raises(UserError, match="inputs have changed since the run began: start"):
        train(train_options([*overrides, "resume=auto"]))
