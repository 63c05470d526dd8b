"""Mamba: a state-space layer that scans the utterance forwards and backwards."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.attention.layer import OwnParameterLayer
from asr.attention.products import Linear
from asr.attention.softmax import filled_lengths, without_padding
from asr.attention.spec import causal_option
from asr.config import option
from asr.errors import UserError
from asr.lengths import keep_mask, zero_padding

# Initial ranges of −A (uniform) and Δ (log-uniform), as in the authors' code.
RATES = (1.0, 16.0)
STEPS = (0.001, 0.1)
EPSILON = 1e-5  # for the norm
SCALE = 2.0**-20  # applied before the norm, which undoes it: squares of large values would exceed float32


@dataclass
class MambaOptions:
    """Directions and sizes."""

    causal: bool = causal_option()
    state: int = option(
        16, help="size of the state of a channel, S", affects="result", minimum=1, maximum=4096
    )
    expand: int = option(
        1, help="channels as a multiple of the model size", affects="result", minimum=1, maximum=16
    )
    width: int = option(
        5, help="kernel size of the convolution", affects="result", minimum=1, maximum=63, step=2
    )
    chunk: int = option(
        32,
        help="positions computed at once; doesn't change results",
        affects="cost",
        minimum=1,
        maximum=4096,
    )


class Mamba(OwnParameterLayer):
    """A state-space layer that scans the utterance from its start and from its end.

    y = W norm(silu(z) ∗ (s→ + s← + D u)), where s→ scans the utterance from its start, s← from its end.

    Dao & Gu 2024, *Transformers are SSMs* (arXiv 2405.21060), Mamba-2: z, u, B, C and Δ are projections of
    the input; u, B and C pass a depthwise convolution over time and SiLU. In each head, s_t = h_tᵀ C_t with
    h_t = exp(Δ_t A) h_{t−1} + Δ_t B_t u_tᵀ, Δ = softplus(…) and A < 0. Heads share B and C. The norm is
    RMSNorm.

    The two directions follow *Mamba in Speech* (Zhang et al. 2024, arXiv 2405.12609), InnBiMamba: they share
    the projections to z and u and the projection of their sum, and have separate B, C, Δ and A. As in *Hydra*
    (Hwang et al. 2024, arXiv 2407.09941), they also share D and a centred convolution, so that products with
    u are computed once for both.

    With expand=1, a layer has 3·M² + 4·M·S + O(M·H) parameters: at M = 192 and S = 16, 127,000 where full
    attention has 148,000. Convolution, decays and states are in float32. Time and memory are linear in N.

    Args:
        name, backend: see `OwnParameterLayer`.
        model_dim: M.
        heads: H, a divisor of M · expand; each has M · expand / H channels.
        head_dim, dropout: unused; there are no weights to drop.
        options: S, and the number of channels of u and z as a multiple of M: Mamba-2 has 2, and no
            feed-forward part. If `causal`, there is only s→, and the convolution sees no later positions.
    """

    options = MambaOptions
    source = (
        "[Dao & Gu 2024, Mamba-2](https://arxiv.org/abs/2405.21060); "
        "[Zhang et al. 2024, Mamba in Speech](https://arxiv.org/abs/2405.12609)"
    )
    time = memory = "N·state"

    def __init__(
        self,
        name: str,
        backend: str,
        model_dim: int,
        heads: int,
        head_dim: int,
        dropout: float,
        options: MambaOptions,
    ) -> None:
        super().__init__(name, backend)
        inner, ways = options.expand * model_dim, 1 if options.causal else 2
        if inner % heads:
            raise UserError(f"attention {name!r}: {inner} channels are not a multiple of {heads} heads")
        state, width, chunk = options.state, options.width, options.chunk
        self.heads, self.state, self.chunk, self.inner, self.ways = heads, state, chunk, inner, ways
        channels, bound = inner + ways * 2 * state, width**-0.5  # as in nn.Conv1d
        self.input = Linear(model_dim, inner + channels, bias=False)
        # Separate from `input`, because a matrix product with an odd number of columns takes a third longer.
        self.step = Linear(model_dim, ways * heads)
        self.taps_C1W = nn.Parameter(torch.empty(channels, 1, width).uniform_(-bound, bound))
        self.taps_bias = nn.Parameter(torch.empty(channels).uniform_(-bound, bound))
        # One-dimensional, because optimisers don't decay vectors.
        self.log_rate = nn.Parameter(torch.empty(ways * heads).uniform_(*RATES).log())  # log −A
        self.skip = nn.Parameter(torch.ones(heads))  # D
        self.norm_weight = nn.Parameter(torch.ones(inner))
        self.output = Linear(inner, model_dim, bias=False)
        step = torch.empty(ways * heads).uniform_(*map(math.log, STEPS)).exp()
        with torch.no_grad():
            self.step.bias.copy_(step.expm1().log())  # the inverse of softplus

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Mix: [B, N, M] with [B] lengths to [B, N, M]."""
        x, lengths = without_padding(x, lengths), filled_lengths(lengths, x)
        if x.shape[1] == 0:  # convolutions refuse empty sequences
            return x
        projected, step = self.input(x), self.step(x)
        dtype = torch.promote_types(x.dtype, torch.float32)
        with torch.autocast(x.device.type, enabled=False):
            gate_BNE, mixed_BNC = projected.to(dtype).split((self.inner, self.taps_bias.numel()), dim=-1)
            u_BNE, pairs_BNC = F.silu(self._convolve(mixed_BNC)).split(
                (self.inner, 2 * self.ways * self.state), dim=-1
            )
            keys_KBNS, queries_KBNS = pairs_BNC.unflatten(-1, (2, self.ways, self.state)).movedim(
                (2, 3), (0, 1)
            )
            step_KBNH = F.softplus(step.to(dtype)).unflatten(-1, (self.ways, self.heads)).movedim(2, 0)
            s_BNHD = scan(
                u_BNE.unflatten(-1, (self.heads, -1)),
                step_KBNH.masked_fill(~keep_mask(lengths, x.shape[1]).unsqueeze(-1), 0.0),
                self.log_rate.to(dtype).exp().view(self.ways, self.heads),
                keys_KBNS,
                queries_KBNS * SCALE,
                self.skip.to(dtype) * SCALE,
                self.chunk,
            )
            gated_BNE = s_BNHD.flatten(2) * F.silu(gate_BNE)
            weight, epsilon = self.norm_weight.to(dtype), EPSILON * SCALE**2
            y = F.rms_norm(gated_BNE, weight.shape, weight, epsilon)
        return zero_padding(self.output(y.to(projected.dtype)), lengths)

    def _convolve(self, x_BNC: Tensor) -> Tensor:
        """Convolve each channel over time."""
        taps_C11W = self.taps_C1W.to(x_BNC.dtype).unsqueeze(2)
        before = (taps_C11W.shape[-1] - 1) // self.ways
        x_BNC = F.pad(x_BNC, (0, 0, before, taps_C11W.shape[-1] - 1 - before))
        # A two-dimensional convolution takes channels-last input without a copy.
        y_BC1N = F.conv2d(
            x_BNC.mT.unsqueeze(2), taps_C11W, self.taps_bias.to(x_BNC.dtype), groups=x_BNC.shape[2]
        )
        return y_BC1N.squeeze(2).mT


def scan(
    x_BNHD: Tensor,
    step_KBNH: Tensor,
    rate_KH: Tensor,
    keys_KBNS: Tensor,
    queries_KBNS: Tensor,
    skip_H: Tensor,
    chunk: int,
) -> Tensor:
    """Return y_t = Σ_k h_ktᵀ C_kt + D x_t of one or two directions k, in the dual form by chunks.

    h_t = a_t h_{t∓1} + Δ_t B_t x_tᵀ with a_t = exp(−Δ_t rate): from the start for k = 0, from the end for
    k = 1. Dao & Gu 2024, section 6 and listing 1: within a chunk, y = (L ∘ CBᵀ)x with
    L_ij = a_i ⋯ a_{j+1} Δ_j; states carry the rest. The backward direction fills the other half of the same
    matrix. Decays are exponentials of differences of cumulative sums, which are at most 0: none overflows.

    Args:
        x_BNHD: inputs.
        step_KBNH: Δ, at least 0; with 0, an input doesn't count.
        rate_KH: −A, positive.
        keys_KBNS, queries_KBNS: B and C.
        skip_H: D.
        chunk: number of positions in a chunk.

    Returns:
        [B, N, H, D].
    """
    N = x_BNHD.shape[1]
    Q = max(1, min(chunk, N))
    x_BHcQD = _chunks(x_BNHD, 1, Q).movedim(3, 1).contiguous()
    step = _chunks(step_KBNH, 2, Q).movedim(4, 2)
    keys, queries = (_chunks(x, 2, Q).unsqueeze(2) for x in (keys_KBNS, queries_KBNS))
    # In float64, because small differences of large sums matter; the tensors are small.
    decay = -step.double() * rate_KH[:, None, :, None, None]
    upto = [_running(x, backwards=k == 1) for k, x in enumerate(decay)]
    smallest = torch.finfo(step.dtype).tiny
    log_step = step.clamp(min=smallest).log().masked_fill(step == 0, -torch.inf)
    since = [total - log for total, log in zip(upto, log_step, strict=True)]

    earlier = torch.ones(Q, Q, dtype=torch.bool, device=x_BNHD.device).tril()
    exponents = [total.unsqueeze(-1) - log.unsqueeze(-2) for total, log in zip(upto, since, strict=True)]
    products = [query @ key.mT for query, key in zip(queries, keys, strict=True)]
    other = exponents[1] if len(exponents) == 2 else -torch.inf
    weights = torch.where(earlier, exponents[0], other).to(x_BHcQD.dtype).exp()
    weights = weights * torch.where(earlier, products[0], products[-1])
    diagonal = skip_H[:, None, None]
    if len(products) == 2:  # both directions include the position itself
        diagonal = diagonal + step[1] * products[1].diagonal(dim1=-2, dim2=-1)
    weights.diagonal(dim1=-2, dim2=-1).add_(diagonal)
    y = weights @ x_BHcQD
    if N > Q:
        shape = y.shape
        for k, (total, log) in enumerate(zip(upto, since, strict=True)):
            end = total[..., -1:] if k == 0 else total[..., :1]
            new = (keys[k] * (end - log).exp().to(y.dtype).unsqueeze(-1)).mT @ x_BHcQD
            start = states_before(new.flatten(3), end.squeeze(-1), chunk, backwards=k == 1).view_as(new)
            reading = queries[k] * total.exp().to(y.dtype).unsqueeze(-1)
            y = torch.baddbmm(y.flatten(0, 2), reading.flatten(0, 2), start.flatten(0, 2)).view(shape)
    return y.movedim(1, 3).flatten(1, 2)[:, :N]


def _chunks(x: Tensor, dim: int, size: int) -> Tensor:
    """Divide a dimension into chunks, [.., N, ..] to [.., c, Q, ..]; zeros follow the last position."""
    more = -x.shape[dim] % size
    if more:
        x = F.pad(x, (*(0, 0) * (x.dim() - 1 - dim), 0, more))
    return x.unflatten(dim, (-1, size))


def states_before(x_BHNV: Tensor, log_decay_BHN: Tensor, group: int, backwards: bool) -> Tensor:
    """Return h_{t−1} of h_t = a_t h_{t−1} + x_t, [B, H, N, V], with h_0 = 0.

    Groups of positions are summed at once, and the ends of groups by this function recursively: time is
    linear in N.

    Args:
        x_BHNV: inputs.
        log_decay_BHN: log a, at most 0.
        group: number of positions in a group; 1 counts as 2.
        backwards: whether t runs from the last position to the first; then h_{t+1} is returned.
    """
    N, group = x_BHNV.shape[2], max(2, group)
    if group >= N:
        upto = _running(log_decay_BHN, backwards)
        exponents = (upto - log_decay_BHN).unsqueeze(-1) - upto.unsqueeze(-2)
        weights = exponents.clamp(max=0).to(x_BHNV.dtype).exp()
        return (weights.triu(1) if backwards else weights.tril(-1)) @ x_BHNV
    log_decay, x = _chunks(log_decay_BHN, 2, group), _chunks(x_BHNV, 2, group)
    upto = _running(log_decay, backwards)
    end = upto[..., :1] if backwards else upto[..., -1:]
    within = states_before(x.flatten(1, 2), log_decay.flatten(1, 2), group, backwards).view_as(x)
    new = ((end - upto).exp().to(x.dtype).unsqueeze(-2) @ x).squeeze(-2)
    start = states_before(new, end.squeeze(-1), group, backwards)
    reading = (upto - log_decay).exp().to(x.dtype).unsqueeze(-1)
    return (within + reading * start.unsqueeze(3)).flatten(2, 3)[:, :, :N]


def _running(log_BHN: Tensor, backwards: bool) -> Tensor:
    """Return cumulative sums over the last dimension, from its start or from its end."""
    return log_BHN.flip(-1).cumsum(-1).flip(-1) if backwards else log_BHN.cumsum(-1)
