"""Oracle top-K attention: each query attends to its K best keys only."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from asr.attention.softmax import SoftmaxMechanism, both_lengths
from asr.attention.spec import number_of_keys
from attention_ext.improved_clustered_attention.reference import top_keys
from attention_ext.tensors import compute_dtype, masked_softmax, zero_padding

CHUNK = 256  # queries whose weights are in memory at the same time


@dataclass
class OracleTopOptions:
    """Number of keys K."""

    topk: int = number_of_keys("K", "keys that a query attends to, K")


class OracleTopAttention(SoftmaxMechanism):
    """Each query attends only to the K keys with its highest logits, found by computing them all.

    Ties go to the lowest position. This is the baseline `oracle-top` of *Fast Transformers with Clustered
    Attention* §4.1: the best that sparse attention could do if it knew the right keys. Time is quadratic;
    weights are in memory for 256 queries at a time, also in the backward pass.

    Args:
        name, backend, dropout: see `SoftmaxMechanism`.
        options: K, clamped to each sequence's key length.
    """

    options = OracleTopOptions
    source = "[Vyas et al. 2020, Clustered Attention](https://arxiv.org/abs/2007.04825)"
    time, memory = "N²", "N"

    def __init__(self, name: str, backend: str, dropout: float, options: OracleTopOptions) -> None:
        super().__init__(name, backend, dropout)
        self.topk = options.topk

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, query_lengths: Tensor | None, key_lengths: Tensor | None
    ) -> Tensor:
        """Compute `forward` over chunks of queries."""
        query_lengths, key_lengths = both_lengths(query_lengths, key_lengths, q, k)
        dtype = compute_dtype(q)
        q = zero_padding(q, query_lengths).to(dtype)
        k, v = zero_padding(k, key_lengths).to(dtype), zero_padding(v, key_lengths).to(dtype)
        outs = []
        for chunk in q.split(CHUNK, dim=2):
            if torch.is_grad_enabled() and q.shape[2] > CHUNK:
                outs.append(checkpoint(self._attend_chunk, chunk, k, v, key_lengths, use_reentrant=False))
            else:
                outs.append(self._attend_chunk(chunk, k, v, key_lengths))
        return zero_padding(torch.cat(outs, dim=2), query_lengths)

    def dense(self, q: Tensor, k: Tensor, query_lengths: Tensor, key_lengths: Tensor) -> Tensor:
        """See `QueryKeyMechanism`."""
        dtype = compute_dtype(q)
        q, k = zero_padding(q, query_lengths).to(dtype), zero_padding(k, key_lengths).to(dtype)
        return zero_padding(self._weights(q, k, key_lengths), query_lengths)

    def _attend_chunk(self, q: Tensor, k: Tensor, v: Tensor, key_lengths: Tensor) -> Tensor:
        return F.dropout(self._weights(q, k, key_lengths), self.active_dropout) @ v

    def _weights(self, q: Tensor, k: Tensor, key_lengths: Tensor) -> Tensor:
        scores_BHNS = (q * q.shape[-1] ** -0.5) @ k.mT
        chosen_BHNS, _ = top_keys(scores_BHNS, key_lengths, self.topk)
        scores_BHNS = scores_BHNS.masked_fill(~chosen_BHNS, torch.finfo(q.dtype).min)
        return masked_softmax(scores_BHNS, key_lengths)
