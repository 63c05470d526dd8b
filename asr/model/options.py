"""Options of the model: features, augmentation, architecture, and how to load a trained one."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from asr.augmentation.options import WaveformConfig
from asr.config import option
from asr.config.names import BACKENDS, MECHANISMS, PRECISIONS
from asr.config.schedule import layer_factors
from asr.errors import UserError

FRAMES = (
    "encoder frames averaged into each frame of a layer, for all layers (2) or one by one (1,2*3, or 1,2* "
    "for any depth), or the share of similar frames to join (merge-0.5:cap=2,at=2)"
)

# Options of earlier versions' models, by the value that this version acts by.
LOST: dict[str, Any] = {
    "normalise_window_s": 10.0,
    "position_shift": 0,
    "alpha": 16,
    "intermediate_weight": 0.3,
    "plateau_factor": 0.5,
    "room_t60_s": [0.2, 0.6],
}


def without_lost(stored: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return the options of a stored model, or of a run, without those in `LOST`.

    Raises:
        UserError: the training had a value by which this version can't act; names `source`.
    """
    kept = {}
    for name, value in stored.items():
        if isinstance(value, Mapping):
            kept[name] = without_lost(value, source)
        elif name not in LOST:
            kept[name] = value
        elif value != LOST[name]:
            raise UserError(f"{source}: {name}={value}: this version knows {LOST[name]} only")
    return kept


@dataclass
class LoadOptions:
    """Options of the commands that load a recogniser."""

    attention: str = option(
        "",
        help="attention mechanism, one for each layer (full*3,local-64*9), or one of your own "
        "(./nystrom.py:Nystrom-32); empty: as in training",
        affects="result",
        suggested=MECHANISMS,
    )
    frames: str = option("", help=f"{FRAMES}; empty: as in training", affects="result")
    backend: str = option(
        "auto",
        help="auto | reference (PyTorch) | native (compiled kernels)",
        affects="result",
        choices=BACKENDS,
    )
    checkpoint: str = option(
        "auto",
        help="auto (average, else best, else last) | average | best | last | name of a file in checkpoints/",
        affects="place",
    )
    device: str = option("auto", help="auto | cpu | cuda | cuda:<number>", affects="cost")
    precision: str = option(
        "fp32",
        help=f"precision of matrix products: {' | '.join(PRECISIONS)}; auto: fp32, as bf16 can cost accuracy",
        affects="result",
        choices=PRECISIONS,
    )


NORMALISATIONS = ("utterance", "corpus", "window", "none")


@dataclass
class FeatureConfig:
    """Filter banks and their normalisation."""

    sample_rate: int = option(
        16000,
        help="sample rate; other audio is resampled to it",
        affects="result",
        unit="Hz",
        minimum=1000,
        maximum=192_000,
    )
    mel_bins: int = option(
        80, help="number of mel filters, usually 40 or 80", affects="result", minimum=4, maximum=1000
    )
    frame_length_ms: float = option(
        25.0, help="length of the analysis window", affects="result", unit="ms", minimum=1, maximum=1000
    )
    frame_shift_ms: float = option(
        10.0, help="distance between successive frames", affects="result", unit="ms", minimum=1, maximum=1000
    )
    low_freq_hz: float = option(
        20.0, help="lower edge of the first filter", affects="result", unit="Hz", maximum=1e5
    )
    high_freq_hz: float = option(
        -400.0,
        help="upper edge of the last filter; ≤ 0: relative to the Nyquist frequency",
        affects="result",
        unit="Hz",
        minimum=-1e5,
        maximum=1e5,
    )
    floor: float = option(
        2.0**-53,
        help="minimum energy of a mel filter, for samples in −1 … 1; 2^-53 is Kaldi's for 16-bit samples",
        affects="result",
        minimum=1e-30,
        maximum=1,
        before=2.0**-23,
    )
    normalise: str = option(
        "utterance",
        help=f"mean–variance normalisation: {' | '.join(NORMALISATIONS)}; corpus and none have no look-ahead",
        affects="result",
        choices=NORMALISATIONS,
    )

    def check(self) -> None:
        """Raise UserError unless low_freq_hz < high_freq_hz ≤ half of the sample rate."""
        nyquist_hz = self.sample_rate / 2
        high_hz = self.high_freq_hz if self.high_freq_hz > 0 else nyquist_hz + self.high_freq_hz
        if not self.low_freq_hz < high_hz <= nyquist_hz:
            raise UserError(
                f"features.low_freq_hz={self.low_freq_hz:g}, features.high_freq_hz={self.high_freq_hz:g}: "
                f"expected 0 ≤ low < high ≤ {nyquist_hz:g} Hz, half of the sample rate; found {high_hz:g} Hz"
            )


@dataclass
class AugmentConfig(WaveformConfig):
    """Augmentation in training; evaluation uses none."""

    frequency_masks: int = option(
        0, help="SpecAugment: number of frequency masks", affects="result", maximum=1000
    )
    frequency_mask_bins: int = option(
        8,
        help="SpecAugment: widest frequency mask",
        affects="result",
        only=("frequency_masks",),
        unit="bins",
        maximum=1000,
    )
    time_mask_every: int = option(
        0, help="SpecAugment: frames per time mask; 0: no time masks", affects="result", unit="frames"
    )
    time_mask_frames: int = option(
        12, help="SpecAugment: widest time mask", affects="result", only=("time_mask_every",), unit="frames"
    )
    frames: list[str] = option(
        [],
        help="stochastic frame rates: schedules such as model.frames, of which each batch draws one; empty: "
        "model.frames, which also evaluation uses",
        affects="result",
    )


ACTIVATIONS = ("gelu", "relu", "swish")


@dataclass
class BlockConfig:
    """Kind and sizes of the encoder's blocks."""

    block: str = option(
        "transformer",
        help="transformer | conformer | ebranchformer",
        affects="result",
        choices=("transformer", "conformer", "ebranchformer"),
    )
    layers: int = option(9, help="blocks", affects="result", minimum=1, maximum=1000)
    heads: int = option(6, help="attention heads, H", affects="result", minimum=1, maximum=1024)
    head_dim: int = option(
        32, help="head size, D; the model size is heads × head_dim", affects="result", minimum=1, maximum=4096
    )
    feedforward: int = option(
        768, help="hidden size of the feed-forward layers", affects="result", minimum=1, maximum=1_000_000
    )
    activation: str = option(
        "gelu", help=f"activation function: {' | '.join(ACTIVATIONS)}", affects="result", choices=ACTIVATIONS
    )
    norm: str = option(
        "pre",
        help="layer normalisation before or after each sublayer: pre | post",
        affects="result",
        choices=("pre", "post"),
    )
    convolution_kernel: int = option(
        31,
        help="kernel size, odd",
        affects="result",
        only=("block", ("conformer", "ebranchformer")),
        unit="encoder frames",
        minimum=1,
        maximum=10_001,
    )
    dropout: float = option(
        0.1, help="dropout after attention, feed-forward and positions", affects="result", maximum=1
    )
    attention_dropout: float = option(0.0, help="dropout on attention weights", affects="result", maximum=1)
    attention_bias: bool = option(
        True,
        help="biases in the attention projections; mechanisms with parameters of their own keep theirs",
        affects="result",
    )
    layer_drop: float = option(
        0.0,
        help="stochastic depth: probability of skipping a sublayer of the last block; it rises linearly "
        "from the first",
        affects="result",
        maximum=0.99,
    )

    def check(self) -> None:
        """Raise UserError for an even kernel size, or an odd hidden size that must be halved."""
        if self.convolution_kernel % 2 == 0:
            raise UserError(
                f"model.convolution_kernel={self.convolution_kernel}: expected an odd number of frames"
            )
        if self.block == "ebranchformer" and self.feedforward % 2:
            raise UserError(
                f"model.feedforward={self.feedforward}: expected an even size with model.block=ebranchformer"
            )

    @property
    def size(self) -> int:
        """Model size M."""
        return self.heads * self.head_dim


@dataclass
class LoraConfig:
    """Low-rank updates of the attention's projections in fine-tuning."""

    rank: int = option(
        0,
        help="LoRA: rank of the updates of the attention's projections, trained with the head only; needs "
        "model.encoder or init_from; 0: train all weights",
        affects="result",
        maximum=4096,
    )


POSITIONS = ("sinusoidal", "rotary", "convolution", "none")


@dataclass
class ModelConfig(BlockConfig):
    """Architecture of the encoder, or a pretrained one."""

    encoder: str = option(
        "",
        help="folder, or name on the Hugging Face Hub, of a speech model of transformers, such as wav2vec "
        "2.0, Parakeet-CTC or Whisper; it determines features, sizes and initial weights",
        affects="result",
    )
    freeze_encoder_steps: int = option(
        0,
        help="number of initial steps that train only the head",
        affects="result",
        only=("encoder",),
        unit="optimiser steps",
    )
    lora: LoraConfig = field(default_factory=LoraConfig)
    subsampling: int = option(
        1,
        help="feature frames per encoder frame: 1 (as in the paper), 2, 4 or 8",
        affects="result",
        choices=(1, 2, 4, 8),
    )
    frames: str = option("1", help=f"{FRAMES}; labels keep the encoder's rate", affects="result")
    positions: str = option(
        "sinusoidal",
        help=f"positional information: {' | '.join(POSITIONS)}",
        affects="result",
        choices=POSITIONS,
    )
    position_scale: float = option(
        1.0,
        help="scale of the encoding",
        affects="result",
        only=("positions", "sinusoidal"),
        maximum=1e6,
    )
    position_base: float = option(
        10_000.0,
        help="base of the angles; long-context models have up to 1.5 million",
        affects="result",
        only=("positions", "rotary"),
        minimum=1,
        maximum=1e12,
    )
    position_kernel: int = option(
        31,
        help="kernel size, odd",
        affects="result",
        only=("positions", "convolution"),
        unit="frames",
        minimum=1,
        maximum=10_001,
    )

    self_conditioned: bool = option(
        False,
        help="add the posteriors of the blocks in loss.intermediate to the input of the next block",
        affects="result",
    )

    def check(self) -> None:
        """Raise UserError for an even kernel, or a schedule of frames that doesn't fit the layers."""
        layer_factors(self.frames, self.layers)
        if self.position_kernel % 2 == 0:
            raise UserError(f"model.position_kernel={self.position_kernel}: expected an odd number of frames")


EXPORTS = {"safetensors": "", "transformers": "", "sherpa-onnx": "", "torch_export": ".pt2", "onnx": ".onnx"}


@dataclass
class ExportOptions:
    """Options of `asr export`."""

    out: str = option(
        "",
        help="folder (safetensors, transformers, sherpa-onnx) or file (.pt2, .onnx); empty: in the run "
        "folder or beside the checkpoint",
        affects="place",
    )
    format: str = option(
        "",
        help="safetensors: weights, configuration and tokenizer, readable by asr and Recognizer.load; "
        "transformers: a pretrained encoder with its head, for AutoModelForCTC; sherpa-onnx: a graph from "
        "samples and its tokens, for OfflineRecognizer.from_omnilingual_asr_ctc; "
        "torch_export | onnx: a graph from filter banks, or samples with a pretrained encoder, to "
        "log-probabilities; empty: by the suffix of out",
        affects="result",
        choices=("", *EXPORTS),
    )
    checkpoint: str = option(
        "auto", help="auto | average | best | last, or a file in checkpoints/", affects="result"
    )
    attention: str = option(
        "",
        help="attention mechanism, or one for each layer, in place of the trained one; empty: as trained",
        affects="result",
        suggested=MECHANISMS,
    )
    frames: str = option(
        "", help=f"{FRAMES}, in place of the trained ones; empty: as trained", affects="result"
    )
