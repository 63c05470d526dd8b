"""Encoder blocks: transformer, Conformer and E-Branchformer, with any attention mechanism."""

import torch
from torch import Tensor, nn

from asr.attention import build_self_attention
from asr.attention.layer import FrameRate, SelfAttentionLayer
from asr.attention.none import NoAttention
from asr.attention.products import Activated, Conv1d, Linear
from asr.lengths import zero_padding
from asr.model.dropout import Dropout
from asr.model.options import BlockConfig

# Frames per call of a feed-forward layer, whose hidden states need the most memory on long recordings.
BLOCK_FRAMES = 6000

LAYERS = {"gelu": nn.GELU, "relu": nn.ReLU, "swish": nn.SiLU}


class Residual(nn.Module):
    """A sublayer f with normalisation, dropout, stochastic depth and residual connection.

    norm=pre: x + s·drop(f(norm(x))); norm=post: norm(x + s·drop(f(x))) (*On Layer Normalization in the
    Transformer Architecture*, Xiong et al. 2020).

    Stochastic depth (Huang et al. 2016) skips f for each utterance with probability p in training and divides
    by 1 − p otherwise.

    Args:
        sublayer: f, maps [B, T, M] with [B] lengths to [B, T, M].
        config: `norm`, `dropout` and sizes.
        skip: p.
        scale: s.
    """

    def __init__(self, sublayer: nn.Module, config: BlockConfig, skip: float, scale: float = 1.0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.size)
        self.sublayer = sublayer
        self.dropout = Dropout(config.dropout)
        self.first, self.skip, self.scale = config.norm == "pre", skip, scale

    def forward(self, x: Tensor, lengths: Tensor, rate: FrameRate | None = None) -> Tensor:
        """Map [B, T, M] with [B] lengths to [B, T, M]."""
        given = {"rate": rate} if rate and getattr(self.sublayer, "takes_rate", False) else {}
        y = self.dropout(self.sublayer(self.norm(x) if self.first else x, lengths, **given))
        if self.training and self.skip:
            kept_B11 = torch.rand(len(y), 1, 1, device=y.device) >= self.skip
            y = y * kept_B11 / (1 - self.skip)
        y = torch.add(x, y, alpha=self.scale)
        return y if self.first else self.norm(y)


class FeedForward(nn.Module):
    """Two linear layers with an activation and dropout between them, on blocks of frames."""

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.layers = Activated(
            Linear(config.size, config.feedforward),
            LAYERS[config.activation](),
            Dropout(config.dropout),
            Linear(config.feedforward, config.size),
        )

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Map [B, T, M] to [B, T, M]."""
        # A compiled graph takes all frames at once, because their number is dynamic.
        if torch.compiler.is_compiling() or x.shape[1] <= BLOCK_FRAMES:
            return self.layers(x)
        return torch.cat([self.layers(part) for part in x.split(BLOCK_FRAMES, dim=1)], dim=1)


class DepthwiseConvolution(nn.Module):
    """A convolution of each channel over time that doesn't see padding.

    Args:
        channels: number of channels.
        kernel: kernel size in frames, odd.
    """

    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()
        self.convolution = Conv1d(channels, channels, kernel, padding=kernel // 2, groups=channels)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Map [B, T, channels] with [B] lengths to [B, T, channels]."""
        return self.convolution(zero_padding(x, lengths).transpose(1, 2)).transpose(1, 2)


class ConvolutionModule(nn.Module):
    """The Conformer's convolution (Gulati et al. 2020, figure 2).

    The depthwise convolution is followed by layer instead of batch normalisation, so that neither padding nor
    other utterances in the batch change a result.
    """

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.gated = Linear(config.size, 2 * config.size)
        self.depthwise = DepthwiseConvolution(config.size, config.convolution_kernel)
        self.norm = nn.LayerNorm(config.size)
        self.activation = LAYERS[config.activation]()
        self.output = Linear(config.size, config.size)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Map [B, T, M] with [B] lengths to [B, T, M]."""
        y = self.depthwise(nn.functional.glu(self.gated(x)), lengths)
        return self.output(self.activation(self.norm(y)))


class GatingMLP(nn.Module):
    """A feed-forward layer that a convolution gates: the local branch of Branchformer's cgMLP.

    h = activation(W₁x); y = W₂(a ⊙ convolution(norm(b))), where a and b are the halves of h (*Branchformer*,
    Peng et al. 2022).
    """

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        half = config.feedforward // 2
        self.input = Activated(Linear(config.size, config.feedforward), LAYERS[config.activation]())
        self.norm = nn.LayerNorm(half)
        self.depthwise = DepthwiseConvolution(half, config.convolution_kernel)
        self.dropout = Dropout(config.dropout)
        self.output = Linear(half, config.size)
        # The gate starts close to 1, as in gMLP (Liu et al. 2021, section 2.1).
        nn.init.normal_(self.depthwise.convolution.weight, std=1e-6)
        nn.init.ones_(self.depthwise.convolution.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Map [B, T, M] with [B] lengths to [B, T, M]."""
        a, b = self.input(x).chunk(2, dim=-1)
        return self.output(self.dropout(a * self.depthwise(self.norm(b), lengths)))


class Branches(nn.Module):
    """E-Branchformer's parallel branches and their merge (Kim et al. 2022).

    y = W(c + convolution(c)), where c is the concatenation of attention(x) and cgMLP(x); without attention,
    cgMLP(x) alone.

    Args:
        attention: self-attention layer, the global branch.
        config: sizes.
    """

    def __init__(self, attention: SelfAttentionLayer, config: BlockConfig) -> None:
        super().__init__()
        self.attention, self.takes_rate = attention, attention.takes_rate
        self.local = GatingMLP(config)
        self.alone = isinstance(attention, NoAttention)
        size = config.size if self.alone else 2 * config.size
        self.depthwise = DepthwiseConvolution(size, config.convolution_kernel)
        self.merge = Linear(size, config.size)

    def forward(self, x: Tensor, lengths: Tensor, **rate: FrameRate) -> Tensor:
        """Map [B, T, M] with [B] lengths to [B, T, M]; `rate` goes to the attention."""
        local = self.local(x, lengths)
        both = local if self.alone else torch.cat((self.attention(x, lengths, **rate), local), dim=-1)
        return self.merge(both + self.depthwise(both, lengths))


class Block(nn.Module):
    """Sublayers in sequence.

    transformer: attention, feed-forward (Vaswani et al. 2017). conformer: ½ feed-forward, attention,
    convolution, ½ feed-forward, norm (Gulati et al. 2020). ebranchformer: ½ feed-forward, branches, ½
    feed-forward, norm (Kim et al. 2022). With norm=post, the final norm is the last sublayer's.
    attention=none leaves out the attention sublayer or branch.

    Args:
        config: kind, sizes, dropout.
        attention: name of the mechanism.
        backend: `auto`, `reference` or `native`.
        rotary_base: base of rotary positions; None: no rotary positions.
        skip: probability of skipping a sublayer in training.
    """

    def __init__(
        self,
        config: BlockConfig,
        attention: str,
        backend: str,
        rotary_base: float | None = None,
        skip: float = 0.0,
    ) -> None:
        super().__init__()
        attend = build_self_attention(
            attention,
            model_dim=config.size,
            heads=config.heads,
            head_dim=config.head_dim,
            dropout=config.attention_dropout,
            backend=backend,
            rotary_base=rotary_base,
            bias=config.attention_bias,
        )
        global_ = [attend]
        if isinstance(attend, NoAttention):
            global_, self.left_out = [], attend  # registered among the model's layers
        if config.block == "transformer":
            sublayers = [Residual(x, config, skip) for x in (*global_, FeedForward(config))]
        else:
            middle = [*global_, ConvolutionModule(config)]
            if config.block == "ebranchformer":
                middle = [Branches(attend, config)]
            half = [Residual(FeedForward(config), config, skip, scale=0.5) for _ in range(2)]
            sublayers = [half[0], *(Residual(x, config, skip) for x in middle), half[1]]
        self.sublayers = nn.ModuleList(sublayers)
        normed = config.norm == "post" or config.block == "transformer"
        self.norm = nn.Identity() if normed else nn.LayerNorm(config.size)

    def forward(self, x: Tensor, lengths: Tensor, rate: FrameRate | None = None) -> Tensor:
        """Map [B, T, M] with [B] lengths, at the encoder's rate or at `rate`, to [B, T, M]."""
        for sublayer in self.sublayers:
            x = sublayer(x, lengths, rate)
        return self.norm(x)
