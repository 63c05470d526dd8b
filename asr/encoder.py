"""The acoustic encoder: subsampling, positions, pre-norm transformer blocks."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from asr.attention import build_self_attention
from asr.config import option
from asr.errors import UserError
from asr.lengths import zero_padding

POSITIONS = ("sinusoidal", "rotary")


@dataclass
class ModelConfig:
    """Size and shape of the encoder."""

    layers: int = option(9, help="transformer blocks")
    heads: int = option(6, help="attention heads, H")
    head_dim: int = option(32, help="size of a head, D; the model size is heads × head_dim")
    feedforward: int = option(768, help="hidden size of the feed-forward layers")
    dropout: float = option(0.1, help="dropout after attention, feed-forward and positions, 0 … 1")
    attention_dropout: float = option(0.0, help="dropout on attention weights, 0 … 1")
    subsampling: int = option(1, help="encoder frames are this many times longer: 1 (the paper's), 2 or 4")
    positions: str = option("sinusoidal", help=f"position information: {' | '.join(POSITIONS)}")
    position_scale: float = option(1.0, help="sinusoidal positions are multiplied by this")


class Subsampling(nn.Module):
    """Features to model size, shortening time by 1, 2 or 4 with strided convolutions.

    Each convolution halves time (kernel 5, then 3, GELU). A frame's receptive field ends at the
    utterance's end: padding is zeroed before every convolution.

    Args:
        bins: F.
        size: M.
        factor: 1, 2 or 4.
    """

    def __init__(self, bins: int, size: int, factor: int) -> None:
        super().__init__()
        if factor not in (1, 2, 4):
            raise UserError(f"model.subsampling={factor}: expected 1, 2 or 4")
        kernels = {1: [], 2: [5], 4: [5, 3]}[factor]
        self.convolutions = nn.ModuleList(
            nn.Conv1d(bins if i == 0 else size, size, kernel, stride=2, padding=kernel // 2)
            for i, kernel in enumerate(kernels)
        )
        self.projection = nn.Identity() if kernels else nn.Linear(bins, size)

    def lengths(self, frames: Tensor) -> Tensor:
        """Return the encoder frames of `frames` feature frames: [B] → [B]."""
        for _ in self.convolutions:
            frames = (frames + 1) // 2
        return frames

    def forward(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Map [B, T, F] with [B] lengths to [B, T', M] with [B] lengths."""
        x = zero_padding(features, lengths)
        for convolution in self.convolutions:
            x = nn.functional.gelu(convolution(x.transpose(1, 2))).transpose(1, 2)
            lengths = (lengths + 1) // 2
            x = zero_padding(x, lengths)
        return self.projection(x), lengths


def sinusoidal_positions(frames: int, size: int, device: torch.device) -> Tensor:
    """Return the fixed positional encoding [frames, size] of Vaswani et al. 2017, section 3.5."""
    position = torch.arange(frames, device=device, dtype=torch.float32).unsqueeze(1)
    rate = torch.exp(torch.arange(0, size, 2, device=device) * (-math.log(10000.0) / size))
    angle = position * rate
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)[:, :size]


class Block(nn.Module):
    """Pre-norm transformer block: x + attention(norm(x)), then x + feedforward(norm(x)).

    Args:
        config: sizes and dropout.
        attention: the mechanism's name.
        backend: `auto`, `reference` or `native`.
    """

    def __init__(self, config: ModelConfig, attention: str, backend: str) -> None:
        super().__init__()
        size = config.heads * config.head_dim
        self.attention_norm = nn.LayerNorm(size)
        self.attention = build_self_attention(
            attention,
            model_dim=size,
            heads=config.heads,
            head_dim=config.head_dim,
            dropout=config.attention_dropout,
            backend=backend,
            rotary=config.positions == "rotary",
        )
        self.feedforward_norm = nn.LayerNorm(size)
        self.feedforward = nn.Sequential(
            nn.Linear(size, config.feedforward),
            nn.GELU(),
            nn.Dropout(config.dropout),
            nn.Linear(config.feedforward, size),
        )
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Map [B, T, M] with [B] lengths to [B, T, M]."""
        x = x + self.dropout(self.attention(self.attention_norm(x), lengths))
        return x + self.dropout(self.feedforward(self.feedforward_norm(x)))


class Encoder(nn.Module):
    """Filter banks to encoder states; the attention mechanism is a name.

    Args:
        config: sizes.
        bins: F, mel bins of the input.
        attention: the mechanism in every layer, e.g. `i-clustered-100`.
        backend: `auto`, `reference` or `native`.
    """

    def __init__(
        self, config: ModelConfig, bins: int, attention: str = "full", backend: str = "auto"
    ) -> None:
        super().__init__()
        if config.positions not in POSITIONS:
            raise UserError(f"model.positions={config.positions!r}: expected one of {POSITIONS}")
        size = config.heads * config.head_dim
        self.position_scale = config.position_scale if config.positions == "sinusoidal" else 0.0
        self.subsampling = Subsampling(bins, size, config.subsampling)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config, attention, backend) for _ in range(config.layers))
        self.norm = nn.LayerNorm(size)

    def forward(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Encode.

        Args:
            features: [B, T, F].
            lengths: [B] valid frames.

        Returns:
            [B, T', M] and [B] valid encoder frames, T' = T / subsampling rounded up.
        """
        x, lengths = self.subsampling(features, lengths)
        if self.position_scale:
            x = x + self.position_scale * sinusoidal_positions(x.shape[1], x.shape[2], x.device).to(x.dtype)
        x = self.dropout(x)
        for block in self.blocks:
            x = block(x, lengths)
        return self.norm(x), lengths
