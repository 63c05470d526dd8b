"""Exported models: the portable folder, ONNX and torch.export."""

import dataclasses
import json
import subprocess
import sys
import warnings

import numpy as np
import pytest
import soundfile
import torch
from sounds import odd_sounds

from asr.commands import export
from asr.errors import UserError
from asr.lengths import zero_padding
from asr.model.acoustic_model import AcousticModel, AcousticModelConfig
from asr.model.graph import sherpa_tokens, write_program
from asr.model.options import ExportOptions, FeatureConfig, ModelConfig
from asr.model.portable import CONFIG, TOKENIZER, WEIGHTS, read_portable, write_portable
from asr.recognizer import Recognizer
from asr.search.greedy import greedy_search
from asr.search.path import text_of
from asr.text.tokenizer import CharacterTokenizer, SentencePieceTokenizer
from attention_ext.hashing import graph as hashing_graph
from attention_ext.hashing import reference as hashing_reference
from attention_ext.improved_clustered_attention.graph import products_per_query
from attention_ext.improved_clustered_attention.reference import improved_clustered_attention

TINY = ModelConfig(layers=1, heads=2, head_dim=8, feedforward=16, subsampling=2)
# Graphs repeat the operations of each iteration.
KEYS = "i-clustered-8:topk=8,grouping=keys,rank=4,iterations=2"
NEAR = "near-8:topk=8,window=3,rank=2,iterations=1"


def tiny(
    attention: str = "full", block: str = "transformer", topology: str = "ctc", **sizes: int | str
) -> Recognizer:
    torch.manual_seed(1)
    architecture = dataclasses.replace(TINY, block=block, **sizes)
    config = AcousticModelConfig(
        attention, features=FeatureConfig(mel_bins=20), model=architecture, topology=topology
    )
    tokenizer = CharacterTokenizer.train(["größe", "go on"])
    return Recognizer(AcousticModel(config, len(tokenizer)).eval(), tokenizer)


@pytest.fixture
def folder(tmp_path):
    write_portable(tiny().state(), tmp_path / "model")
    return tmp_path / "model"


def utterances(attention: str = "full"):
    """Ten of noise; four with mel bins without sound, whose rounding errors normalisation must not scale up.

    The four are long, because the errors of a sum grow with its length. For clusters they are short: on long
    input, rounding moves a few queries to another cluster.
    """
    generator = torch.Generator().manual_seed(2)
    lengths = torch.randint(6_000, 20_000, (10,), generator=generator)
    noise = 0.1 * torch.randn(10, int(lengths.max()), generator=generator)
    sounds = [row[:length] for row, length in zip(noise, lengths.tolist(), strict=True)]
    sounds += odd_sounds(1.0 if "clustered" in attention else 11.5).values()
    return torch.nn.utils.rnn.pad_sequence(sounds, batch_first=True), torch.tensor(list(map(len, sounds)))


def test_an_exported_model_equals_the_original_bit_for_bit(folder):
    original, loaded = tiny(), Recognizer.load(folder)
    assert not loaded.model.training
    assert loaded.tokenizer.state() == original.tokenizer.state()
    assert loaded.model.config == original.model.config
    for ours, theirs in zip(original.model(*utterances()), loaded.model(*utterances()), strict=True):
        assert torch.equal(ours, theirs)
    assert sorted(path.name for path in folder.iterdir()) == sorted([WEIGHTS, CONFIG, TOKENIZER])


def test_a_model_loads_from_any_of_its_files(folder):
    for name in (CONFIG, WEIGHTS, TOKENIZER):
        assert Recognizer.load(folder / name).tokenizer.symbols == tiny().tokenizer.symbols


def test_a_sentencepiece_model_is_restored_from_json(tmp_path):
    tokenizer = SentencePieceTokenizer.train(["go on and on", "an old man", "no gold on land"] * 5, pieces=12)
    state = tiny().state() | {"tokenizer": tokenizer.state()}
    write_portable(state, tmp_path)
    assert read_portable(tmp_path)["tokenizer"] == tokenizer.state()


@pytest.mark.parametrize("name", [WEIGHTS, CONFIG, TOKENIZER])
@pytest.mark.parametrize("damage", ["cut", "empty", "flipped", "gone", "deep"])
def test_a_damaged_file_is_rejected_in_one_line(folder, name, damage):
    path = folder / name
    content = bytearray(path.read_bytes())
    match damage:
        case "cut":
            path.write_bytes(content[: len(content) * 2 // 3])
        case "empty":
            path.write_bytes(b"")
        case "flipped":
            content[-20] ^= 1
            path.write_bytes(content)
        case "gone":
            path.unlink()
        case "deep":  # was a RecursionError
            path.write_bytes(b"[" * 100_000)
    with pytest.raises(UserError) as caught:
        Recognizer.load(folder)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_changed_settings_are_rejected(folder):
    settings = json.loads((folder / CONFIG).read_text())
    settings["config"]["features"]["low_freq_hz"] = 90.0
    (folder / CONFIG).write_text(json.dumps(settings))
    with pytest.raises(UserError, match=r"config.json: expected the exported settings"):
        Recognizer.load(folder)


def test_errors_name_the_argument_or_option(folder, tmp_path):
    with pytest.raises(UserError, match=r"expected a file that ends in \.onnx"):
        export.run([folder], ExportOptions(format="onnx", out=str(tmp_path / "a.pt")))
    with pytest.raises(
        UserError, match=r"a\.onxx: expected a folder, or a file that ends in \.pt2 or \.onnx"
    ):
        export.run([folder], ExportOptions(out=str(tmp_path / "a.onxx")))  # became a folder
    options = ExportOptions(format="onnx", attention="lsh-1", out=str(tmp_path / "a.onnx"))
    write_portable(tiny("shared-full").state(), tmp_path / "shared")
    with pytest.raises(UserError, match=r"attention 'lsh-1.*' can't be exported as a graph"):
        export.run([tmp_path / "shared"], options)
    assert not list(tmp_path.glob("*.onnx"))


def test_frames_joined_by_similarity_are_refused_as_a_graph_and_kept_in_safetensors(tmp_path):
    write_portable(tiny(frames="merge-0.4:at=1").state(), tmp_path / "model")
    assert Recognizer.load(tmp_path / "model").model.config.model.frames == "merge-0.4:at=1"
    for name in ("a.pt2", "a.onnx"):
        with pytest.raises(UserError, match=r"^frames=merge-0\.4:at=1: can't be exported as a graph"):
            export.run([tmp_path / "model"], ExportOptions(out=str(tmp_path / name)))
        assert not (tmp_path / name).exists()


def test_a_model_with_mamba_is_refused_as_a_graph(tmp_path):
    write_portable(tiny("mamba:state=4").state(), tmp_path / "model")
    with pytest.raises(UserError, match=r"attention 'mamba.*' can't be exported as a graph: expected one of"):
        export.run([tmp_path / "model"], ExportOptions(format="torch_export", out=str(tmp_path / "a.pt2")))
    assert not list(tmp_path.glob("*.pt2"))


@pytest.mark.parametrize(
    ("attention", "block", "topology"),
    [
        pytest.param("full", "conformer", "ctc", marks=[pytest.mark.slow, pytest.mark.exhaustive]),
        pytest.param("i-clustered-8:topk=8,iterations=2", "ebranchformer", "hmm", marks=pytest.mark.slow),
        pytest.param(KEYS, "transformer", "ctc", marks=[pytest.mark.slow, pytest.mark.exhaustive]),
        pytest.param(NEAR, "transformer", "ctc", marks=pytest.mark.slow),
    ],
)
def test_onnxruntime_agrees_with_pytorch_on_utterances(tmp_path, attention, block, topology):
    """In one batch and one by one: batch and time are dynamic, and padding has no effect."""
    pytest.importorskip("onnxscript", reason="the extra `export` is not installed")
    runtime = pytest.importorskip("onnxruntime", reason="the extra `export` is not installed")
    recognizer = tiny(attention, block, topology)
    model = recognizer.model
    write_portable(recognizer.state(), tmp_path / "model")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # those of PyTorch's exporter were printed
        (file,) = export.run([tmp_path / "model"], ExportOptions(out=str(tmp_path / "m.onnx")))
    assert file.is_file()
    session = runtime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    metadata = session.get_modelmeta().custom_metadata_map
    assert json.loads(metadata["symbols"]) == recognizer.tokenizer.symbols
    assert metadata["topology"] == topology
    model.set_attention(attention, backend="reference")
    audio, samples = utterances(attention)
    with torch.no_grad():
        features, lengths = model.front_end(audio, samples)
        expected, expected_frames = model(audio, samples)

    def run(features, lengths):
        return session.run(None, {"features": features.numpy(), "lengths": lengths.numpy()})

    for row, length in zip(features, lengths.tolist(), strict=True):
        row[length:] = float("nan")  # what the user's padding may contain

    log_probs, frames = run(features, lengths)
    assert frames.tolist() == expected_frames.tolist()
    for i, (length, n) in enumerate(zip(lengths.tolist(), frames, strict=True)):
        assert np.abs(log_probs[i, :n] - expected[i, :n].numpy()).max() <= 1e-4
        alone, _ = run(features[i : i + 1, :length], lengths[i : i + 1])
        assert np.abs(alone[0] - expected[i, :n].numpy()).max() <= 1e-4


SHERPA = """
import json, sys
import sherpa_onnx, soundfile
folder, *recordings = sys.argv[1:]
recogniser = sherpa_onnx.OfflineRecognizer.from_omnilingual_asr_ctc(
    model=f"{folder}/model.onnx", tokens=f"{folder}/tokens.txt"
)
texts = []
for recording in recordings:
    samples, rate = soundfile.read(recording, dtype="float32")
    stream = recogniser.create_stream()
    stream.accept_waveform(rate, samples)
    recogniser.decode_stream(stream)
    texts.append(" ".join(stream.result.text.split()))  # two gaps with a blank between them are two spaces
print(json.dumps(texts))
"""


@pytest.mark.slow
def test_sherpa_onnx_transcribes_to_the_same_text(tmp_path):
    """In a process of its own, because its wheel brings another onnxruntime."""
    attention = "local-5:global=2"
    pytest.importorskip("onnxscript", reason="the extra `export` is not installed")
    pytest.importorskip("sherpa_onnx", reason="sherpa-onnx is not installed")
    recognizer = tiny(attention)
    with torch.no_grad():  # so that noise has a text
        recognizer.model.head.projection.bias.zero_()
        recognizer.model.set_attention(attention, backend="reference")
    write_portable(recognizer.state(), tmp_path / "model")
    export.run([tmp_path / "model"], ExportOptions(format="sherpa-onnx", out=str(tmp_path / "out")))
    audio, samples = utterances(attention)
    expected, places = [], []
    for number, (row, length) in enumerate(zip(audio[:6], samples.tolist(), strict=False)):
        places.append(str(tmp_path / f"{number}.wav"))
        soundfile.write(places[-1], row[:length].numpy(), 16000, subtype="FLOAT")
        log_probs, frames = recognizer.model(row[None, :length], torch.tensor([length]))
        (path,) = greedy_search(log_probs, frames)
        expected.append(text_of(path, recognizer.tokenizer))
    assert len(set(expected)) > 3
    command = [sys.executable, "-c", SHERPA, str(tmp_path / "out"), *places]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert json.loads(found) == expected


def test_only_a_gap_between_words_is_a_space_for_sherpa_onnx():
    """A piece | of texts with bars was written as ▁, which stands for a space."""
    pieces = SentencePieceTokenizer.train(["a|b", "b|a"] * 20, 5)
    assert "|" in pieces.symbols
    written = [line.rpartition(" ")[0] for line in sherpa_tokens(pieces).splitlines()]
    assert written == ["<blk>", "⁇", *pieces.symbols[2:]]
    characters = CharacterTokenizer.train(["go"])
    assert sherpa_tokens(characters) == "<blk> 0\n⁇ 1\n▁ 2\ng 3\no 4\n"


def test_models_that_sherpa_onnx_cannot_run_are_refused(tmp_path):
    found = tiny(topology="hmm")
    write_portable(found.state(), tmp_path / "model")
    with pytest.raises(UserError, match=r"expected a model with loss\.topology=ctc, found hmm"):
        export.run([tmp_path / "model"], ExportOptions(format="sherpa-onnx", out=str(tmp_path / "out")))
    assert not list((tmp_path / "out").glob("*"))
    write_portable(tiny().state(), tmp_path / "other")
    with pytest.raises(UserError, match=r"expected an empty folder or an exported model, found config\.json"):
        export.run([tmp_path / "other"], ExportOptions(format="sherpa-onnx", out=str(tmp_path / "other")))


@pytest.mark.parametrize(
    ("attention", "block"),
    [
        ("none", "transformer"),
        pytest.param("shared-full", "conformer", marks=pytest.mark.slow),
        pytest.param("fastformer", "transformer", marks=pytest.mark.slow),
        pytest.param("linear", "transformer", marks=pytest.mark.slow),
        pytest.param("linear:causal=true", "transformer", marks=[pytest.mark.slow, pytest.mark.exhaustive]),
    ],
)
def test_torch_export_agrees_with_pytorch_on_utterances(tmp_path, attention, block):
    """In one batch and one by one, down to two frames; ONNX models are made from the same graph."""
    recognizer = tiny(attention, block)
    model = recognizer.model
    write_portable(recognizer.state(), tmp_path / "model")
    (file,) = export.run([tmp_path / "model"], ExportOptions(format="torch_export", out=str(tmp_path)))
    program = torch.export.load(file).module()
    model.set_attention(attention, backend="reference")
    audio, samples = utterances(attention)
    with torch.no_grad():
        features, lengths = model.front_end(audio, samples)
        for row, length in zip(features, lengths.tolist(), strict=True):
            row[length:] = -15.9  # the log energy of silence
        log_probs, frames = program(features, lengths)
        expected, expected_frames = model(audio, samples)
        assert torch.equal(frames, expected_frames)
        for i, (length, n) in enumerate(zip(lengths.tolist(), frames.tolist(), strict=True)):
            assert (log_probs[i, :n] - expected[i, :n]).abs().max() <= 1e-4
            alone, _ = program(features[i : i + 1, :length], lengths[i : i + 1])
            assert (alone[0] - expected[i, :n]).abs().max() <= 1e-4
        shortest, _ = program(features[:1, :3], torch.tensor([3]))
    assert shortest.shape[:2] == (1, 2)


@pytest.mark.slow
@torch.no_grad()
def test_a_program_has_the_model_s_frame_rates(tmp_path):
    """From one frame of a layer to many, at odd and even lengths."""
    model = tiny("local-3", layers=2, frames="1,3").model
    write_program(model, tmp_path / "m.pt2")
    program = torch.export.load(tmp_path / "m.pt2").module()
    for frames in (1, 2, 7, 12, 41):
        features, lengths = torch.randn(2, frames, 20), torch.tensor([frames, max(1, frames - 3)])
        features = zero_padding(features, lengths)
        expected, counts = model.emit(model.normalisation(features, lengths), lengths)
        found, same = program(features, lengths)
        assert torch.equal(same, counts)
        for row, count in enumerate(counts.tolist()):
            torch.testing.assert_close(found[row, :count], expected[0][row, :count], rtol=0, atol=1e-4)


@pytest.mark.slow
def test_a_program_accepts_a_single_frame(tmp_path):
    """Below five feature frames, the program of `full` failed with a guard's message."""
    subsampling = 8
    model = tiny("full", "transformer", subsampling=subsampling).model
    write_program(model, tmp_path / "full.pt2")
    program = torch.export.load(tmp_path / "full.pt2").module()
    model.set_attention("full", backend="reference")
    for frames in range(1, 3 * subsampling + 1):
        features, lengths = torch.randn(1, frames, model.config.features.mel_bins), torch.tensor([frames])
        with torch.no_grad():
            expected = model.emit(model.normalisation(features, lengths), lengths)[0][-1]
            torch.testing.assert_close(program(features, lengths)[0], expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("topk", [1, 4, 32])
def test_improved_clustering_without_sorting_equals_the_reference(topk):
    """Covers empty, single and full sequences, more clusters than queries, and NaN as padding."""
    generator = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(4, 2, 23, 8, generator=generator) for _ in range(3))
    lengths = torch.tensor([0, 1, 17, 23])
    groups = torch.randint(5, (4, 2, 23), generator=generator, dtype=torch.int32)
    for i, length in enumerate(lengths):
        groups[i, :, length:] = -1
        for x in (q, k, v):
            x[i, :, length:] = torch.nan
    arguments = (q, k, v, groups, lengths, lengths, 5, topk)
    expected = improved_clustered_attention(*arguments)
    found = improved_clustered_attention(*arguments, products=products_per_query)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("bits", [1, 31, 32, 63])
def test_hashes_from_parts_equal_the_reference(bits):
    """The int64 sums of onnxruntime 1.31 use floating point, so the last ten of 63 bits were wrong."""
    generator = torch.Generator().manual_seed(4)
    x, planes = torch.randn(2, 3, 50, 8, generator=generator), torch.randn(bits, 8, generator=generator)
    assert torch.equal(hashing_graph.hash_sign(x, planes), hashing_reference.hash_sign(x, planes))
