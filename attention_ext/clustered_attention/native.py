"""Clustered attention by the compiled kernels, with its derivative."""

from typing import Any

import torch
from torch import Tensor

from attention_ext.autograd import DifferentiableOperator, will_go_back
from attention_ext.library import require


def clustered_attention(
    q_BHND: Tensor,
    k_BHSD: Tensor,
    v_BHSE: Tensor,
    groups_BHN: Tensor,
    query_lengths_B: Tensor,
    key_lengths_B: Tensor,
    clusters: int,
    dropout: float = 0.0,
) -> Tensor:
    """Attend once per cluster of queries, as `reference.clustered_attention` does.

    *Fast Transformers with Clustered Attention* eq. 3–6. Sums are taken in float32 (float64 for float64);
    the C × S weights are stored on the CPU where a gradient will be asked for, else for a few keys at a time,
    on CUDA for a few heads at a time. What padded positions hold is never read. CUDA takes no float64, and
    counts a group out of range as padding.

    Args:
        q_BHND, k_BHSD, v_BHSE: queries, keys and values of one type.
        groups_BHN: cluster of each query, 0 … min(C, N) − 1; anything at padding.
        query_lengths_B, key_lengths_B: valid positions, 0 … N and 0 … S.
        clusters: C, 1 … 1024.
        dropout: probability on the C × S weights; PyTorch's generator gives one seed per call.

    Returns:
        [B, H, N, E]; zeros at padded queries, and everywhere where no key is valid.
    """
    if not torch.compiler.is_compiling():
        require(q_BHND.device.type)
    seed = dropout_seed(q_BHND, dropout)
    goes_back = will_go_back(q_BHND, k_BHSD, v_BHSE)
    return _differentiable(
        q_BHND,
        k_BHSD,
        v_BHSE,
        groups_BHN,
        query_lengths_B,
        key_lengths_B,
        clusters,
        dropout,
        seed,
        goes_back,  # keeps weights
        goes_back=goes_back,
    )[0]


def _backward_arguments(inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> tuple[Any, ...]:
    *tensors, clusters, dropout, seed, _ = inputs
    _, *others = output
    return (*tensors, clusters, dropout, seed, *others)


_differentiable = DifferentiableOperator("clustered_attention", _backward_arguments)


def register() -> None:
    """Tell PyTorch shapes and derivative; called once, when the library is loaded."""

    @torch.library.register_fake("attention_ext::clustered_attention")
    def _(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        groups: Tensor,
        query_lengths: Tensor,
        key_lengths: Tensor,
        clusters: int,
        dropout: float,
        seed: Tensor | None,
        keep_weights: bool = False,
    ) -> tuple[Tensor, ...]:
        B, H, N, D = q.shape
        C, (S, E) = min(clusters, N), v.shape[2:]
        sums = sum_dtype(q)
        return (
            q.new_empty(B, H, N, E),
            q.new_empty(B, H, 2, C, dtype=sums),
            q.new_empty(B, H, C, E, dtype=sums),
            q.new_empty(B, H, kept_size(N, S, D, C) if keeps(q, keep_weights) else 0, dtype=sums),
        )

    @torch.library.register_fake("attention_ext::clustered_attention_backward")
    def _(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
        return contiguous_like(q), contiguous_like(k), contiguous_like(v)

    _differentiable.register()


def keeps(x: Tensor, keep_weights: bool) -> bool:
    """Tell whether the kernels of x's device keep weights for the backward pass; those for CUDA never do."""
    return keep_weights and x.device.type == "cpu"


def kept_size(N: int, S: int, D: int, C: int, K: int = 0) -> int:
    """Return how many numbers of a head are kept for the backward pass: `KeptSize` in cpu_heads.h."""
    row_C, row_K = ((size + 15) // 16 * 16 for size in (C, K))
    return (S + (S + 15) // 16 + D) * row_C + N * row_K


def sum_dtype(x: Tensor) -> torch.dtype:
    """Return the type in which the kernels take sums."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def contiguous_like(x: Tensor) -> Tensor:
    """Return an empty tensor of x's shape and type, contiguous whatever x is."""
    return x.new_empty(x.shape)


def dropout_seed(x: Tensor, dropout: float) -> Tensor | None:
    """Draw what tells one call's dropped weights from another's; None without dropout."""
    return torch.randint(1 << 62, (1,), device=x.device) if dropout > 0 else None
