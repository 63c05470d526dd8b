"""The acoustic encoder: subsampling, positional information and blocks."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from asr.attention.hashing import number_layers
from asr.attention.multihead import SelfAttention
from asr.attention.products import Conv1d, Linear
from asr.attention.table import layer_names
from asr.config.schedule import layer_factors
from asr.lengths import zero_padding
from asr.model.blocks import Block
from asr.model.dropout import Dropout
from asr.model.frames import through_blocks
from asr.model.options import ModelConfig


class Subsampling(nn.Module):
    """Projection of features to the model size, with time subsampled by 1, 2, 4 or 8.

    Each strided convolution halves the number of frames (kernel 5, then 3, GELU). Padding is zeroed before
    every convolution, so that it doesn't influence valid frames.

    Args:
        bins: F.
        size: M.
        factor: subsampling factor, 1, 2, 4 or 8.
    """

    def __init__(self, bins: int, size: int, factor: int) -> None:
        super().__init__()
        kernels = {1: [], 2: [5], 4: [5, 3], 8: [5, 3, 3]}[factor]
        self.convolutions = nn.ModuleList(
            Conv1d(bins if i == 0 else size, size, kernel, stride=2, padding=kernel // 2)
            for i, kernel in enumerate(kernels)
        )
        self.projection = nn.Identity() if kernels else Linear(bins, size)

    def lengths(self, frames: Tensor) -> Tensor:
        """Return the number of encoder frames for [B] feature frames, [B]."""
        for _ in self.convolutions:
            frames = (frames + 1) // 2
        return frames

    def forward(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Subsample [B, T, F] with [B] lengths to [B, T', M] with [B] lengths."""
        x = zero_padding(features, lengths)
        for convolution in self.convolutions:
            x = nn.functional.gelu(convolution(x.transpose(1, 2))).transpose(1, 2)
            lengths = (lengths + 1) // 2
            x = zero_padding(x, lengths)
        return self.projection(x), lengths


def sinusoidal_positions(frames: int, size: int, device: torch.device) -> Tensor:
    """Return the sinusoidal positional encoding of Vaswani et al. 2017, section 3.5.

    Args:
        frames: T.
        size: M.
        device: device of the result.

    Returns:
        [T, M].
    """
    position = torch.arange(frames, device=device, dtype=torch.float32).unsqueeze(1)
    rate = torch.exp(torch.arange(0, size, 2, device=device) * (-math.log(10000.0) / size))
    angle = position * rate
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)[..., :size]


class SinusoidalPositions(nn.Module):
    """Adds the sinusoidal encoding.

    Args:
        scale: factor of the encoding.
    """

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Map [B, T, M] to [B, T, M]."""
        return x + self.scale * sinusoidal_positions(x.shape[1], x.shape[2], x.device).to(x.dtype)


class ConvolutionalPositions(nn.Module):
    """Adds a convolution over neighbouring frames, a relative positional encoding.

    As in wav2vec 2.0 (Baevski et al. 2020, section 2). Frame t depends on frames t − kernel/2 … t + kernel/2,
    whatever its position and the length of the recording.

    Args:
        size: M.
        groups: number of groups of the convolution, a divisor of M.
        kernel: kernel size in frames, odd.
    """

    def __init__(self, size: int, groups: int, kernel: int) -> None:
        super().__init__()
        self.convolution = Conv1d(size, size, kernel, padding=kernel // 2, groups=groups)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Map [B, T, M] with [B] lengths to [B, T, M]."""
        near = self.convolution(zero_padding(x, lengths).transpose(1, 2)).transpose(1, 2)
        return x + nn.functional.gelu(near)


class Encoder(nn.Module):
    """The encoder, from filter banks to encoder states.

    Args:
        config: architecture.
        bins: mel bins of the input, F.
        attention: mechanism of all layers, e.g. `i-clustered-100`, or of each: `full*3,local-64*9`.
        backend: `auto`, `reference` or `native`.

    Attributes:
        factors: number of encoder frames that a frame of each block stands for.
    """

    def __init__(
        self, config: ModelConfig, bins: int, attention: str = "full", backend: str = "auto"
    ) -> None:
        super().__init__()
        size = config.size
        self.subsampling = Subsampling(bins, size, config.subsampling)
        self.positions: nn.Module | None = None  # rotary positions are applied in the attention layers
        if config.positions == "sinusoidal" and config.position_scale:
            self.positions = SinusoidalPositions(config.position_scale)
        elif config.positions == "convolution":
            self.positions = ConvolutionalPositions(size, config.heads, config.position_kernel)
        self.dropout = Dropout(config.dropout)
        rotary_base = config.position_base if config.positions == "rotary" else None
        self.blocks = nn.ModuleList(
            Block(
                config,
                name,
                backend,
                rotary_base=rotary_base,
                skip=config.layer_drop * (i + 1) / config.layers,
            )
            for i, name in enumerate(layer_names(attention, config.layers))
        )
        self.factors = layer_factors(config.frames, config.layers)
        number_layers(self.blocks)
        for module in self.blocks.modules():
            if isinstance(module, SelfAttention):
                # `subsampling` zeroes padding; later modules see single frames or zero their input, and loss
                # and search skip padding.
                module.finite_padding = True
        # Only pre-norm transformer blocks leave the residual stream unnormalised.
        unnormed = config.block == "transformer" and config.norm == "pre"
        self.norm = nn.LayerNorm(size) if unnormed else nn.Identity()

    def lengths(self, frames: Tensor) -> Tensor:
        """Return the number of encoder frames for [B] feature frames, [B]."""
        return self.subsampling.lengths(frames)

    def forward(
        self, features: Tensor, lengths: Tensor, tap: Callable[[int, Tensor], Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Encode features.

        Args:
            features: [B, T, F].
            lengths: [B] valid frames.
            tap: maps a block's number, from 1, and its output [B, T', M] at the encoder's rate to the input
                of the next block; not called for the last block.

        Returns:
            States [B, T', M] and [B] valid encoder frames, where T' is T / subsampling rounded up.
        """
        x, lengths = self.subsampling(features, lengths)
        if self.positions is not None:
            x = self.positions(x, lengths)
        x = through_blocks(self.blocks, self.factors, self.dropout(x), lengths, tap=tap)
        return self.norm(x), lengths
