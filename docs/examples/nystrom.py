"""Nyström attention (Xiong et al. 2021, *Nyströmformer*), written outside the package."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from asr.attention import SoftmaxMechanism, both_lengths, option
from attention_ext.tensors import compute_dtype, masked_softmax, zero_padding


@dataclass
class NystromOptions:
    landmarks: int = option(32, help="landmarks, M", affects="result", letter="M", minimum=1, maximum=4096)
    iterations: int = option(6, help="of the pseudoinverse", affects="result", minimum=1, maximum=20)


class Nystrom(SoftmaxMechanism):
    """Â = softmax(Q K̃ᵀ/√D) softmax(Q̃ K̃ᵀ/√D)⁺ softmax(Q̃ Kᵀ/√D) with means Q̃, K̃ of segments (eq. 13–14)."""

    options = NystromOptions
    source, time, memory = "Xiong et al. 2021, Nyströmformer", "N·M", "N·M"

    def __init__(self, name: str, backend: str, dropout: float, options: NystromOptions) -> None:
        super().__init__(name, backend, dropout)
        self.landmarks, self.iterations = options.landmarks, options.iterations

    def attend(self, q, k, v, query_lengths, key_lengths):  # [B, H, N, E], without N × N weights
        query_lengths, key_lengths = both_lengths(query_lengths, key_lengths, q, k)
        queries, mixing, keys = self.factors(q, k, query_lengths, key_lengths)
        v = zero_padding(v, key_lengths).to(keys.dtype)
        return F.dropout(queries, self.active_dropout) @ (mixing @ (keys @ v))

    def dense(self, q, k, query_lengths, key_lengths):  # the weights, [B, H, N, S], for figures and checks
        queries, mixing, keys = self.factors(q, k, query_lengths, key_lengths)
        return queries @ (mixing @ keys)

    def factors(self, q, k, query_lengths, key_lengths):
        """Return the three matrices, [B, H, N, M], [B, H, M, M] and [B, H, M, S]; zero at padding."""
        q = zero_padding(q, query_lengths).to(compute_dtype(q)) * q.shape[-1] ** -0.5
        k = zero_padding(k, key_lengths).to(q.dtype)
        used_B = torch.minimum(query_lengths, key_lengths).clamp(max=self.landmarks)
        few_q, few_k = self.means(q, query_lengths, used_B), self.means(k, key_lengths, used_B)
        queries = zero_padding(masked_softmax(q @ few_k.mT, used_B), query_lengths)
        keys = zero_padding(masked_softmax(few_q @ k.mT, key_lengths), used_B)
        small = zero_padding(masked_softmax(few_q @ few_k.mT, used_B), used_B)
        # The norms are each matrix's own, so that an utterance is the same alone and in a batch.
        largest = (small.sum(-1).amax(-1) * small.sum(-2).amax(-1)).clamp(min=1e-6)[..., None, None]
        inverse, one = small.mT / largest, torch.eye(self.landmarks, dtype=q.dtype, device=q.device)
        for _ in range(self.iterations):
            product = small @ inverse
            inverse = 0.25 * inverse @ (13 * one - product @ (15 * one - product @ (7 * one - product)))
        return queries, inverse, keys

    def means(self, x, lengths, used):
        """Return the means of `used` segments of each sequence, [B, H, M, D]."""
        places = torch.arange(x.shape[2], device=x.device) * used[:, None] // lengths.clamp(min=1)[:, None]
        member = F.one_hot(places.clamp(max=self.landmarks - 1), self.landmarks).to(x.dtype)
        member = member * (torch.arange(x.shape[2], device=x.device) < lengths[:, None])[..., None]
        return (member.mT / member.sum(1).clamp(min=1)[..., None])[:, None] @ x
