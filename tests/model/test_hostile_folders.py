"""Generated folders of models with something wrong: a recogniser, or one line that names the folder."""

import itertools
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from once import once
from published_models import save_ctc, save_parakeet
from safetensors.torch import load_file, save_file

from asr.errors import UserError
from asr.recognizer import Recognizer

DEEP: Any = []
for _ in range(300):
    DEEP = [DEEP]
VALUES = [
    None,
    "x",
    "",
    -1,
    0,
    1,
    3,
    10**12,
    10**400,
    0.5,
    float("nan"),
    True,
    False,
    [],
    [0],
    ["x"],
    {},
    {"a": 1},
    DEEP,
]
FILES = ("config.json", "processor_config.json", "tokenizer_config.json", "vocab.json", "tokenizer.json")
BYTES = {
    "nothing": b"",
    "a list": b"[1, 2]",
    "null": b"null",
    "half": b'{"model_type": "wav2vec2", ',
    "no text": b"\xff\xfe\x00",
    "nested": b"[" * 100_000,
}


@pytest.fixture(scope="module")
def folder(shared: Path) -> Path:
    """Folder of a model that is as it should be."""
    return once(shared / "hostile", lambda folder: save_ctc(folder, initializer_range=0.5))


@pytest.fixture(scope="module")
def parakeet(shared: Path) -> Path:
    """Folder of a FastConformer that is as it should be."""
    return once(shared / "hostile_parakeet", save_parakeet)


def changes(folder: Path) -> Iterator[tuple[str, str, bytes | None]]:
    """Yield a description, a file and its content; None deletes it."""
    for name in (x for x in FILES if (folder / x).exists()):
        values = json.loads((folder / name).read_text())
        yield f"{name} is missing", name, None
        for what, content in BYTES.items():
            yield f"{name} is {what}", name, content
        groups = ("feature_extractor", "encoder_config")
        nested = {(group, key) for group in groups for key in values.get(group, {})}
        for path in [*((key,) for key in values), *sorted(nested)]:
            for value in (*VALUES, ...):
                changed = json.loads(json.dumps(values))
                place = changed[path[0]] if len(path) > 1 else changed
                if value is ...:
                    del place[path[-1]]
                else:
                    place[path[-1]] = value
                yield f"{name}: {'.'.join(path)}={str(value)[:20]}", name, json.dumps(changed).encode()
        for extra in (
            "auto_map",
            "quantization_config",
            "attn_implementation",
            "adapter_attn_dim",
            "vocab_size",
        ):
            for value in ({"AutoConfig": "code.Own"}, "owner/model", 7):
                yield f"{name}: {extra}={value}", name, json.dumps({**values, extra: value}).encode()
    weights = (folder / "model.safetensors").read_bytes()
    for cut in (0, 7, 100, len(weights) - 1):
        yield f"weights of {cut} bytes", "model.safetensors", weights[:cut]
    yield "a header of any length", "model.safetensors", b"\xff" * 8 + weights[8:]
    yield "no weights", "model.safetensors", None


def check(folder: Path, description: str) -> bool:
    """Return whether a folder is a recogniser; raise what isn't one line that names it."""
    try:
        recognizer = Recognizer.load(folder)
        transcript = recognizer.transcribe(torch.ones(8000) / 2, 16000)
    except UserError as error:
        said = str(error)
    else:
        assert transcript.duration_s == 0.5, description
        return True
    assert "\n" not in said, description
    assert str(folder) in said, f"{description}: {said}"
    assert len(said) < 600, description
    return False


@pytest.mark.parametrize("share", [60, pytest.param(5, marks=pytest.mark.slow)])
@pytest.mark.parametrize("family", ["folder", "parakeet"])
def test_every_change_ends_in_a_recogniser_or_one_line(
    family: str, share: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder: Path = request.getfixturevalue(family)
    found = list(changes(folder))
    random.Random(share).shuffle(found)
    counts = {True: 0, False: 0}
    for number, (description, name, content) in enumerate(itertools.islice(found, 0, None, share)):
        own = tmp_path / str(number)
        shutil.copytree(folder, own)
        (own / name).unlink()
        if content is not None:
            (own / name).write_bytes(content)
        counts[check(own, description)] += 1
        shutil.rmtree(own)
    assert min(counts.values()) > 3


@pytest.mark.slow
def test_weights_of_other_sizes_and_pickles_are_refused(folder: Path, tmp_path: Path) -> None:
    """Reading a pickle runs whatever code it holds."""
    weights = load_file(folder / "model.safetensors")
    shutil.copytree(folder, tmp_path / "x")
    file = tmp_path / "x" / "model.safetensors"
    for name in ("lm_head.weight", "wav2vec2.encoder.layers.0.attention.k_proj.bias"):
        for other in (weights[name][:-1], weights[name].double(), weights[name] / 0, torch.ones(())):
            save_file({**weights, name: other.clone()}, file)
            assert check(tmp_path / "x", f"{name} {other.shape}") == (other.dtype == torch.float64)
    file.unlink()
    torch.save(weights, tmp_path / "x" / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"found pytorch_model.bin, a pickle, which may run code"):
        Recognizer.load(tmp_path / "x")


def test_weights_of_peft_are_refused(folder: Path, tmp_path: Path) -> None:
    """Wherever peft is installed, transformers adds them to the model's, and reads pickles."""
    shutil.copytree(folder, tmp_path / "x")
    (tmp_path / "x" / "adapter_config.json").write_text('{"base_model_name_or_path": "owner/other"}')
    with pytest.raises(UserError, match=r"x: expected a whole model, found adapter_config.json"):
        Recognizer.load(tmp_path / "x")


@pytest.mark.parametrize(
    ("name", "changed", "expected"),
    [
        (
            "config.json",
            {"num_attention_heads": 0},
            "config.json: expected num_attention_heads 1 … 100000, found 0",
        ),
        ("config.json", {"hidden_act": "foo"}, "expected hidden_act to be an activation function"),
        ("config.json", {"num_hidden_layers": 10**6}, "expected num_hidden_layers 1 … 1000,"),
        (
            "config.json",
            {"intermediate_size": 90_000},
            r"expected [\d,]+ weights, as config.json says, found",
        ),
        ("config.json", {"model_type": "lasr_ctc"}, "found lasr_ctc: its front end and the weights"),
        ("processor_config.json", {"feature_extractor": {"sampling_rate": None}}, "found sampling_rate=None"),
        ("processor_config.json", {"feature_extractor": {"sampling_rate": "x"}}, "found sampling_rate='x'"),
        ("vocab.json", {"a": 90}, "expected symbols with different numbers from 0 to 9"),
        (
            "tokenizer_config.json",
            {"tokenizer_class": "Own"},
            "expected tokenizer_class Wav2Vec2CTCTokenizer",
        ),
        ("tokenizer_config.json", {"pad_token": "[PAD]"}, r"expected pad_token \(the blank\) '\[PAD\]'"),
    ],
)
def test_what_is_wrong_is_named(
    name: str, changed: dict[str, Any], expected: str, folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder, tmp_path / "x")
    file = tmp_path / "x" / name
    file.write_text(json.dumps({**json.loads(file.read_text()), **changed}))
    with pytest.raises(UserError, match=expected):
        Recognizer.load(tmp_path / "x")
