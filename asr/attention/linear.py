"""Linear attention: a kernel in place of the softmax, so that keys and values are summed once."""

import torch.nn.functional as F
from torch import Tensor

from asr.attention.softmax import QueryKeyMechanism, both_lengths
from asr.attention.spec import CausalOptions
from attention_ext.tensors import compute_dtype, zero_padding

# Positions per chunk of causal attention, which stores one sum per chunk. For D = E = 64, the sums, N/64
# matrices [D, E], take as much memory as the weights within chunks, [N, 64].
CHUNK = 64
# Lower bound on the sum of a query's similarities, which underflows if query and keys share no feature.
SMALLEST_SUM = 1e-20


class LinearAttention(QueryKeyMechanism):
    """Every query reads sums over all keys and values, with a kernel in place of the softmax.

    V̂_i = φ(q_i)ᵀ Σ_j φ(k_j) v_jᵀ / φ(q_i)ᵀ Σ_j φ(k_j) with φ(x) = elu(x) + 1.

    *Transformers are RNNs* (Katharopoulos et al. 2020) eq. 5 and 7; causal, the sums run over j ≤ i (eq. 8).
    It has no parameters, but its weights aren't a softmax, so models must be trained with it. Sums are in
    float32 (float64 for float64); if a query's similarities sum to less than 1e-20, its weights are too
    small. Time is N·D·E; causal, memory is N·(D + E + 64) + N·D·E/64.

    Args:
        name, backend: see `QueryKeyMechanism`.
        dropout: dropout probability on φ(q).
        options: whether it is causal.
    """

    options = CausalOptions
    source = "[Katharopoulos et al. 2020, Transformers are RNNs](https://arxiv.org/abs/2006.16236)"
    time = memory = "N"
    family = "linear"

    def __init__(self, name: str, backend: str, dropout: float, options: CausalOptions) -> None:
        super().__init__(name, backend, dropout)
        self.causal = options.causal
        self.cross_attention = not options.causal

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, query_lengths: Tensor | None, key_lengths: Tensor | None
    ) -> Tensor:
        """See `QueryKeyMechanism`."""
        return self._attend(q, k, v, *both_lengths(query_lengths, key_lengths, q, k))

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
        """See `QueryKeyMechanism`: an addend of logits becomes a factor of the key's similarities."""
        return self._attend(q, k, v, *both_lengths(query_lengths, key_lengths, q, k), bias_BS)

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        query_lengths: Tensor,
        key_lengths: Tensor,
        bias_BS: Tensor | None = None,
    ) -> Tensor:
        features_q, features_k = _features(_shifted(q), query_lengths), _features(k, key_lengths)
        if bias_BS is not None:
            features_k = features_k * bias_BS.exp().to(features_k.dtype)[:, None, :, None]
        v = zero_padding(v, key_lengths).to(features_k.dtype)
        attend = _causal if self.causal else _bidirectional
        sums_BHNE, total_BHN1 = attend(features_q, features_k, v, self.active_dropout)
        return sums_BHNE / total_BHN1.clamp(min=SMALLEST_SUM)

    def dense(self, q: Tensor, k: Tensor, query_lengths: Tensor, key_lengths: Tensor) -> Tensor:
        """See `QueryKeyMechanism`."""
        similarity_BHNS = _features(_shifted(q), query_lengths) @ _features(k, key_lengths).mT
        similarity_BHNS = similarity_BHNS.tril() if self.causal else similarity_BHNS
        return similarity_BHNS / similarity_BHNS.sum(-1, keepdim=True).clamp(min=SMALLEST_SUM)


def _features(x_BHND: Tensor, lengths_B: Tensor) -> Tensor:
    """Return φ(x), zero at padding."""
    x_BHND = zero_padding(x_BHND, lengths_B).to(compute_dtype(x_BHND))
    # A sum rather than elu(x) + 1, in which exp(x) − 1 + 1 would lose small features to rounding.
    return zero_padding(x_BHND.clamp(max=0).exp() + x_BHND.relu(), lengths_B)


def _shifted(q_BHND: Tensor) -> Tensor:
    """Shift queries whose entries are all negative, so that φ(q) doesn't underflow; the scale cancels."""
    return q_BHND - q_BHND.detach().amax(-1, keepdim=True).clamp(max=0)


def _bidirectional(q_BHND: Tensor, k_BHSD: Tensor, v_BHSE: Tensor, dropout: float) -> tuple[Tensor, Tensor]:
    """Return numerator and denominator of every query."""
    total_BHN1 = q_BHND @ k_BHSD.sum(2, keepdim=True).mT
    return F.dropout(q_BHND, dropout) @ (k_BHSD.mT @ v_BHSE), total_BHN1


def _causal(q_BHND: Tensor, k_BHND: Tensor, v_BHNE: Tensor, dropout: float) -> tuple[Tensor, Tensor]:
    """Like `_bidirectional`, over j ≤ i: sums of earlier chunks, and similarities within the chunk."""
    N = q_BHND.shape[2]
    q, k, v = (F.pad(x, (0, 0, 0, -N % CHUNK)).unflatten(2, (-1, CHUNK)) for x in (q_BHND, k_BHND, v_BHNE))
    kept = F.dropout(q, dropout)

    def earlier(x_BHLDE: Tensor) -> Tensor:
        return F.pad(x_BHLDE.cumsum(2)[:, :, :-1], (0, 0, 0, 0, 1, 0))

    sums = kept @ earlier(k.mT @ v) + (kept @ k.mT).tril() @ v
    total = q @ earlier(k.sum(3).unsqueeze(-1)) + (q @ k.mT).tril().sum(-1, keepdim=True)
    return sums.flatten(2, 3)[:, :, :N], total.flatten(2, 3)[:, :, :N]
