"""Self-attention with relative positions in the logits (Dai et al. 2019), for any softmax mechanism."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.attention.full import FullAttention
from asr.attention.grouping import HashGrouping
from asr.attention.layer import FrameRate, SelfAttentionLayer
from asr.attention.local import LocalAttention
from asr.attention.multihead import SelfAttention
from asr.attention.pretrained_layers import BiasedAttention, fitting_mechanism
from asr.attention.softmax import SoftmaxMechanism, filled_lengths, without_padding
from asr.lengths import keep_mask, zero_padding
from attention_ext.gated_bias import ClippedBias, LogitBias

CHUNK = 256  # queries whose positional logits are in memory at the same time
# Maximum number of elements in the longer queries of heads that are computed together in inference.
HEADS_AT_ONCE = 2**26


class Projections(NamedTuple):
    """Projections of an attention module in transformers; their weights are shared."""

    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    output: nn.Linear


def conformer_attention(attention: Any, name: str, backend: str) -> SelfAttentionLayer:
    """Return a self-attention layer with the weights of a transformers module.

    Args:
        attention: attention module of a Conformer: Parakeet or wav2vec2-bert.
        name: mechanism.
        backend: `auto`, `reference` or `native`.

    Raises:
        UserError: the mechanism or the backend doesn't fit.
    """
    if hasattr(attention, "relative_k_proj"):
        projections = Projections(attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj)
        mechanism = fitting_mechanism(name, backend, attention.attention_dropout)
        biases = attention.bias_u, attention.bias_v
        return RelativeAttention(projections, attention.relative_k_proj, biases, mechanism)
    projections = Projections(
        attention.linear_q, attention.linear_k, attention.linear_v, attention.linear_out
    )
    return ClippedAttention(attention, projections, name, backend)


class ClippedAttention(BiasedAttention):
    """Attention of wav2vec2-bert: logits q_i·(k_j + e(clip(j − i, −L, R))), Shaw et al. 2018, eq. 4.

    `full` and `local` compute the logits for the distances that their queries see; other mechanisms, in plain
    PyTorch. A cluster's logits are the mean of its queries' logits, positions included, in linear time.

    Args:
        attention: attention module in transformers; its weights are shared.
        projections: projections of the module.
        name, backend: see `BiasedAttention`.
    """

    def __init__(self, attention: Any, projections: Projections, name: str, backend: str) -> None:
        super().__init__(attention.num_heads, attention.dropout.p, name, backend)
        self.query, self.key, self.value, self.output = projections
        self.distances: nn.Embedding = attention.distance_embedding
        self.left: int = attention.left_max_position_embeddings

    def logits(self, x: Tensor, distance: int, **_: Tensor) -> tuple[Tensor, Tensor, LogitBias]:
        """See `BiasedAttention`."""
        q, k = self._split_heads(self.query(x)), self._split_heads(self.key(x))
        right = self.distances.num_embeddings - 1 - self.left
        left_R, right_R = -(-self.left // distance), -(-right // distance)
        distance_R = distance * torch.arange(-left_R, right_R + 1, device=x.device)
        rows_RD = self.distances((distance_R + self.left).clamp(0, self.left + right)).to(q.dtype)
        return q, k, ClippedBias(q @ rows_RD.mT * q.shape[-1] ** -0.5, left_R)

    def mix(
        self, q: Tensor, k: Tensor, v: Tensor, bias: LogitBias, lengths: Tensor, rate: FrameRate
    ) -> Tensor:
        """See `BiasedAttention`."""
        reach = reach_of(self.mechanism, q)
        if reach is None:
            return super().mix(q, k, v, bias, lengths, rate)

        def rows_1RD(start: int, end: int) -> Tensor:
            distance_R = -rate.factor * torch.arange(end - 1, start - 1, -1, device=q.device)
            index_R = (distance_R + self.left).clamp(0, self.distances.num_embeddings - 1)
            return self.distances(index_R).to(q.dtype).unsqueeze(0)

        dropout, bias_BN = self.mechanism.active_dropout, rate.log_sizes_BN
        return attend_by_distance(q, q, (k, v), rows_1RD, reach, lengths, dropout, bias_BN)


def reach_of(mechanism: SoftmaxMechanism, x: Tensor) -> int | None:
    """Return the largest distance that positions of x [B, …, N, D] see; None without `attend_by_distance`."""
    if mechanism.backend.on(x.device.type) == "reference":
        return None
    match mechanism:
        case FullAttention(causal=False):
            return x.shape[-2]
        case LocalAttention(first=0, chunk=1, window=window, right=right) if right == window:
            return int(window)
    return None


class RelativeAttention(SelfAttention):
    """Attention of FastConformer: logits (q_i + u)·k_j + (q_i + v)·W s(i − j), section 3.3 of Dai et al.

    s(n) contains the sines and cosines of n ω_m for M / 2 frequencies. `full` and `local` compute the second
    term for the distances that their queries see; `local` is linear in time.

    For other mechanisms, the angle sum formulas split sin((i − j) ω) and cos((i − j) ω) into factors that
    depend on i or on j only. The second term is then a product p_i·s(j) with a vector p_i of size M, so
    longer queries and keys, of size D + M, have the same logits. A cluster's logits are the mean of its
    queries' logits, positions included, and the mechanism's complexity in N doesn't change. Logits cost
    (D + M) / D times as much. Sign hashes see only the content; `grouping=keys` also sees the positions.

    Args:
        projections: projections of transformers.
        position: W, [H · D, M].
        biases: u and v, [H, D] each.
        mechanism: softmax mechanism.
    """

    mechanism: SoftmaxMechanism
    evenly_spaced = True

    def __init__(
        self,
        projections: Projections,
        position: nn.Linear,
        biases: tuple[nn.Parameter, nn.Parameter],
        mechanism: SoftmaxMechanism,
    ) -> None:
        super().__init__(mechanism, position.in_features, *biases[0].shape)
        self.query, self.key, self.value, self.output = projections
        self.position = position
        self.content_bias, self.position_bias = biases
        self._hash_content(mechanism)

    def set_mechanism(self, name: str, backend: str | None = None) -> None:
        """Exchange the mechanism and keep the weights."""
        super().set_mechanism(name, backend)
        self._hash_content(self.mechanism)

    def backend_on(self, device_type: str) -> str:
        """Return the mechanism's backend on a device."""
        head_dim, model_dim = self.position_bias.shape[-1], self.position.in_features
        return self.mechanism.backend_on(device_type, head_dim + model_dim, self.position.weight.dtype)

    def forward(
        self,
        x: Tensor,
        lengths: Tensor | None = None,
        rate: FrameRate | None = None,
        waves_2NK: Tensor | None = None,
    ) -> Tensor:
        """Attend: [B, N, M] with [B] lengths to [B, N, M], given the result of `waves`."""
        x, (factor, bias_BN, _) = without_padding(x, lengths), rate or FrameRate(1, None)
        waves_2NK = self.waves(x.shape[1], factor, x.device) if waves_2NK is None else waves_2NK
        q, k, v = super().project(x)
        reach = reach_of(self.mechanism, x)
        if reach is None:
            mixed = self._with_longer_heads(q, k, v, waves_2NK, lengths, bias_BN)
        else:
            mixed = attend_by_distance(
                q + self.content_bias.unsqueeze(1),
                q + self.position_bias.unsqueeze(1),
                (k, v),
                lambda start, end: self._position_keys(waves_2NK, start, end),
                reach,
                filled_lengths(lengths, x),
                self.mechanism.active_dropout,
                bias_BN,
            )
        return zero_padding(self.output(mixed.transpose(1, 2).flatten(2)), filled_lengths(lengths, x))

    def waves(self, positions: int, distance: int, device: torch.device) -> Tensor:
        """Return the sines and cosines that all layers share; see `sines`."""
        return sines(positions + CHUNK, self.position.in_features, device, distance)

    def weights(self, name: str, x: Tensor, rate: FrameRate | None = None, **bias: Tensor) -> Tensor:
        """Return the dense attention weights of a mechanism, [B, H, N, N]."""
        mechanism = self.mechanism  # with the layer's own hash planes
        if name != self.name:
            mechanism = fitting_mechanism(name, mechanism.backend.requested).to(x.device).eval()
            self._hash_content(mechanism)
        q, k, _ = super().project(x)
        waves_2NK = self.waves(x.shape[1], rate.factor if rate else 1, x.device)
        return mechanism.weights(*self._longer(q, k, waves_2NK, slice(None)))

    def _hash_content(self, mechanism: nn.Module) -> None:
        for module in mechanism.modules():
            if isinstance(module, HashGrouping):
                module.hashed = self.position_bias.shape[-1]

    def _position_keys(self, waves_2NK: Tensor, start: int, end: int) -> Tensor:
        """Return W s(n) for the distances n = start … end − 1, in reverse order, [H, R, D]."""
        distance_R = torch.arange(end - 1, start - 1, -1, device=waves_2NK.device)
        sin_RK, cos_RK = waves_2NK[:, distance_R.abs()]
        s_RM = torch.stack((sin_RK * distance_R.sign().unsqueeze(-1), cos_RK), -1).flatten(-2)
        keys_RM: Tensor = self.position(s_RM.to(self.position.weight.dtype))
        return keys_RM.unflatten(-1, (self.heads, -1)).transpose(0, 1)

    def _with_longer_heads(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        waves_2NK: Tensor,
        lengths: Tensor | None,
        bias_BN: Tensor | None,
    ) -> Tensor:
        """Attend with all heads at once; in inference, with as many as `HEADS_AT_ONCE` allows."""
        size, H = self.heads, self.heads
        if not torch.is_grad_enabled() and not torch.compiler.is_compiling():
            numbers = q.shape[0] * q.shape[2] * (q.shape[3] + self.position.in_features)
            size = max(1, min(H, HEADS_AT_ONCE // max(1, numbers)))
        outputs = []
        for heads in (slice(i, i + size) for i in range(0, H, size)):
            longer = self._longer(q[:, heads], k[:, heads], waves_2NK, heads)
            outputs.append(self.mechanism(*longer, v[:, heads], lengths, bias_BS=bias_BN))
        return torch.cat(outputs, 1)

    def _longer(self, q: Tensor, k: Tensor, waves_2NK: Tensor, heads: slice) -> tuple[Tensor, Tensor]:
        """Return queries and keys of some heads with their positions, [B, H, N, D + M] each."""
        N, D = q.shape[2:]
        sin_NK, cos_NK = waves_2NK[:, :N]
        of_sines_HDK, of_cosines_HDK = (
            self.position.weight.unflatten(0, (self.heads, -1))[heads].unflatten(-1, (-1, 2)).unbind(-1)
        )
        turned = q + self.position_bias[heads].unsqueeze(1)
        a_BHNK, b_BHNK = turned @ of_sines_HDK, turned @ of_cosines_HDK
        p_BHNM = torch.cat((b_BHNK * sin_NK - a_BHNK * cos_NK, a_BHNK * sin_NK + b_BHNK * cos_NK), -1)
        s_NM = torch.cat((sin_NK, cos_NK), -1).to(k.dtype)
        longer_q = torch.cat((q + self.content_bias[heads].unsqueeze(1), p_BHNM.to(q.dtype)), -1)
        longer_k = torch.cat((k, s_NM.expand(*k.shape[:2], -1, -1)), -1)
        # The mechanism divides by √(D + M).
        return longer_q * (longer_q.shape[-1] / D) ** 0.5, longer_k


def attend_by_distance(
    q_BHND: Tensor,
    turned_BHND: Tensor,
    keys_and_values: tuple[Tensor, Tensor],
    position_keys: Callable[[int, int], Tensor],
    reach: int,
    lengths_B: Tensor,
    dropout: float,
    bias_BN: Tensor | None = None,
) -> Tensor:
    """Attend with logits (q_i·k_j + t_i·r(i − j)) / √D to the keys with |i − j| ≤ reach.

    Time and memory grow with N·reach; in inference, memory with reach.

    Args:
        q_BHND, turned_BHND: queries q and t.
        keys_and_values: keys and values, [B, H, N, D] each.
        position_keys: function that returns r for the distances from its second argument, exclusive, down to
            its first, [H or 1, R, D].
        reach: largest distance that is seen.
        lengths_B: valid positions.
        dropout: dropout probability of the weights.
        bias_BN: addend of the logits of each key.

    Returns:
        [B, H, N, D]; arbitrary at padding, where inputs must be finite.
    """
    (k_BHND, v_BHND), N = keys_and_values, q_BHND.shape[2]
    reach = min(reach, max(0, N - 1))
    keep_BN, position_N = keep_mask(lengths_B, N), torch.arange(N, device=q_BHND.device)
    chunk = min(CHUNK, N)
    rows_HRD = position_keys(-reach - chunk, reach + chunk)
    turned_BHND = turned_BHND * q_BHND.shape[-1] ** -0.5
    outputs = [v_BHND[:, :, :0]]
    for start in range(0, N, max(1, chunk)):
        end = min(start + chunk, N)
        first, last = max(start - reach, 0), min(end + reach, N)
        own_I, own_J = end - start, last - first
        # Row i holds the distances i − j for one key more than are seen, and that of key `first` is at
        # column I − 1 − i, so that every row of a shorter matrix starts at the same key.
        least = reach + chunk - (end - first)
        logits_BHIR = turned_BHND[:, :, start:end] @ rows_HRD[:, least : least + own_I + own_J].mT
        shifted_BHX = logits_BHIR.flatten(-2)[..., own_I - 1 : own_I * (own_I + own_J) - 1]
        mask_BHIJ = shifted_BHX.unflatten(-1, (own_I, own_I + own_J - 1))[..., :own_J]
        if bias_BN is not None:
            mask_BHIJ = mask_BHIJ + bias_BN[:, None, None, first:last]
        distance_IJ = position_N[start:end, None] - position_N[first:last]
        # Padded queries see padding, because a softmax over no key is NaN.
        seen_B1IJ = keep_BN[:, None, None, first:last] | ~keep_BN[:, None, start:end, None]
        seen_B1IJ = seen_B1IJ & (distance_IJ.abs() <= reach)
        if not bool(seen_B1IJ.all()):
            mask_BHIJ = mask_BHIJ.masked_fill(~seen_B1IJ, -torch.inf)
        outputs.append(
            F.scaled_dot_product_attention(
                q_BHND[:, :, start:end],
                k_BHND[:, :, first:last],
                v_BHND[:, :, first:last],
                attn_mask=mask_BHIJ.to(q_BHND.dtype),
                dropout_p=dropout,
            )
        )
    return torch.cat(outputs, 2)


def sines(positions: int, size: int, device: torch.device, distance: int = 1) -> Tensor:
    """Return sin(n ω_m) and cos(n ω_m), ω_m = distance · 10000^(−2m / M), [2, N, M / 2] float32.

    Angles are float64, because those of an hour are too large for float32.
    """
    exponents = torch.arange(0, size, 2, dtype=torch.float64, device=device) / size
    positions_N1 = torch.arange(positions, dtype=torch.float64, device=device).unsqueeze(-1)
    angles_NK = positions_N1 * distance * 10000.0**-exponents
    return torch.stack((angles_NK.sin().float(), angles_NK.cos().float()))
