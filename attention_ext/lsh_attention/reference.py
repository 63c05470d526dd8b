"""LSH attention in plain PyTorch, the oracle for the compiled kernels."""

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_ext.tensors import compute_dtype, zero_padding


def lsh_buckets(x_BHND: Tensor, rotations_RDF: Tensor, lengths_B: Tensor) -> Tensor:
    """Hash every vector by its angle, in R rounds.

    *Reformer* §2: h(x) = argmax([xR; −xR]). Computed in float64 for every input type, so that a position's
    bucket depends neither on the rest of the batch nor on the device or backend.

    Args:
        x_BHND: vectors of any floating type.
        rotations_RDF: projection matrix of each round, for 2·F buckets.
        lengths_B: valid positions of each sequence.

    Returns:
        [B, H, R, N] int32, 0 … 2·F − 1, the lowest on ties; 2·F at padding.

    Example:
        >>> x = torch.tensor([[2.0, -1.0], [-2.0, -3.0], [0.0, 0.0]]).view(1, 1, 3, 2)
        >>> lsh_buckets(x, torch.eye(2).unsqueeze(0), torch.tensor([2])).tolist()
        [[[[0, 3, 4]]]]
    """
    turned_BHRNF = x_BHND.detach().double().unsqueeze(2) @ rotations_RDF.double()
    buckets_BHRN = torch.cat((turned_BHRNF, -turned_BHRNF), dim=-1).argmax(-1)
    padding_BN = ~_keep(lengths_B, x_BHND.shape[2])
    return buckets_BHRN.masked_fill(padding_BN[:, None, None, :], 2 * rotations_RDF.shape[-1]).int()


def lsh_attention(
    q_BHND: Tensor,
    k_BHND: Tensor,
    v_BHNE: Tensor,
    buckets_BHRN: Tensor,
    lengths_B: Tensor,
    chunk: int,
    dropout: float = 0.0,
) -> Tensor:
    """Attend within chunks of positions sorted by bucket, and combine the rounds.

    *Reformer* §2. In each round, positions are sorted by (bucket, position), padding last. A chunk of m
    sorted positions attends to itself and to the preceding chunk, across bucket boundaries; the first chunk
    has no predecessor. The rounds' outputs are weighted by the softmax of their log-sum-exp, and the logit of
    a key that query i sees in c_ij rounds is lowered by log c_ij. The result is the softmax over the union of
    the keys seen in any round. A position attends to itself only if it sees no other. Logits, softmax
    and sums are computed in float32 (float64 for float64). Memory grows with R·N·m.

    Args:
        q_BHND, k_BHND, v_BHNE: queries, keys and values.
        buckets_BHRN: bucket of each position in each round; at padding larger than any other.
        lengths_B: valid positions of each sequence.
        chunk: m ≥ 1, positions in a chunk; clamped to N.
        dropout: dropout probability of each round's weights.

    Returns:
        [B, H, N, E] of v's type; zeros at padding.
    """
    dtype, N = compute_dtype(q_BHND), q_BHND.shape[2]
    m = min(chunk, N)
    # Pad N to a multiple of m.
    q, k, v = (
        F.pad(zero_padding(x, lengths_B).to(dtype), (0, 0, 0, -N % m)) for x in (q_BHND, k_BHND, v_BHNE)
    )
    q = q * q.shape[-1] ** -0.5

    order_BHRN = _sorted(F.pad(buckets_BHRN, (0, -N % m), value=torch.iinfo(buckets_BHRN.dtype).max))
    rank_BHRN = _rank(order_BHRN)
    q_BHRGMD = _sort_rows(q, order_BHRN).unflatten(3, (-1, m))
    k_BHRGWD = _with_chunk_before(_sort_rows(k, order_BHRN).unflatten(3, (-1, m)))
    v_BHRGWE = _with_chunk_before(_sort_rows(v, order_BHRN).unflatten(3, (-1, m)))

    query_BHRGM = order_BHRN.unflatten(3, (-1, m))
    key_BHRGW = _with_chunk_before(query_BHRGM.unsqueeze(-1)).squeeze(-1)
    valid_BHRGW = key_BHRGW < lengths_B.view(-1, 1, 1, 1, 1)
    valid_BHRGW[:, :, :, 0, :m] = False  # the first chunk has no predecessor
    seen_BHRGMW = valid_BHRGW.unsqueeze(-2) & (key_BHRGW.unsqueeze(-2) != query_BHRGM.unsqueeze(-1))

    lowest = torch.finfo(dtype).min
    scores_BHRGMW = q_BHRGMD @ k_BHRGWD.mT - _log_rounds(rank_BHRN // m, query_BHRGM, dtype)
    scores_BHRGMW = scores_BHRGMW.masked_fill(~seen_BHRGMW, lowest)
    alone_BHRGM = ~seen_BHRGMW.any(-1)
    lse_BHRGM = scores_BHRGMW.logsumexp(-1).masked_fill(alone_BHRGM, lowest)
    weights_BHRGMW = (scores_BHRGMW - lse_BHRGM.unsqueeze(-1)).exp().masked_fill(~seen_BHRGMW, 0.0)
    out_BHRGME = F.dropout(weights_BHRGMW, dropout) @ v_BHRGWE

    lse_BHRN = lse_BHRGM.flatten(3).gather(3, rank_BHRN)
    alone_BHN = alone_BHRGM.flatten(3).gather(3, rank_BHRN).all(2)
    rank_BHRNE = rank_BHRN.unsqueeze(-1).expand(-1, -1, -1, -1, v.shape[-1])
    out_BHRNE = out_BHRGME.flatten(3, 4).gather(3, rank_BHRNE)
    out_BHNE = (lse_BHRN.softmax(2).unsqueeze(-1) * out_BHRNE).sum(2)
    out_BHNE = torch.where(alone_BHN.unsqueeze(-1), v, out_BHNE)
    return zero_padding(out_BHNE[:, :, :N], lengths_B).to(v_BHNE.dtype)


def lsh_weights(
    q_BHND: Tensor, k_BHND: Tensor, buckets_BHRN: Tensor, lengths_B: Tensor, chunk: int
) -> Tensor:
    """Return the dense [B, H, N, N] weights W that `lsh_attention` implies: output = W @ v."""
    dtype, N = compute_dtype(q_BHND), q_BHND.shape[2]
    q, k = zero_padding(q_BHND, lengths_B).to(dtype), zero_padding(k_BHND, lengths_B).to(dtype)
    seen_BHNN = q.new_zeros(*q.shape[:2], N, N, dtype=torch.bool)
    for chunk_BHN in (_rank(_sorted(buckets_BHRN)) // chunk).unbind(2):
        seen_BHNN |= _is_near(chunk_BHN.unsqueeze(-1), chunk_BHN.unsqueeze(-2))
    itself_NN = torch.eye(N, dtype=torch.bool, device=q.device)
    seen_BHNN &= _keep(lengths_B, N)[:, None, None, :] & ~itself_NN
    seen_BHNN |= ~seen_BHNN.any(-1, keepdim=True) & itself_NN
    scores_BHNN = (q * q.shape[-1] ** -0.5) @ k.mT
    return zero_padding(scores_BHNN.masked_fill(~seen_BHNN, -torch.inf).softmax(-1), lengths_B)


def _log_rounds(chunk_BHRN: Tensor, query_BHRGM: Tensor, dtype: torch.dtype) -> Tensor:
    """Return log c_ij, [B, H, R, G, M, W]: c_ij is the number of rounds in which query i sees key j."""
    count = torch.zeros((), dtype=dtype, device=chunk_BHRN.device)
    for chunk_BHN in chunk_BHRN.unbind(2):
        expanded_BHRN = chunk_BHN.unsqueeze(2).expand_as(chunk_BHRN)
        of_query_BHRGM = expanded_BHRN.gather(3, query_BHRGM.flatten(3)).view_as(query_BHRGM)
        of_key_BHRGW = _with_chunk_before(of_query_BHRGM.unsqueeze(-1)).squeeze(-1)
        count = count + _is_near(of_query_BHRGM.unsqueeze(-1), of_key_BHRGW.unsqueeze(-2))
    # The count is 0 only in the window before the first chunk, which is masked.
    return count.clamp(min=1).log()


def _keep(lengths_B: Tensor, size: int) -> Tensor:
    return torch.arange(size, device=lengths_B.device) < lengths_B.unsqueeze(-1)


def _is_near(chunk_of_query: Tensor, chunk_of_key: Tensor) -> Tensor:
    """Return True where the key lies in the query's chunk or the preceding one."""
    return (chunk_of_query == chunk_of_key) | (chunk_of_query == chunk_of_key + 1)


def _sorted(buckets_BHRN: Tensor) -> Tensor:
    """Return each round's positions sorted by (bucket, position)."""
    return buckets_BHRN.sort(dim=-1, stable=True).indices


def _rank(order_BHRN: Tensor) -> Tensor:
    """Return each position's rank in the order."""
    places = torch.arange(order_BHRN.shape[-1], device=order_BHRN.device).expand_as(order_BHRN)
    return torch.empty_like(order_BHRN).scatter(-1, order_BHRN, places)


def _sort_rows(x_BHND: Tensor, order_BHRN: Tensor) -> Tensor:
    """Return x sorted as in each round, [B, H, R, N, D]."""
    index = order_BHRN.flatten(2).unsqueeze(-1).expand(-1, -1, -1, x_BHND.shape[-1])
    return x_BHND.gather(2, index).unflatten(2, order_BHRN.shape[2:])


def _with_chunk_before(x_BHRGMD: Tensor) -> Tensor:
    """Prepend each chunk's predecessor, cyclically: [B, H, R, G, W = 2M, D]."""
    return torch.cat((x_BHRGMD.roll(1, dims=3), x_BHRGMD), dim=4)
