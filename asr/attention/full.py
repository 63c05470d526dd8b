"""Full softmax attention, with separate keys or with keys tied to the queries."""

import torch
import torch.nn.functional as F
from torch import Tensor

from asr.attention.backend import DEVICES, load_operators
from asr.attention.local import why_no_local_kernels
from asr.attention.softmax import SoftmaxMechanism, both_lengths, filled_lengths
from asr.attention.spec import CAUSAL, Schema
from asr.lengths import keep_mask
from attention_ext.flash import flash_attention, why_no_flash
from attention_ext.tensors import compute_dtype, masked_softmax, zero_padding


class FullAttention(SoftmaxMechanism):
    """Every query attends to every key, with softmax weights.

    A = softmax(QKᵀ/√D), V̂ = AV: *Fast Transformers with Clustered Attention* eq. 1–2. The reference stores
    N × S weights; native is PyTorch's `scaled_dot_product_attention` (SDPA). In float16 and bfloat16,
    self-attention over padded sequences runs on PyTorch's flash attention on CUDA, and on the compiled
    kernels of local attention on a CPU.

    Args:
        name, backend, dropout: see `SoftmaxMechanism`.
        causal: whether queries see no later keys; self-attention only.
    """

    schema = Schema(options=(CAUSAL,))
    source = "[Vaswani et al. 2017](https://arxiv.org/abs/1706.03762)"
    time, memory = "N²", "N² (native: N)"

    def __init__(self, name: str, backend: str, dropout: float, causal: bool = False) -> None:
        super().__init__(name, backend, dropout, why_not_native=dict.fromkeys(DEVICES))
        self.causal, self.cross_attention = causal, self.cross_attention and not causal
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
        half = q.device.type == "cpu" and q.dtype in (torch.float16, torch.bfloat16)
        if half or self.causal or self.backend.on(q.device.type) == "reference":
            return super().attend_biased(q, k, v, query_lengths, key_lengths, bias_BS, finite_padding)
        if not finite_padding:
            q, k, v = (
                x if lengths is None else zero_padding(x, lengths)
                for x, lengths in ((q, query_lengths), (k, key_lengths), (v, key_lengths))
            )
        out_BHNE = self._attend_sdpa(q, k, v, key_lengths, bias_BS)
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
        if q.device.type == "cpu" and q.dtype in (torch.float16, torch.bfloat16):
            return self._attend_half(q, k, v, query_lengths, key_lengths)
        one = query_lengths is key_lengths
        if key_lengths is not None and one and not self.causal and why_no_flash(q, k, v) is None:
            return flash_attention(q, k, v, key_lengths, dropout=self.active_dropout)
        return self._attend_sdpa(q, k, v, key_lengths)

    def _attend_half(
        self, q: Tensor, k: Tensor, v: Tensor, query_lengths: Tensor | None, key_lengths: Tensor | None
    ) -> Tensor:
        """Attend in half precision on a CPU, where SDPA's backward pass is slower than in float32.

        A window that holds all keys makes local attention full. Its kernels are faster than SDPA of either
        precision at every length measured, 52 to 6,000, but divide the work by heads only.
        """
        one = query_lengths is key_lengths and q.shape[2] == k.shape[2]
        idle = torch.get_num_threads() > q.shape[0] * q.shape[1]
        if self.kernels is None or self.causal or not one or idle:
            return self._attend_sdpa(q.float(), k.float(), v.float(), key_lengths)
        window = {"left": q.shape[2], "right": q.shape[2], "chunk": 1, "first": 0}
        lengths_B = filled_lengths(key_lengths, q)
        return self.kernels.local_attention(q, k, v, lengths_B, **window, dropout=self.active_dropout)

    def _attend_sdpa(
        self, q: Tensor, k: Tensor, v: Tensor, key_lengths: Tensor | None, bias_BS: Tensor | None = None
    ) -> Tensor:
        mask_B11S = None
        # Causal queries need no mask, because padding comes last.
        if key_lengths is not None and not self.causal:
            # Without a valid key all are kept, because a softmax over no key is NaN.
            keep_BS = keep_mask(key_lengths, k.shape[2]) | (key_lengths == 0).unsqueeze(-1)
            mask_B11S = keep_BS[:, None, None, :]
        if bias_BS is not None:
            bias_B11S = bias_BS.to(q.dtype)[:, None, None, :]
            mask_B11S = bias_B11S if mask_B11S is None else bias_B11S.where(mask_B11S, -torch.inf)
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask_B11S, dropout_p=self.active_dropout, is_causal=self.causal
        )


class SharedFullAttention(FullAttention):
    """Full attention whose keys are the normalised queries, the baseline for LSH attention.

    The projection layer ties the keys (`multihead.shared_keys`); the computation is that of `full`.
    """

    schema = Schema()
    source = "[Kitaev et al. 2020, Reformer](https://arxiv.org/abs/2001.04451)"
    needs_shared_keys = True
    cross_attention = False
