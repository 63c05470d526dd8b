"""Base classes of mechanisms without their own parameters: one for all, one for the softmax family."""

from collections.abc import Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.attention.backend import NOT_COMPILED, BackendChoice
from asr.attention.spec import Description
from asr.errors import UserError
from asr.lengths import require_counts, zero_padding

BIAS_DIM = 8  # dimensions added to heads for an addend of the logits; kernels need multiples of 8


class QueryKeyMechanism(nn.Module, Description):
    """Attention of queries to keys in every head. Subclasses implement `attend` and `dense`.

    Args:
        name: canonical name.
        backend: `auto`, `reference` or `native`.
        dropout: dropout probability on the attention weights after the softmax.
        why_not_native: reason why native can't run, by device type; None if it can.
    """

    needs_shared_keys = False  # whether keys must be the normalised queries
    cross_attention = True  # whether queries and keys may be at different positions

    def __init__(
        self, name: str, backend: str, dropout: float, why_not_native: Mapping[str, str | None] = NOT_COMPILED
    ) -> None:
        super().__init__()
        if not 0.0 <= dropout < 1.0:
            raise UserError(f"attention {name!r}: dropout={dropout}, expected 0 ≤ dropout < 1")
        self.name = name
        self.dropout = dropout
        self.backend = BackendChoice(backend, name, why_not_native)

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        lengths: Tensor | None = None,
        *,
        query_lengths: Tensor | None = None,
        key_lengths: Tensor | None = None,
        finite_padding: bool = False,
        bias_BS: Tensor | None = None,
    ) -> Tensor:
        """Attend.

        Args:
            q: [B, H, N, D].
            k: [B, H, S, D].
            v: [B, H, S, E].
            lengths: [B] valid positions of queries and keys (right padding); None means all.
            query_lengths, key_lengths: [B] valid queries and valid keys, for cross-attention.
            finite_padding: whether padded positions are finite, and the output there is ignored: it may have
                any finite values.
            bias_BS: finite addend of the logits of each key, without gradients; None: zeros.

        Returns:
            [B, H, N, E] in the dtype of v; zero at padded queries and if no key is valid. Values at padded
            positions, even NaN, affect neither the output nor the gradients.
        """
        _check_shapes(q, k, v)
        query_lengths, key_lengths = self._lengths(q, k, lengths, query_lengths, key_lengths)
        dtype, common = v.dtype, torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype)
        if 0 in (*q.shape[:3], k.shape[2]):
            # Products rather than zeros, so that q, k and v get the same gradients as in PyTorch's attention.
            return (q.to(common) @ k.to(common).mT @ v.to(common)).to(dtype)
        attend = self.attend_finite if finite_padding else self.attend
        if bias_BS is not None:
            attend = partial(
                self.attend_biased, bias_BS=bias_BS.detach().to(q.device), finite_padding=finite_padding
            )
        if q.dtype == k.dtype == dtype and not torch.is_autocast_enabled(q.device.type):
            return attend(q, k, v, query_lengths, key_lengths).to(dtype)
        # Under autocast, matrix products would be in half precision; logits and sums need float32.
        with torch.autocast(q.device.type, enabled=False):
            return attend(q.to(common), k.to(common), v.to(common), query_lengths, key_lengths).to(dtype)

    def weights(
        self,
        q: Tensor,
        k: Tensor,
        lengths: Tensor | None = None,
        *,
        query_lengths: Tensor | None = None,
        key_lengths: Tensor | None = None,
    ) -> Tensor:
        """Return the dense weights W [B, H, N, S] for which forward(q, k, v) = W @ v.

        They are for figures, tests and approximation errors: quadratic, without dropout, in float32 (float64
        for float64 input). Rows of padded queries and columns of padded keys are zero.
        """
        _check_shapes(q, k, None)
        query_lengths, key_lengths = self._lengths(q, k, lengths, query_lengths, key_lengths)
        common = torch.promote_types(q.dtype, k.dtype)
        if 0 in (*q.shape[:3], k.shape[2]):
            return q.new_zeros(*q.shape[:3], k.shape[2], dtype=torch.promote_types(common, torch.float32))
        with torch.autocast(q.device.type, enabled=False):
            return self.dense(q.to(common), k.to(common), *both_lengths(query_lengths, key_lengths, q, k))

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, query_lengths: Tensor | None, key_lengths: Tensor | None
    ) -> Tensor:
        """Compute `forward` for non-empty tensors of one dtype; lengths are None if all are valid."""
        raise NotImplementedError

    def attend_finite(
        self, q: Tensor, k: Tensor, v: Tensor, query_lengths: Tensor | None, key_lengths: Tensor | None
    ) -> Tensor:
        """Compute `attend` if padding is finite and the output there is ignored."""
        return self.attend(q, k, v, query_lengths, key_lengths)

    def attend_biased(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        query_lengths: Tensor | None,
        key_lengths: Tensor | None,
        bias_BS: Tensor,
        finite_padding: bool,
    ) -> Tensor:
        """Compute `attend`, or `attend_finite`, with an addend of the logits of each key."""
        raise UserError(f"attention {self.name!r} has no logits, to which sizes of frames could be added")

    def dense(self, q: Tensor, k: Tensor, query_lengths: Tensor, key_lengths: Tensor) -> Tensor:
        """Compute `weights` for non-empty tensors of one dtype, without dropout."""
        raise NotImplementedError

    def backend_on(self, device_type: str, head_dim: int, dtype: torch.dtype = torch.float32) -> str:
        """Return the backend for a head size and dtype on a type of device: `reference` or `native`."""
        return self.backend.on(device_type)

    @property
    def active_dropout(self) -> float:
        """Dropout probability in the current mode: 0 in evaluation."""
        return self.dropout if self.training else 0.0

    def extra_repr(self) -> str:
        """Return name, requested backend and dropout."""
        return f"{self.name}, backend={self.backend.requested}, dropout={self.dropout}"

    def _lengths(
        self,
        q: Tensor,
        k: Tensor,
        lengths: Tensor | None,
        query_lengths: Tensor | None,
        key_lengths: Tensor | None,
    ) -> tuple[Tensor | None, Tensor | None]:
        """Check the lengths, and return query and key lengths on the device of q."""
        if lengths is not None:
            if query_lengths is not None or key_lengths is not None:
                raise ValueError("expected lengths, or query_lengths and key_lengths, not both")
            if q.shape[2] != k.shape[2]:
                raise ValueError("cross-attention takes query_lengths and key_lengths, not lengths")
            query_lengths = key_lengths = lengths
        if not self.cross_attention and (q.shape[2] != k.shape[2] or query_lengths is not key_lengths):
            raise UserError(f"attention {self.name!r} is self-attention only: queries and keys must coincide")
        if query_lengths is not None:
            _check_lengths(query_lengths, q.shape[0], q.shape[2])
        if key_lengths is not None and (key_lengths is not query_lengths or k.shape[2] != q.shape[2]):
            _check_lengths(key_lengths, q.shape[0], k.shape[2])
        return (
            None if query_lengths is None else query_lengths.to(q.device),
            None if key_lengths is None else key_lengths.to(q.device),
        )


class SoftmaxMechanism(QueryKeyMechanism):
    """A mechanism whose weights are, or approximate, a softmax of the logits, so that it is exchangeable."""

    family = "softmax"

    def attend_biased(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        query_lengths: Tensor | None,
        key_lengths: Tensor | None,
        bias_BS: Tensor,
        finite_padding: bool,
    ) -> Tensor:
        """See `QueryKeyMechanism`. Mechanisms that group or hash queries override it, to ignore the bias."""
        attend = self.attend_finite if finite_padding else self.attend
        return attend(*with_bias(q, k, bias_BS), v, query_lengths, key_lengths)


def with_bias(q: Tensor, k: Tensor, bias_BS: Tensor) -> tuple[Tensor, Tensor]:
    """Return queries and keys with additional dimensions, so that q·k/√D includes each key's addend."""
    D, longer = q.shape[-1], q.shape[-1] + BIAS_DIM
    ones_BHNX = F.pad(q.new_full((*q.shape[:3], 1), longer**0.5), (0, BIAS_DIM - 1))
    bias_BHSX = F.pad(bias_BS.to(k.dtype)[:, None, :, None].expand(*k.shape[:3], 1), (0, BIAS_DIM - 1))
    return torch.cat((q * (longer / D) ** 0.5, ones_BHNX), -1), torch.cat((k, bias_BHSX), -1)


def filled_lengths(lengths: Tensor | None, x: Tensor) -> Tensor:
    """Return lengths [B]; if they are None, N of x [B, …, N, D] for each sequence."""
    if lengths is None:
        return x.new_full(x.shape[:1], x.shape[-2], dtype=torch.int64)
    return lengths.to(x.device)


def both_lengths(
    query_lengths: Tensor | None, key_lengths: Tensor | None, q: Tensor, k: Tensor
) -> tuple[Tensor, Tensor]:
    """Return `filled_lengths` for queries and keys; the same tensor in self-attention."""
    filled = filled_lengths(query_lengths, q)
    same = key_lengths is query_lengths and q.shape[2] == k.shape[2]
    return filled, filled if same else filled_lengths(key_lengths, k)


def without_padding(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Return x [B, N, M], zero at padding; raise ValueError unless lengths are [B] in 0 … N."""
    if lengths is None:
        return x
    _check_lengths(lengths, *x.shape[:2])
    return zero_padding(x, lengths)


def _check_lengths(lengths: Tensor, batch: int, size: int) -> None:
    """Raise ValueError unless lengths are [B] and, if they can be read without synchronising, 0 … size."""
    require_counts(lengths)
    if lengths.shape != (batch,):
        raise ValueError(f"expected lengths of shape [{batch}], found {list(lengths.shape)}")
    known = type(lengths) is Tensor and lengths.device.type == "cpu" and not torch.compiler.is_compiling()
    if known and batch:
        values = lengths.tolist()  # faster than reductions
        if min(values) < 0 or max(values) > size:
            raise ValueError(f"expected lengths 0 … {size}, found {values}")


def _check_shapes(q: Tensor, k: Tensor, v: Tensor | None) -> None:
    """Raise ValueError unless the shapes of q [B,H,N,D], k [B,H,S,D] and v [B,H,S,E] agree, with D, E ≥ 1."""
    fits = q.dim() == 4 and k.dim() == 4 and q.shape[:2] == k.shape[:2] and q.shape[3] == k.shape[3] >= 1
    if v is not None:
        fits = fits and v.dim() == 4 and v.shape[:3] == k.shape[:3] and v.shape[3] >= 1
    if not fits:
        found = ", ".join(str(tuple(x.shape)) for x in (q, k, v) if x is not None)
        raise ValueError(f"expected q [B,H,N,D], k [B,H,S,D] and v [B,H,S,E] with D, E ≥ 1, found {found}")
