"""LSH attention of Reformer: positions whose vectors share a hash bucket attend to each other."""

import torch
import torch.nn.functional as F
from torch import Tensor

from asr.attention.clustering import LARGEST_HEAD, fixed_normal, slice_head
from asr.attention.softmax import SoftmaxMechanism, filled_lengths
from asr.lengths import keep_mask
from attention_ext.clustered_attention.reference import compute_dtype, zero_padding


class LSHAttention(SoftmaxMechanism):
    """R rounds of hashing, sorting and attending in chunks; keys are the normalised queries.

    *Reformer* §2. Of each round: angular LSH, h(x) = argmax([xR; −xR]); positions sorted by (bucket,
    position), padding last; chunks of m sorted positions attend to themselves and to the chunk before, across
    bucket borders; the first chunk has none before it. The rounds' outputs are weighted by the softmax of
    their log-sum-exp, and a key that i sees in c_ij rounds has its logit lowered by log c_ij: altogether
    the softmax over the union of what the rounds show. A position attends to itself only if it sees no
    other. Memory grows with R·N·m.

    Args:
        name, backend, dropout: see `SoftmaxMechanism`.
        rounds: R.
        chunk: m.
        buckets: an even number.
    """

    needs_shared_keys = True
    cross_attention = False
    rotations_RDF: Tensor

    def __init__(
        self, name: str, backend: str, dropout: float, rounds: int, chunk: int, buckets: int
    ) -> None:
        super().__init__(name, backend, dropout)
        self.rounds, self.chunk, self.buckets = rounds, chunk, buckets
        self.register_buffer("rotations_RDF", fixed_normal(rounds, LARGEST_HEAD, buckets // 2))

    def hash(self, k: Tensor, lengths: Tensor) -> Tensor:
        """Return the bucket of every position in every round, [B, H, R, N]; `buckets` at padding.

        In float64, so that neither batch mates nor devices move a position to another bucket.
        """
        rotations_RDF = slice_head(self.rotations_RDF, k.shape[-1], axis=1).double()
        turned_BHRNF = k.detach().double().unsqueeze(2) @ rotations_RDF
        buckets_BHRN = torch.cat((turned_BHRNF, -turned_BHRNF), dim=-1).argmax(-1)
        padding_BN = ~keep_mask(lengths, k.shape[2])
        return buckets_BHRN.masked_fill(padding_BN[:, None, None, :], self.buckets)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, query_lengths: Tensor | None, key_lengths: Tensor | None
    ) -> Tensor:
        """Compute `forward`."""
        lengths_B = filled_lengths(query_lengths, q)
        dtype, N, m = compute_dtype(q), q.shape[2], self.chunk
        # Rows of padding make N a multiple of m.
        q, k, v = (F.pad(zero_padding(x, lengths_B).to(dtype), (0, 0, 0, -N % m)) for x in (q, k, v))
        q = q * q.shape[-1] ** -0.5

        order_BHRN = self.hash(k, lengths_B).sort(dim=-1, stable=True).indices
        rank_BHRN = torch.empty_like(order_BHRN).scatter(-1, order_BHRN, _positions(order_BHRN))
        q_BHRGMD = _sort_rows(q, order_BHRN).unflatten(3, (-1, m))
        k_BHRGWD = _with_chunk_before(_sort_rows(k, order_BHRN).unflatten(3, (-1, m)))
        v_BHRGWE = _with_chunk_before(_sort_rows(v, order_BHRN).unflatten(3, (-1, m)))

        query_BHRGM = order_BHRN.unflatten(3, (-1, m))
        key_BHRGW = _with_chunk_before(query_BHRGM.unsqueeze(-1)).squeeze(-1)
        valid_BHRGW = key_BHRGW < lengths_B.view(-1, 1, 1, 1, 1)
        valid_BHRGW[:, :, :, 0, :m] = False  # nothing comes before the first chunk
        seen_BHRGMW = valid_BHRGW.unsqueeze(-2) & (key_BHRGW.unsqueeze(-2) != query_BHRGM.unsqueeze(-1))

        lowest = torch.finfo(dtype).min
        scores_BHRGMW = q_BHRGMD @ k_BHRGWD.mT - self._log_rounds(rank_BHRN // m, query_BHRGM, dtype)
        scores_BHRGMW = scores_BHRGMW.masked_fill(~seen_BHRGMW, lowest)
        alone_BHRGM = ~seen_BHRGMW.any(-1)
        lse_BHRGM = scores_BHRGMW.logsumexp(-1).masked_fill(alone_BHRGM, lowest)
        weights_BHRGMW = (scores_BHRGMW - lse_BHRGM.unsqueeze(-1)).exp().masked_fill(~seen_BHRGMW, 0.0)
        out_BHRGME = F.dropout(weights_BHRGMW, self.active_dropout) @ v_BHRGWE

        lse_BHRN = lse_BHRGM.flatten(3).gather(3, rank_BHRN)
        alone_BHN = alone_BHRGM.flatten(3).gather(3, rank_BHRN).all(2)
        rank_BHRNE = rank_BHRN.unsqueeze(-1).expand(-1, -1, -1, -1, v.shape[-1])
        out_BHRNE = out_BHRGME.flatten(3, 4).gather(3, rank_BHRNE)
        out_BHNE = (lse_BHRN.softmax(2).unsqueeze(-1) * out_BHRNE).sum(2)
        out_BHNE = torch.where(alone_BHN.unsqueeze(-1), v, out_BHNE)
        return zero_padding(out_BHNE[:, :, :N], lengths_B)

    def dense(self, q: Tensor, k: Tensor, query_lengths: Tensor, key_lengths: Tensor) -> Tensor:
        """Compute `weights`: the softmax over the union of what the rounds show."""
        dtype, N = compute_dtype(q), q.shape[2]
        q, k = zero_padding(q, query_lengths).to(dtype), zero_padding(k, key_lengths).to(dtype)
        order_BHRN = self.hash(k, key_lengths).sort(dim=-1, stable=True).indices
        rank_BHRN = torch.empty_like(order_BHRN).scatter(-1, order_BHRN, _positions(order_BHRN))
        seen_BHNN = q.new_zeros(*q.shape[:2], N, N, dtype=torch.bool)
        for chunk_BHN in (rank_BHRN // self.chunk).unbind(2):
            seen_BHNN |= _is_near(chunk_BHN.unsqueeze(-1), chunk_BHN.unsqueeze(-2))
        itself_NN = torch.eye(N, dtype=torch.bool, device=q.device)
        seen_BHNN &= keep_mask(key_lengths, N)[:, None, None, :] & ~itself_NN
        seen_BHNN |= ~seen_BHNN.any(-1, keepdim=True) & itself_NN
        scores_BHNN = (q * q.shape[-1] ** -0.5) @ k.mT
        return zero_padding(scores_BHNN.masked_fill(~seen_BHNN, -torch.inf).softmax(-1), query_lengths)

    def _log_rounds(self, chunk_BHRN: Tensor, query_BHRGM: Tensor, dtype: torch.dtype) -> Tensor:
        """Return log c_ij, [B, H, R, G, M, W]: in how many rounds query i sees key j of its window."""
        count = torch.zeros((), dtype=dtype, device=chunk_BHRN.device)
        for chunk_BHN in chunk_BHRN.unbind(2):
            expanded_BHRN = chunk_BHN.unsqueeze(2).expand_as(chunk_BHRN)
            of_query_BHRGM = expanded_BHRN.gather(3, query_BHRGM.flatten(3)).view_as(query_BHRGM)
            of_key_BHRGW = _with_chunk_before(of_query_BHRGM.unsqueeze(-1)).squeeze(-1)
            count = count + _is_near(of_query_BHRGM.unsqueeze(-1), of_key_BHRGW.unsqueeze(-2))
        # No round at all only in the window before the first chunk, which is masked.
        return count.clamp(min=1).log()


def _is_near(chunk_of_query: Tensor, chunk_of_key: Tensor) -> Tensor:
    """Return True where the key lies in the query's chunk or in the chunk before."""
    return (chunk_of_query == chunk_of_key) | (chunk_of_query == chunk_of_key + 1)


def _positions(x_BHRN: Tensor) -> Tensor:
    return torch.arange(x_BHRN.shape[-1], device=x_BHRN.device).expand_as(x_BHRN)


def _sort_rows(x_BHND: Tensor, order_BHRN: Tensor) -> Tensor:
    """Return x in the order of every round, [B, H, R, N, D]."""
    index = order_BHRN.flatten(2).unsqueeze(-1).expand(-1, -1, -1, x_BHND.shape[-1])
    return x_BHND.gather(2, index).unflatten(2, order_BHRN.shape[2:])


def _with_chunk_before(x_BHRGMD: Tensor) -> Tensor:
    """Put each chunk's predecessor before it, the last before the first: [B, H, R, G, W = 2M, D]."""
    return torch.cat((x_BHRGMD.roll(1, dims=3), x_BHRGMD), dim=4)
