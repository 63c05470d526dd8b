"""Folders of pretrained speech models in transformers: configuration, training options, weights.

Files are read here, not by transformers' automatic classes, which may load further files and code that a
folder names. Weights are read from safetensors only.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from asr.attention.transformers_adapter import import_transformers, quiet, refuse_adapter
from asr.errors import UserError
from asr.files import checked_entries, read_json
from asr.model.hub import local_folder
from asr.model.options import ACTIVATIONS, FeatureConfig, ModelConfig

# Stem of the class names in transformers, by model type.
FAMILIES = {
    "wav2vec2": "Wav2Vec2",
    "hubert": "Hubert",
    "wavlm": "WavLM",
    "unispeech": "UniSpeech",
    "unispeech-sat": "UniSpeechSat",
    "wav2vec2-bert": "Wav2Vec2Bert",
    "parakeet_ctc": "Parakeet",
    "whisper": "Whisper",
}
PARAKEET, WHISPER = "parakeet_ctc", "whisper"
# Whisper's settings by their names in other families.
WHISPER_NAMES = {
    "hidden_size": "d_model",
    "intermediate_size": "encoder_ffn_dim",
    "num_hidden_layers": "encoder_layers",
    "num_attention_heads": "encoder_attention_heads",
    "hidden_act": "activation_function",
    "layerdrop": "encoder_layerdrop",
}
# Other model types with a CTC head, and why their encoders aren't supported.
REFUSED = {
    "sew-d": "its attention has logits of positions that aren't those of queries and keys",
    "lasr_ctc": "its front end and the weights of its residual connections aren't run here",
    "granite_speech5_ctc": "its attention is confined to blocks of frames",
}
STACKED = "wav2vec2-bert"
EXTRACTORS = {
    PARAKEET: "ParakeetFeatureExtractor",
    STACKED: "SeamlessM4TFeatureExtractor",
    WHISPER: "WhisperFeatureExtractor",
}
CONFIG, WEIGHTS, SHARDS = "config.json", "model.safetensors", "model.safetensors.index.json"
EXTRACTOR, PROCESSOR = "preprocessor_config.json", "processor_config.json"
# Settings of transformers that aren't supported, and why.
UNSUPPORTED = {
    "add_adapter": "its convolutions after the encoder aren't run here",
    "use_intermediate_ffn_before_adapter": "its feed-forward layer after the encoder isn't run here",
    "conv_pos_batch_norm": "batch normalisation lets the other utterances of a batch change a result",
}
# Options of the model that a folder doesn't determine.
OWN_OPTIONS = {
    "model.encoder",
    "model.frames",
    "model.freeze_encoder_steps",
    "model.lora",
    "model.self_conditioned",
}
SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_conv_pos_embeddings",
    "num_conv_pos_embedding_groups",
    "conv_kernel_size",
    "subsampling_conv_channels",
    "num_mel_bins",
    "conv_depthwise_kernel_size",
    "feature_projection_input_dim",
    "left_max_position_embeddings",
    "right_max_position_embeddings",
    "max_source_positions",
)
CONVOLUTIONS = ("conv_dim", "conv_kernel", "conv_stride")
PROBABILITIES = (
    "hidden_dropout",
    "attention_dropout",
    "activation_dropout",
    "final_dropout",
    "layerdrop",
    "dropout",
    "conformer_conv_dropout",
)
LARGEST = 100_000  # size of a layer, far above any published one
MOST_LAYERS = 1000  # likewise; even without weights, a layer takes milliseconds to build


@dataclass(frozen=True, kw_only=True)
class FeatureExtractor:
    """Settings in preprocessor_config.json or an entry of processor_config.json; transformers' defaults.

    The settings after `sampling_rate` are for mel spectra, the last two for wav2vec2-bert's.
    """

    feature_extractor_type: str | None = None
    do_normalize: bool = True
    sampling_rate: int = 16000
    feature_size: int = 80
    hop_length: int = 160
    n_fft: int = 512
    win_length: int = 400
    preemphasis: float = 0.97
    num_mel_bins: int = 80
    stride: int = 2


@dataclass(frozen=True, kw_only=True)
class MelInput:
    """Settings of Parakeet's mel spectra, named as in its feature extractor."""

    feature_size: int
    hop_length: int
    n_fft: int
    win_length: int
    preemphasis: float


@dataclass(frozen=True, kw_only=True)
class LogMelInput:
    """Settings of Whisper's mel spectra, named as in its feature extractor."""

    feature_size: int
    hop_length: int
    n_fft: int


class Pretrained(NamedTuple):
    """Weights of a folder.

    Attributes:
        encoder: model of transformers without its head.
        weight, bias: head, [V, M] and [V]; None unless requested.
    """

    encoder: Any
    weight: Tensor | None = None
    bias: Tensor | None = None


def read_pretrained(folder: str | Path) -> dict[str, Any]:
    """Return all that a checkpoint needs to build a pretrained encoder, as plain data.

    Args:
        folder: folder with `config.json` and `preprocessor_config.json` or `processor_config.json`, or name
            of a model of the Hub.

    Returns:
        `transformers`: the model's configuration; `normalise`: whether an utterance's samples are scaled to
        mean 0 and variance 1; `sample_rate` in Hz.

    Raises:
        UserError: the folder doesn't exist, the model has another type or invalid sizes, or transformers is
            missing.
    """
    path = local_folder(folder)
    if not path.is_dir():
        raise UserError(
            f"{folder}: expected a folder written by save_pretrained() of transformers, found none"
        )
    file = path / CONFIG
    values = read_json(file, "the configuration of a transformers model")
    config = _checked_configuration(values, str(file))
    kind = config["model_type"]
    extractor = _extractor(path, kind)
    description = {
        "transformers": config,
        "normalise": extractor.do_normalize,
        "sample_rate": extractor.sampling_rate,
    }
    if kind == PARAKEET:
        description["mel"] = {x.name: getattr(extractor, x.name) for x in fields(MelInput)}
    if kind == STACKED:
        description["stacked"] = {"bins": extractor.num_mel_bins, "stride": extractor.stride}
    if kind == WHISPER:
        description["log_mel"] = {x.name: getattr(extractor, x.name) for x in fields(LogMelInput)}
    _check_input(description, str(path))
    return description


def _check_input(pretrained: dict[str, Any], source: str) -> None:
    """Raise UserError unless the settings of the input fit the model."""
    if not 1000 <= pretrained["sample_rate"] <= 192_000:
        raise UserError(f"{source}: expected sample_rate 1000 … 192000, found {pretrained['sample_rate']}")
    kind = pretrained["transformers"]["model_type"]
    for family, name, check in (
        (PARAKEET, "mel", _check_mel),
        (STACKED, "stacked", _check_stacked),
        (WHISPER, "log_mel", _check_log_mel),
    ):
        section = pretrained.get(name)
        if (kind == family) != (section is not None):
            raise UserError(f"{source}: expected {name} for {family} alone, found {str(section)[:60]}")
        if section is not None:
            check(pretrained, source)


def _check_log_mel(pretrained: dict[str, Any], source: str) -> None:
    """Raise UserError unless a mel spectrum fits Whisper's encoder."""
    mel, config, rate = pretrained["log_mel"], pretrained["transformers"], pretrained["sample_rate"]
    for fits, expected, found in (
        (rate == 16000, "sampling_rate 16000", rate),  # the filters end at 8 kHz, whatever the rate
        (mel["feature_size"] == config["num_mel_bins"], "feature_size as num_mel_bins", mel["feature_size"]),
        (4 <= mel["feature_size"] <= 1000, "feature_size 4 … 1000", mel["feature_size"]),
        (16 <= mel["n_fft"] <= 8192, "n_fft 16 … 8192", mel["n_fft"]),
        (16 <= mel["hop_length"] <= mel["n_fft"], "16 ≤ hop_length ≤ n_fft", mel["hop_length"]),
        (config["d_model"] % 2 == 0, "an even d_model", config["d_model"]),
    ):
        if not fits:
            raise UserError(f"{source}: expected {expected}, found {found}")


def _check_mel(pretrained: dict[str, Any], source: str) -> None:
    """Raise UserError unless a mel spectrum fits the subsampling after it."""
    mel, config = pretrained["mel"], pretrained["transformers"]["encoder_config"]
    factor = config["subsampling_factor"]
    for fits, expected, found in (
        (factor in (2, 4, 8, 16), "subsampling_factor 2, 4, 8 or 16", factor),
        (config["subsampling_conv_kernel_size"] == 3, "subsampling_conv_kernel_size 3", "another"),
        (config["subsampling_conv_stride"] == 2, "subsampling_conv_stride 2", "another"),
        (config["conv_kernel_size"] % 2 == 1, "an odd conv_kernel_size", config["conv_kernel_size"]),
        (config["hidden_size"] % 2 == 0, "an even hidden_size", config["hidden_size"]),
        (mel["feature_size"] == config["num_mel_bins"], "feature_size as num_mel_bins", mel["feature_size"]),
        (0 < mel["win_length"] <= mel["n_fft"] <= 8192, "0 < win_length ≤ n_fft ≤ 8192", mel["win_length"]),
        (0 < mel["hop_length"] <= mel["n_fft"], "0 < hop_length ≤ n_fft", mel["hop_length"]),
        (0 <= mel["preemphasis"] <= 1, "preemphasis 0 … 1", mel["preemphasis"]),
    ):
        if not fits:
            raise UserError(f"{source}: expected {expected}, found {found}")
    if mel["feature_size"] % factor:
        raise UserError(f"{source}: expected num_mel_bins that {factor} divides, found {mel['feature_size']}")


def _check_stacked(pretrained: dict[str, Any], source: str) -> None:
    """Raise UserError unless stacked mel bins fit the projection after them."""
    config, stacked = pretrained["transformers"], pretrained["stacked"]
    if pretrained["sample_rate"] != 16000:  # the extractor's windows have fixed numbers of samples
        raise UserError(f"{source}: expected sampling_rate 16000, found {pretrained['sample_rate']}")
    found, expected = stacked["bins"] * stacked["stride"], config["feature_projection_input_dim"]
    if not 1 <= stacked["bins"] <= 1000 or not 1 <= stacked["stride"] <= 100 or found != expected:
        raise UserError(
            f"{source}: expected num_mel_bins times stride to be feature_projection_input_dim, {expected}, "
            f"found {stacked['bins']} times {stacked['stride']}"
        )


def _checked_configuration(values: dict[str, Any], source: str) -> dict[str, Any]:
    """Return the settings of a family from transformers' configuration; raise UserError if invalid."""
    kind = values.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        why = REFUSED.get(kind) if isinstance(kind, str) else None
        other = f"{kind}: {why}" if why else repr(str(kind)[:40])
        raise UserError(f"{source}: expected a model of {', '.join(FAMILIES)}, found {other}")
    for name, reason in UNSUPPORTED.items():
        if values.get(name):
            raise UserError(f"{source}: expected {name}=false, found true: {reason}")
    with quiet(), one_line(source, "a configuration"):
        config = json.loads(json.dumps(_configuration(values).to_dict()))  # tuples become lists
    _check(config | _encoder_settings(config), source)
    return {name: config[name] for name in ("model_type", *_settings(kind)) if name in config}


def has_head(folder: str | Path) -> bool:
    """Return whether a folder's model has a CTC head, according to the class in its configuration."""
    names = read_json(local_folder(folder) / CONFIG, "the configuration of a transformers model")
    architectures = names.get("architectures")
    return isinstance(architectures, list) and any(str(x).endswith("ForCTC") for x in architectures)


def _extractor(folder: Path, kind: str) -> FeatureExtractor:
    """Read the settings of the input."""
    file = folder / EXTRACTOR
    if not file.exists() and (folder / PROCESSOR).exists():
        file = folder / PROCESSOR
    values = read_json(file, "the settings of the input")
    if file.name == PROCESSOR:
        values = values.get("feature_extractor")  # type: ignore[assignment]
        if not isinstance(values, dict):
            raise UserError(f"{file}: expected feature_extractor with settings, found {str(values)[:40]!r}")
    values = ({"n_fft": 400} if kind == WHISPER else {}) | values
    settings = FeatureExtractor(**checked_entries(FeatureExtractor, values, file))
    expected = EXTRACTORS.get(kind, "Wav2Vec2FeatureExtractor")
    if settings.feature_extractor_type not in (None, expected):
        raise UserError(f"{file}: expected {expected}, found {settings.feature_extractor_type}")
    if not 1000 <= settings.sampling_rate <= 192_000:
        raise UserError(f"{file}: expected sampling_rate 1000 … 192000, found {settings.sampling_rate}")
    return settings


def _check(config: dict[str, Any], source: str) -> None:
    """Raise UserError unless the sizes in a configuration are valid."""

    def expect(fits: bool, name: str, expected: str) -> None:
        if not fits:
            raise UserError(f"{source}: expected {name} {expected}, found {str(config[name])[:60]}")

    for name in (x for x in SIZES if x in config):
        most = MOST_LAYERS if name == "num_hidden_layers" else LARGEST
        expect(1 <= config[name] <= most, name, f"1 … {most}")
    for name in (x for x in CONVOLUTIONS if x in config):
        expect(1 <= len(config[name]) <= 100, name, "with 1 to 100 sizes")
        expect(all(1 <= size <= LARGEST for size in config[name]), name, f"1 … {LARGEST}")
    for name in (x for x in PROBABILITIES if x in config):
        expect(0 <= config[name] < 1, name, "at least 0 and below 1")
    outputs = config["vocab_size"]
    expect(outputs is None or 1 <= outputs <= 10 * LARGEST, "vocab_size", f"1 … {10 * LARGEST}")
    for name in (x for x in ("num_attention_heads", "num_conv_pos_embedding_groups") if x in config):
        expect(config["hidden_size"] % config[name] == 0, name, f"to divide {config['hidden_size']}")
    known = import_transformers().activations.ACT2FN
    if "position_embeddings_type" in config:
        kind = "relative_key"  # the kind of all published models
        expect(config["position_embeddings_type"] == kind, "position_embeddings_type", kind)
    for name in (x for x in ("hidden_act", "feat_extract_activation") if x in config):
        expect(config[name] in known, name, "to be an activation function of transformers")


def encoder_options(pretrained: dict[str, Any]) -> dict[str, Any]:
    """Return the options of model and features that a pretrained encoder determines, with their values.

    Options that it doesn't use have their defaults. A feature frame is a frame of the convolutional front
    end, usually 20 ms, or of Whisper's mel spectrum, 10 ms.
    """
    rate, kind = pretrained["sample_rate"], pretrained["transformers"]["model_type"]
    config, dropouts = _encoder_settings(pretrained["transformers"]), {}
    if kind == PARAKEET:
        window = shift = pretrained["mel"]["hop_length"] * config["subsampling_factor"]
    elif "stacked" in pretrained:
        shift = pretrained["stacked"]["stride"] * rate // 100
        window = shift + 15 * rate // 1000
    elif kind == WHISPER:
        window, shift = pretrained["log_mel"]["n_fft"], pretrained["log_mel"]["hop_length"]
        dropouts = {
            "model.norm": "pre",
            "model.positions": "sinusoidal",
            "model.subsampling": 2,
            "features.mel_bins": config["num_mel_bins"],
            "features.low_freq_hz": 0.0,
            "features.high_freq_hz": 8000.0,
        }
    else:
        window, shift = window_and_shift(config["conv_kernel"], config["conv_stride"])
    heads, activation = config["num_attention_heads"], config["hidden_act"]
    options = {
        "model.layers": config["num_hidden_layers"],
        "model.heads": heads,
        "model.head_dim": config["hidden_size"] // heads,
        "model.feedforward": config["intermediate_size"],
        "model.norm": "pre" if config.get("do_stable_layer_norm") else "post",
        "model.positions": "convolution" if "conv_kernel" in config else "none",
        "model.dropout": config["hidden_dropout" if "hidden_dropout" in config else "dropout"],
        "model.attention_dropout": config["attention_dropout"],
        "model.layer_drop": config["layerdrop"],
        "features.sample_rate": rate,
        "features.frame_length_ms": 1000 * window / rate,
        "features.frame_shift_ms": 1000 * shift / rate,
        "features.normalise": "none",
    }
    if activation in ACTIVATIONS:
        options["model.activation"] = activation
    defaults: dict[str, Any] = {}
    for section, schema in (("model", ModelConfig()), ("features", FeatureConfig())):
        defaults |= {f"{section}.{x.name}": getattr(schema, x.name) for x in fields(schema)}
    return {key: value for key, value in (defaults | options | dropouts).items() if key not in OWN_OPTIONS}


def window_and_shift(kernels: list[int], strides: list[int]) -> tuple[int, int]:
    """Return the window of a frame of stacked convolutions, and the shift between frames, in samples.

    Example:
        >>> window_and_shift([10, 3, 3, 3, 3, 2, 2], [5, 2, 2, 2, 2, 2, 2])
        (400, 320)
    """
    window = 1
    for kernel, stride in zip(reversed(kernels), reversed(strides), strict=True):
        window = (window - 1) * stride + kernel
    return window, prod(strides)


def empty_model(pretrained: dict[str, Any], model: ModelConfig) -> Any:
    """Return transformers' model with random weights; `model` has the dropout probabilities.

    Raises:
        UserError: transformers can't build a model of this configuration.
    """
    config = _configuration(pretrained["transformers"], model)
    with quiet(), one_line("pretrained", "a configuration of transformers"):
        return encoder_of(_class(config, "Model")(config))


def trained_model(
    folder: str | Path, pretrained: dict[str, Any], model: ModelConfig, *, head: bool = False
) -> Pretrained:
    """Return transformers' model with the weights of a folder.

    Args:
        folder: see `read_pretrained`.
        pretrained: result of `read_pretrained`.
        model: options with the dropout probabilities.
        head: whether to return the CTC head, too.

    Raises:
        UserError: weights are missing, can't be read, don't fit or aren't finite.
    """
    path, config = local_folder(folder), _configuration(pretrained["transformers"], model)
    kind = _class(config, "ForCTC" if head else "Model")
    _check_files(path, config, kind)
    with quiet(), one_line(path, "the weights of its configuration"):
        loaded, info = kind.from_pretrained(
            path,
            config=config,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            dtype=torch.float32,
            output_loading_info=True,
            key_mapping={r"^(model\.)?encoder\.": ""} if config.model_type == WHISPER else None,
        )
    # Published fine-tuned models lack the vector for masked frames; it is random, as in transformers.
    missing = sorted(x for x in info["missing_keys"] if not x.endswith("masked_spec_embed"))
    if any(x.startswith(("lm_head.", "ctc_head.")) for x in missing):
        raise UserError(
            f"{path}: expected a model with a CTC head, found an encoder alone: train one with "
            f"asr train model.encoder={folder}"
        )
    if missing:
        raise UserError(f"{path}: expected all weights, found none for {missing[0]}")
    for name, weights in loaded.state_dict().items():
        if not bool(weights.isfinite().all()):
            raise UserError(f"{path}: expected finite weights, found NaN or infinity in {name}")
    loaded.train()  # like any new module: Lightning preserves the modes of modules
    encoder = encoder_of(loaded)
    if not head:
        return Pretrained(encoder)
    last = ctc_head(loaded)
    return Pretrained(encoder, last.weight.detach().flatten(1), last.bias.detach())


def feature_extractor(pretrained: dict[str, Any]) -> Any:
    """Return transformers' feature extractor with the settings of a folder."""
    config = pretrained["transformers"]
    kind = EXTRACTORS.get(config["model_type"], "Wav2Vec2FeatureExtractor")
    settings = pretrained.get("mel") or pretrained.get("log_mel")
    if stacked := pretrained.get("stacked"):
        bins = stacked["bins"]
        settings = {"feature_size": bins, "num_mel_bins": bins, "stride": stacked["stride"]}
    elif settings is None:
        # As in training: masks would change the output of models with group normalisation.
        masked = config.get("feat_extract_norm", "layer") == "layer"
        settings = {"do_normalize": pretrained["normalise"], "return_attention_mask": masked}
    return getattr(import_transformers(), kind)(sampling_rate=pretrained["sample_rate"], **settings)


def ctc_model(pretrained: dict[str, Any], model: ModelConfig, outputs: int, blank: int) -> Any:
    """Return transformers' model with random weights and a CTC head; `blank` is the blank's output."""
    head = {"vocab_size": outputs, "pad_token_id": blank, "bos_token_id": None, "eos_token_id": None}
    config = _configuration(pretrained["transformers"] | head, model)
    with quiet():
        return _class(config, "ForCTC")(config)


def _check_files(folder: Path, config: Any, kind: Any) -> None:
    """Raise UserError unless there is a safetensors file, large enough for the configuration's weights."""
    refuse_adapter(folder)
    files = sorted(folder.glob("model*.safetensors"))
    if not files or not ((folder / WEIGHTS).exists() or (folder / SHARDS).exists()):
        others = sorted(x.name for x in folder.glob("*.bin")) + sorted(x.name for x in folder.glob("*.pt"))
        found = f"{others[0]}, a pickle, which may run code when read" if others else "none"
        raise UserError(f"{folder}: expected weights in {WEIGHTS}, found {found}")
    needed = _weights(lambda: kind(config), str(folder / CONFIG))
    size = sum(file.stat().st_size for file in files)
    if needed > size:
        raise UserError(f"{folder}: expected {needed:,} weights, as {CONFIG} says, found {size:,} bytes")


def _weights(make: Callable[[], Any], source: str) -> int:
    """Return the number of weights of a transformers model, without allocating memory for them."""
    with torch.device("meta"), quiet(), one_line(source, "the sizes of a model"):
        return sum(x.numel() for x in make().parameters())


def pretrained_files(folder: str) -> list[Path]:
    """Return the files that determine a pretrained encoder: weights and configuration."""
    return sorted(x for x in local_folder(folder).iterdir() if x.suffix in (".json", ".safetensors"))


def _class(config: Any, suffix: str) -> Any:
    """Return a transformers class of the family, e.g. `Wav2Vec2Model`; for Parakeet, with its head."""
    if config.model_type == WHISPER:
        return import_transformers().models.whisper.modeling_whisper.WhisperEncoder
    suffix = "ForCTC" if config.model_type == PARAKEET else suffix
    return getattr(import_transformers(), FAMILIES[config.model_type] + suffix)


def _settings(kind: str) -> list[str]:
    """Return the names of a family's settings; those common to all models may name files or code."""
    transformers = import_transformers()
    general = {x.name for x in fields(transformers.PreTrainedConfig)}
    names = fields(getattr(transformers, _config_class(kind)))
    return [x.name for x in names if x.name not in general]


def _configuration(values: dict[str, Any], model: ModelConfig | None = None) -> Any:
    """Return transformers' configuration; `model` has the dropout probabilities."""
    kind = values["model_type"]
    settings = {name: values[name] for name in _settings(kind) if name in values}
    transformers = import_transformers()
    if kind == PARAKEET:
        nested = values.get("encoder_config", {})
        inner = {name: nested[name] for name in _settings("parakeet_encoder") if name in nested}
        settings["encoder_config"] = transformers.ParakeetEncoderConfig(**inner)
    if model is not None and kind == WHISPER:
        settings |= {"dropout": model.dropout, "attention_dropout": model.attention_dropout}
        settings["encoder_layerdrop"] = model.layer_drop
    elif model is not None:
        place = settings["encoder_config"] if kind == PARAKEET else None
        changes = {"attention_dropout": model.attention_dropout, "layerdrop": model.layer_drop}
        changes["hidden_dropout" if place is None else "dropout"] = model.dropout
        if place is None:
            settings |= changes
        for name, value in changes.items() if place is not None else ():
            setattr(place, name, value)
    return getattr(transformers, _config_class(kind))(**settings)


def _config_class(kind: str) -> str:
    """Return the name of transformers' configuration class for a model type."""
    return {PARAKEET: "ParakeetCTCConfig", "parakeet_encoder": "ParakeetEncoderConfig"}.get(
        kind, f"{FAMILIES.get(kind)}Config"
    )


def ctc_head(model: Any) -> Any:
    """Return the last layer of a CTC model in transformers; Parakeet's weight is [V, M, 1]."""
    return model.ctc_head if model.config.model_type == PARAKEET else model.lm_head


def encoder_of(model: Any) -> Any:
    """Return the part of a transformers model before its head."""
    if model.config.model_type == WHISPER:
        return model
    return model.encoder if model.config.model_type == PARAKEET else model.base_model


def _encoder_settings(config: dict[str, Any]) -> dict[str, Any]:
    """Return an encoder's settings by their names in most families."""
    if config["model_type"] == WHISPER:
        return config | {name: config[theirs] for name, theirs in WHISPER_NAMES.items()}
    settings: dict[str, Any] = config.get("encoder_config", config)
    return settings


@contextmanager
def one_line(place: str | Path, expected: str) -> Iterator[None]:
    """Raise UserError in place of the exceptions that transformers raises for a folder it can't read."""
    try:
        yield
    except Exception as error:  # also from safetensors and huggingface_hub
        found = " ".join(str(error).split())[:300]
        raise UserError(f"{place}: expected {expected}, found: {found}") from error
