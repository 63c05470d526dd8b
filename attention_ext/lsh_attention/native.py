"""LSH attention on the compiled kernels, with its derivative."""

from typing import Any

import torch
from torch import Tensor

from attention_ext.autograd import DifferentiableOperator, Operator
from attention_ext.tensors import compute_dtype, dropout_seed


def lsh_buckets(x_BHND: Tensor, rotations_RDF: Tensor, lengths_B: Tensor) -> Tensor:
    """Hash every vector by its angle, in R rounds; equals `reference.lsh_buckets`.

    *Reformer* §2: h(x) = argmax([xR; −xR]). Projections too close for float32 are computed in float64, so
    that the buckets are the reference's.

    Args:
        x_BHND: vectors of any floating type. The bucket of a row that holds NaN is unspecified.
        rotations_RDF: projection matrix of each round, for 2·F ≤ 65,536 buckets.
        lengths_B: valid positions of each sequence.

    Returns:
        [B, H, R, N] int32, 0 … 2·F − 1, the lowest on ties; 2·F at padding.
    """
    return BUCKETS(x_BHND.detach(), rotations_RDF.detach(), lengths_B)


def lsh_attention(
    q_BHND: Tensor,
    k_BHND: Tensor,
    v_BHNE: Tensor,
    buckets_BHRN: Tensor,
    lengths_B: Tensor,
    chunk: int,
    dropout: float = 0.0,
) -> Tensor:
    """Attend within chunks of positions sorted by bucket; equals `reference.lsh_attention`.

    *Reformer* §2. Sums are accumulated in float32 (float64 for float64). Memory grows with N·(D + E + R);
    weights are never stored. Padded positions are never read.

    Args:
        q_BHND, k_BHND, v_BHNE: queries, keys and values of the same type.
        buckets_BHRN: int32 bucket of each position in each round, 0 … 65,535; anything at padding.
        lengths_B: valid positions of each sequence.
        chunk: m ≥ 1, positions in a chunk.
        dropout: dropout probability of each round's weights; PyTorch's generator seeds each call.

    Returns:
        [B, H, N, E]; zeros at padding.
    """
    seed = dropout_seed(q_BHND, dropout)
    return OPERATOR(q_BHND, k_BHND, v_BHNE, buckets_BHRN, lengths_B, chunk, dropout, seed)


def _buckets(x: Tensor, rotations: Tensor, lengths: Tensor) -> Tensor:
    B, H, N, _ = x.shape
    return x.new_empty(B, H, rotations.shape[0], N, dtype=torch.int32)


def _outputs(q: Tensor, k: Tensor, v: Tensor, buckets: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    B, H, N, _D = q.shape
    return (
        q.new_empty(B, H, N, v.shape[3]),
        q.new_empty(B, H, 2, N, dtype=compute_dtype(q)),
        q.new_empty(buckets.shape, dtype=torch.int32),
    )


def _backward_arguments(inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> tuple[Any, ...]:
    q, k, v, _, *others = inputs
    return (q, k, v, *others, *output)


BUCKETS = Operator("lsh_buckets", _buckets)
OPERATOR = DifferentiableOperator("lsh_attention", _outputs, _backward_arguments)
