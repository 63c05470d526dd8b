"""Local attention in plain PyTorch, in blocks of queries; the oracle for the compiled kernels."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_ext.tensors import compute_dtype, masked_softmax, zero_padding

SMALLEST_BLOCK = 64  # queries; smaller matrix products are slow


@dataclass(frozen=True)
class Blocks:
    """Queries in L blocks of M positions, each with the keys of W = 3·M positions and of the global ones.

    Attributes:
        q_BHLMD: queries.
        k_BHLWD, v_BHLWE: keys and values of the block, its two neighbours, and the global positions.
        seen_B1LMW: the keys that each query sees; at least one, so that every softmax is finite.
    """

    q_BHLMD: Tensor
    k_BHLWD: Tensor
    v_BHLWE: Tensor
    seen_B1LMW: Tensor


def local_attention(
    q_BHND: Tensor,
    k_BHND: Tensor,
    v_BHNE: Tensor,
    lengths_B: Tensor,
    left: int,
    right: int,
    chunk: int,
    first: int,
    dropout: float = 0.0,
) -> Tensor:
    """Attend to the keys within a window and to the first positions, which attend to all.

    *Longformer* (Beltagy et al. 2020) §3.1, sliding window and global attention with shared projections,
    with chunks as in *ChunkFormer* (Le et al. 2025): query i, in the chunk of positions c … c + C − 1, sees
    key j if c − W ≤ j ≤ c + C − 1 + R, j < G or i < G. With C = 1, that is i − W ≤ j ≤ i + R. Chunks are
    counted from the start of the sequence, the last may be shorter. Logits, softmax and sums are computed in
    float32 (float64 for float64). Memory grows with N·(W + R + C + G). Padded positions are never read.

    Args:
        q_BHND, k_BHND, v_BHNE: queries, keys and values.
        lengths_B: valid positions of each sequence.
        left: W ≥ 0, keys before the chunk of a query.
        right: R ≥ 0, keys after the chunk.
        chunk: C ≥ 1, positions of a chunk.
        first: G ≥ 0, global positions.
        dropout: dropout probability of the weights.

    Returns:
        [B, H, N, E] of v's type; zeros at padding.
    """
    dtype, G = compute_dtype(q_BHND), clamp(first, q_BHND.shape[2])
    q, k, v = (zero_padding(x, lengths_B).to(dtype) for x in (q_BHND, k_BHND, v_BHNE))
    q = q * q.shape[-1] ** -0.5
    blocks = make_blocks(q, k, v, lengths_B, left, right, chunk, first)
    scores_BHLMW = blocks.q_BHLMD @ blocks.k_BHLWD.mT
    weights_BHLMW = scores_BHLMW.masked_fill(~blocks.seen_B1LMW, -torch.inf).softmax(-1)
    out_BHNE = (F.dropout(weights_BHLMW, dropout) @ blocks.v_BHLWE).flatten(2, 3)[:, :, : q.shape[2]]
    if first:
        weights_BHGN = F.dropout(masked_softmax(q[:, :, :G] @ k.mT, lengths_B), dropout)
        out_BHNE = torch.cat((weights_BHGN @ v, out_BHNE[:, :, G:]), dim=2)
    return zero_padding(out_BHNE, lengths_B).to(v_BHNE.dtype)


def make_blocks(
    q_BHND: Tensor,
    k_BHND: Tensor,
    v_BHNE: Tensor,
    lengths_B: Tensor,
    left: int,
    right: int,
    chunk: int,
    first: int,
) -> Blocks:
    """Return the blocks of all queries; those of the first G queries don't see all that they should."""
    N = q_BHND.shape[2]
    reach = max(left, right) + chunk - 1  # of a query at the other end of its chunk
    m, G = clamp(max(reach, SMALLEST_BLOCK), N), clamp(first, N)
    query_LM1 = torch.arange(N + -N % m, device=q_BHND.device).view(-1, m, 1)
    key_L1W = query_LM1[:, :1] - m + torch.arange(3 * m, device=q_BHND.device)
    # Global keys are appended to the window, which leaves them out.
    seen_LMW = within(query_LM1, key_L1W, left, right, chunk) & (key_L1W >= G)
    seen_B1LMW = seen_LMW & (key_L1W < lengths_B.view(-1, 1, 1, 1, 1))
    seen_B1LMW = seen_B1LMW | (query_LM1 == key_L1W)
    k, v = with_neighbours(k_BHND, m), with_neighbours(v_BHNE, m)
    if first:
        k, v = (_append(x, first_x[:, :, :G]) for x, first_x in ((k, k_BHND), (v, v_BHNE)))
        valid_BG = torch.arange(G, device=q_BHND.device) < lengths_B.unsqueeze(-1)
        seen_global = valid_BG[:, None, None, None, :].expand(-1, -1, *seen_LMW.shape[:2], -1)
        seen_B1LMW = torch.cat((seen_B1LMW, seen_global), dim=-1)
    return Blocks(F.pad(q_BHND, (0, 0, 0, -N % m)).unflatten(2, (-1, m)), k, v, seen_B1LMW)


def within(query: Tensor, key: Tensor, left: int, right: int, chunk: int) -> Tensor:
    """Return whether queries see keys in their windows, for positions that broadcast."""
    if chunk == 1:
        return (key - query <= right) & (query - key <= left)
    start = query - query % chunk
    return (key - start - chunk < right) & (start - key <= left)


def local_weights(
    q_BHND: Tensor,
    k_BHND: Tensor,
    lengths_B: Tensor,
    left: int,
    right: int,
    chunk: int,
    first: int,
) -> Tensor:
    """Return the dense [B, H, N, N] weights W that `local_attention` implies: output = W @ v."""
    dtype, N = compute_dtype(q_BHND), q_BHND.shape[2]
    q, k = zero_padding(q_BHND, lengths_B).to(dtype), zero_padding(k_BHND, lengths_B).to(dtype)
    place = torch.arange(N, device=q.device)
    query_N1, key_1N = place.unsqueeze(1), place.unsqueeze(0)
    seen_NN = within(query_N1, key_1N, left, right, chunk) | (query_N1 < first) | (key_1N < first)
    scores_BHNN = (q * q.shape[-1] ** -0.5) @ k.mT
    lowest = torch.finfo(dtype).min
    return zero_padding(masked_softmax(scores_BHNN.masked_fill(~seen_NN, lowest), lengths_B), lengths_B)


def clamp(size: int, N: int) -> int:
    """Return min(size, N), or size in a graph with dynamic N, where more positions than N are padding."""
    return min(size, N) if isinstance(N, int) else size


def with_neighbours(x_BHND: Tensor, m: int) -> Tensor:
    """Return blocks of m positions with the blocks before and after: [B, H, L, 3·m, D]."""
    x_BHLMD = F.pad(x_BHND, (0, 0, m, m + -x_BHND.shape[2] % m)).unflatten(2, (-1, m))
    return torch.cat((x_BHLMD[:, :, :-2], x_BHLMD[:, :, 1:-1], x_BHLMD[:, :, 2:]), dim=3)


def _append(x_BHLWD: Tensor, x_BHGD: Tensor) -> Tensor:
    """Append the rows of the global positions to every block."""
    rows_BHLGD = x_BHGD.unsqueeze(2).expand(-1, -1, x_BHLWD.shape[2], -1, -1)
    return torch.cat((x_BHLWD, rows_BHLGD), dim=3)
