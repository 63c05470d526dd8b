"""Full softmax attention, with separate keys or with keys tied to the queries."""

from itertools import groupby
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from asr.attention.backend import DEVICES, load_operators
from asr.attention.local import why_no_local_kernels
from asr.attention.softmax import SoftmaxMechanism, both_lengths, filled_lengths
from asr.attention.spec import CausalOptions, NoOptions
from asr.lengths import keep_mask
from attention_ext.autograd import needs_gradient
from attention_ext.flash import flash_attention, why_no_flash
from attention_ext.library import has_wide_vectors, on_tiles
from attention_ext.tensors import compute_dtype, masked_softmax, zero_padding

HALVES = (torch.float16, torch.bfloat16)
# Positions from which SDPA on one sequence after another is faster than on a padded batch with a mask.
SHORTEST_ALONE = 256


class FullAttention(SoftmaxMechanism):
    """Every query attends to every key, with softmax weights.

    A = softmax(QKᵀ/√D), V̂ = AV: *Fast Transformers with Clustered Attention* eq. 1–2. The reference stores
    N × S weights. Native self-attention runs on a CPU on the compiled kernels of local attention, where they
    are at least as fast as PyTorch's `scaled_dot_product_attention` (SDPA); and on CUDA, over padded
    sequences in float16 and bfloat16, on PyTorch's flash attention. Everything else is SDPA, on a CPU for
    each sequence without its padding.

    Args:
        name, backend, dropout: see `SoftmaxMechanism`.
        options: whether it is causal, for self-attention only; None: it is not.
    """

    options: ClassVar[type] = CausalOptions
    source = "[Vaswani et al. 2017](https://arxiv.org/abs/1706.03762)"
    time, memory = "N²", "N² (native: N)"

    def __init__(self, name: str, backend: str, dropout: float, options: CausalOptions | None = None) -> None:
        super().__init__(name, backend, dropout, why_not_native=dict.fromkeys(DEVICES))
        self.causal = options is not None and options.causal
        self.cross_attention = self.cross_attention and not self.causal
        kernels = backend != "reference" and why_no_local_kernels() is None
        self.kernels = load_operators("native") if kernels else None

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, query_lengths: Tensor | None, key_lengths: Tensor | None
    ) -> Tensor:
        """See `QueryKeyMechanism`."""
        if self.backend.on(q.device.type) == "reference":
            query_lengths, key_lengths = both_lengths(query_lengths, key_lengths, q, k)
            weights_BHNS = F.dropout(self.dense(q, k, query_lengths, key_lengths), self.active_dropout)
            return weights_BHNS @ zero_padding(v, key_lengths).to(weights_BHNS.dtype)
        if _readable(q, query_lengths, key_lengths):
            return self._attend_on_cpu(q, k, v, query_lengths, key_lengths)
        if query_lengths is not None:
            q = zero_padding(q, query_lengths)
        if key_lengths is not None:
            # The mask alone would let NaN through, because 0 · NaN is NaN.
            k, v = zero_padding(k, key_lengths), zero_padding(v, key_lengths)
        out_BHNE = self._attend_native(q, k, v, query_lengths, key_lengths)
        return out_BHNE if query_lengths is None else zero_padding(out_BHNE, query_lengths)

    def attend_finite(
        self, q: Tensor, k: Tensor, v: Tensor, query_lengths: Tensor | None, key_lengths: Tensor | None
    ) -> Tensor:
        """See `QueryKeyMechanism`."""
        native = self.backend.on(q.device.type) == "native"
        return (self._attend_native if native else self.attend)(q, k, v, query_lengths, key_lengths)

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
        """See `QueryKeyMechanism`; SDPA takes the addend as a mask, but is slow if D isn't E."""
        if self._kernels_serve(q, k, v, query_lengths, key_lengths):
            return self._attend_on_kernels(q, k, v, key_lengths, bias_BS)
        half = q.device.type == "cpu" and q.dtype in HALVES
        if half or self.causal or self.backend.on(q.device.type) == "reference":
            return super().attend_biased(q, k, v, query_lengths, key_lengths, bias_BS, finite_padding)
        if not finite_padding:
            q, k, v = (
                x if lengths is None else zero_padding(x, lengths)
                for x, lengths in ((q, query_lengths), (k, key_lengths), (v, key_lengths))
            )
        out_BHNE = self._attend_sdpa(q, k, v, _kept_keys(key_lengths, k.shape[2]), bias_BS)
        return out_BHNE if finite_padding or query_lengths is None else zero_padding(out_BHNE, query_lengths)

    def dense(self, q: Tensor, k: Tensor, query_lengths: Tensor, key_lengths: Tensor) -> Tensor:
        """See `QueryKeyMechanism`."""
        dtype = compute_dtype(q)
        q = zero_padding(q, query_lengths).to(dtype) * q.shape[-1] ** -0.5
        scores_BHNS = q @ zero_padding(k, key_lengths).to(dtype).mT
        if self.causal:
            later_NS = torch.ones(scores_BHNS.shape[2:], dtype=torch.bool, device=q.device).triu(1)
            scores_BHNS = scores_BHNS.masked_fill(later_NS, -torch.inf)
        return zero_padding(masked_softmax(scores_BHNS, key_lengths), query_lengths)

    def _attend_native(
        self, q: Tensor, k: Tensor, v: Tensor, query_lengths: Tensor | None, key_lengths: Tensor | None
    ) -> Tensor:
        """Attend with finite padding; the output at padded queries is finite."""
        if _readable(q, query_lengths, key_lengths):
            return self._attend_on_cpu(q, k, v, query_lengths, key_lengths, finite=True)
        if self._kernels_serve(q, k, v, query_lengths, key_lengths):
            return self._attend_on_kernels(q, k, v, key_lengths)
        one = query_lengths is key_lengths
        if key_lengths is not None and one and not self.causal and why_no_flash(q, k, v) is None:
            return flash_attention(q, k, v, key_lengths, dropout=self.active_dropout)
        return self._attend_sdpa(q, k, v, _kept_keys(key_lengths, k.shape[2]))

    def _attend_on_cpu(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        query_lengths: Tensor | None,
        key_lengths: Tensor | None,
        finite: bool = False,
    ) -> Tensor:
        """Attend on a CPU. Without `finite`, padding may hold anything, and the output there is zero."""
        if self._kernels_serve(q, k, v, query_lengths, key_lengths):
            return self._attend_on_kernels(q, k, v, key_lengths)
        dtype, (B, H, N, _) = q.dtype, q.shape
        if dtype in HALVES:
            q, k, v = q.float(), k.float(), v.float()
        queries = [N] * B if query_lengths is None else query_lengths.tolist()
        keys = [k.shape[2]] * B if key_lengths is None else key_lengths.tolist()
        if min(queries) >= N and min(keys) >= k.shape[2]:
            return self._attend_sdpa(q, k, v, None).to(dtype)
        # SDPA's backward pass divides the work among threads by heads only.
        idle = torch.get_num_threads() > H and needs_gradient(q, k, v)
        if finite and (N < SHORTEST_ALONE or idle):
            return self._attend_sdpa(q, k, v, _kept_keys(key_lengths, k.shape[2])).to(dtype)
        parts = []
        runs = [(*lengths, len(list(run))) for lengths, run in groupby(zip(queries, keys, strict=True))]
        sizes = [size for *_, size in runs]
        for (n, s, _), *rows in zip(runs, q.split(sizes), k.split(sizes), v.split(sizes), strict=True):
            rows_q, rows_k, rows_v = rows[0][:, :, :n], rows[1][:, :, :s], rows[2][:, :, :s]
            # An empty product is zeros that are connected to the inputs.
            out = self._attend_sdpa(rows_q, rows_k, rows_v, None) if n and s else rows_q @ rows_k.mT @ rows_v
            parts.append(F.pad(out, (0, 0, 0, N - n)))
        return torch.cat(parts).to(dtype)

    def _kernels_serve(
        self, q: Tensor, k: Tensor, v: Tensor, query_lengths: Tensor | None, key_lengths: Tensor | None
    ) -> bool:
        """Return whether the kernels of local attention can serve a call, and are as fast as SDPA."""
        B, H, N, _ = q.shape
        if self.kernels is None or q.device.type != "cpu" or q.dtype not in (torch.float32, *HALVES):
            return False
        if query_lengths is not key_lengths or k.shape[2] != N:
            return False
        idle = torch.get_num_threads() > B * H  # without tiles, the kernels divide the work by heads
        if torch.compiler.is_compiling():  # exported graphs need PyTorch's operators
            return q.dtype in HALVES and not self.causal and not idle
        if on_tiles(q, v):
            return True
        return not idle and has_wide_vectors()

    def _attend_on_kernels(
        self, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None, bias_BN: Tensor | None = None
    ) -> Tensor:
        assert self.kernels is not None
        # A window that holds all keys makes local attention full.
        window = {"left": q.shape[2], "right": 0 if self.causal else q.shape[2], "chunk": 1, "first": 0}
        options = {"dropout": self.active_dropout, "bias_BN": bias_BN}
        return self.kernels.local_attention(q, k, v, filled_lengths(lengths, q), **window, **options)

    def _attend_sdpa(
        self, q: Tensor, k: Tensor, v: Tensor, keep_B11S: Tensor | None, bias_BS: Tensor | None = None
    ) -> Tensor:
        # Causal queries need no mask, because padding comes last.
        mask_B11S = None if self.causal else keep_B11S
        if bias_BS is not None:
            bias_B11S = bias_BS.to(q.dtype)[:, None, None, :]
            mask_B11S = bias_B11S if mask_B11S is None else bias_B11S.where(mask_B11S, -torch.inf)
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask_B11S, dropout_p=self.active_dropout, is_causal=self.causal
        )


def _readable(q: Tensor, *lengths: Tensor | None) -> bool:
    """Return whether q is on a CPU and the lengths can be read, i.e. outside a graph."""
    plain = all(x is None or type(x) is Tensor for x in lengths)
    return q.device.type == "cpu" and plain and not torch.compiler.is_compiling()


def _kept_keys(lengths: Tensor | None, size: int) -> Tensor | None:
    """Return which keys SDPA attends to, [B, 1, 1, S]; None: all."""
    if lengths is None:
        return None
    # Without a valid key, all keys are kept, because a softmax over no key is NaN.
    keep_BS = keep_mask(lengths, size) | (lengths == 0).unsqueeze(-1)
    return keep_BS[:, None, None, :]


class SharedFullAttention(FullAttention):
    """Full attention whose keys are the normalised queries, the baseline for LSH attention.

    The projection layer ties the keys (`multihead.shared_keys`); the computation is that of `full`.
    """

    options = NoOptions
    source = "[Kitaev et al. 2020, Reformer](https://arxiv.org/abs/2001.04451)"
    needs_shared_keys = True
    cross_attention = False
