"""Local folders of pretrained speech models of transformers: configuration, training options, weights."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from math import prod
from pathlib import Path
from typing import Any

import torch

from asr.attention.transformers_adapter import import_transformers, quiet
from asr.errors import UserError
from asr.files import read_json
from asr.model.options import ACTIVATIONS, FeatureConfig, ModelConfig

FAMILIES = ("wav2vec2", "hubert", "wavlm", "data2vec-audio")
# Settings of transformers whose models aren't run here, and why.
UNSUPPORTED = {
    "add_adapter": "its convolutions after the encoder aren't run here",
    "conv_pos_batch_norm": "batch normalisation lets the other utterances of a batch change a result",
}
# Options of the model that a folder doesn't determine.
OWN_OPTIONS = {"model.encoder", "model.freeze_encoder_steps", "model.self_conditioned"}
# Options that may differ from the folder's values.
ADJUSTABLE = {"model.dropout", "model.attention_dropout", "model.layer_drop"}


def read_pretrained(folder: str) -> dict[str, Any]:
    """Return all that a checkpoint needs to build a pretrained encoder, as plain data.

    Args:
        folder: value of `model.encoder`, a folder with `config.json` and `preprocessor_config.json`.

    Returns:
        `transformers`: the model's configuration; `normalise`: whether an utterance's samples are scaled to
        mean 0 and variance 1; `sample_rate` in Hz.

    Raises:
        UserError: no such folder, another type of model, or transformers is missing.
    """
    path = Path(folder)
    if not path.is_dir():
        raise UserError(
            f"model.encoder={folder}: expected a local folder written by save_pretrained() (nothing is "
            "downloaded), found none"
        )
    kind = read_json(path / "config.json", "the configuration of a transformers model").get("model_type")
    if kind not in FAMILIES:
        raise UserError(f"model.encoder={folder}: expected a model of {', '.join(FAMILIES)}, found {kind!r}")
    transformers = import_transformers()
    with quiet(), _one_line(folder, "a configuration"):
        config = transformers.AutoConfig.from_pretrained(path, local_files_only=True)
        extractor = transformers.AutoFeatureExtractor.from_pretrained(path, local_files_only=True)
    for name, why in UNSUPPORTED.items():
        if getattr(config, name, False):
            raise UserError(f"model.encoder={folder}: expected {name}=false, found true: {why}")
    return {
        "transformers": json.loads(config.to_json_string(use_diff=False)),
        "normalise": bool(extractor.do_normalize),
        "sample_rate": int(extractor.sampling_rate),
    }


def encoder_options(pretrained: dict[str, Any]) -> dict[str, Any]:
    """Return the values that a pretrained encoder gives the options of model and features, by option.

    Options that it doesn't use have their defaults. A feature frame is one frame of the convolutional front
    end, usually 20 ms.
    """
    config, rate = pretrained["transformers"], pretrained["sample_rate"]
    window, shift = window_and_shift(config["conv_kernel"], config["conv_stride"])
    heads, activation = config["num_attention_heads"], config["hidden_act"]
    found = {
        "model.layers": config["num_hidden_layers"],
        "model.heads": heads,
        "model.head_dim": config["hidden_size"] // heads,
        "model.feedforward": config["intermediate_size"],
        "model.norm": "pre" if config.get("do_stable_layer_norm") else "post",
        "model.positions": "convolution",
        "model.dropout": config["hidden_dropout"],
        "model.attention_dropout": config["attention_dropout"],
        "model.layer_drop": config["layerdrop"],
        "features.sample_rate": rate,
        "features.frame_length_ms": 1000 * window / rate,
        "features.frame_shift_ms": 1000 * shift / rate,
        "features.normalise": "none",
    }
    if activation in ACTIVATIONS:
        found["model.activation"] = activation
    defaults: dict[str, Any] = {}
    for section, schema in (("model", ModelConfig()), ("features", FeatureConfig())):
        defaults |= {f"{section}.{x.name}": getattr(schema, x.name) for x in fields(schema)}
    return {key: value for key, value in (defaults | found).items() if key not in OWN_OPTIONS}


def window_and_shift(kernels: list[int], strides: list[int]) -> tuple[int, int]:
    """Return the samples that a frame of stacked convolutions sees, and those between frames.

    Example:
        >>> window_and_shift([10, 3, 3, 3, 3, 2, 2], [5, 2, 2, 2, 2, 2, 2])
        (400, 320)
    """
    window = 1
    for kernel, stride in zip(reversed(kernels), reversed(strides), strict=True):
        window = (window - 1) * stride + kernel
    return window, prod(strides)


def empty_model(pretrained: dict[str, Any], model: ModelConfig) -> Any:
    """Return transformers' model with random weights; `model` has the dropouts."""
    transformers = import_transformers()
    with quiet():
        return transformers.AutoModel.from_config(_configuration(pretrained, model), dtype=torch.float32)


def trained_model(folder: str, pretrained: dict[str, Any], model: ModelConfig) -> Any:
    """Return transformers' model with the weights of a folder.

    Heads, e.g. of `Wav2Vec2ForCTC`, are left out.

    Raises:
        UserError: weights that are missing, can't be read, don't fit or aren't finite.
    """
    transformers = import_transformers()
    with quiet(), _one_line(folder, "the weights of its configuration"):
        found, info = transformers.AutoModel.from_pretrained(
            folder,
            config=_configuration(pretrained, model),
            local_files_only=True,
            dtype=torch.float32,
            output_loading_info=True,
        )
    # Published fine-tuned models lack the vector of masked frames; it is drawn, as by transformers.
    if missing := sorted(set(info["missing_keys"]) - {"masked_spec_embed"}):
        raise UserError(f"model.encoder={folder}: expected all weights, found none for {missing[0]}")
    for name, weights in found.state_dict().items():
        if not bool(weights.isfinite().all()):
            raise UserError(
                f"model.encoder={folder}: expected finite weights, found NaN or infinity in {name}"
            )
    return found


def pretrained_files(folder: str) -> list[Path]:
    """Return the files that determine a pretrained encoder: its weights and their configuration."""
    return sorted(x for x in Path(folder).iterdir() if x.suffix in (".json", ".safetensors", ".bin"))


def _configuration(pretrained: dict[str, Any], model: ModelConfig) -> Any:
    changes = {
        "hidden_dropout": model.dropout,
        "attention_dropout": model.attention_dropout,
        "layerdrop": model.layer_drop,
    }
    return import_transformers().AutoConfig.for_model(**(pretrained["transformers"] | changes))


@contextmanager
def _one_line(folder: str, expected: str) -> Iterator[None]:
    """Raise UserError in place of what transformers raises for a folder that it can't read."""
    try:
        yield
    except Exception as error:  # also of safetensors, pickle, json, huggingface_hub
        found = " ".join(str(error).split())[:300]
        raise UserError(f"model.encoder={folder}: expected {expected}, found: {found}") from error
