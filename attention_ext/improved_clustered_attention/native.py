"""Improved clustered attention by the compiled kernels, with its derivative."""

from typing import Any

import torch
from torch import Tensor

from attention_ext.autograd import DifferentiableOperator, will_go_back
from attention_ext.clustered_attention.native import (
    contiguous_like,
    dropout_seed,
    keeps,
    kept_size,
    sum_dtype,
)
from attention_ext.library import require


def improved_clustered_attention(
    q_BHND: Tensor,
    k_BHSD: Tensor,
    v_BHSE: Tensor,
    groups_BHN: Tensor,
    query_lengths_B: Tensor,
    key_lengths_B: Tensor,
    clusters: int,
    topk: int,
    dropout: float = 0.0,
) -> Tensor:
    """Clustered attention made exact on every cluster's K best keys, as the reference does.

    *Fast Transformers with Clustered Attention* eq. 9–11 and 15–17, with their true gradients; groups and
    top keys are held constant. Sums are taken in float32 (float64 for float64).

    Args:
        q_BHND, k_BHSD, v_BHSE: queries, keys and values of one type.
        groups_BHN: cluster of each query, 0 … min(C, N) − 1; anything at padding.
        query_lengths_B, key_lengths_B: valid positions, 0 … N and 0 … S.
        clusters: C, 1 … 1024.
        topk: K ≥ 1, at most 1024 on CUDA, clamped to each sequence's key length.
        dropout: probability on the weights of both parts, after the mass is taken.

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
        topk,
        dropout,
        seed,
        goes_back,  # keeps weights
        goes_back=goes_back,
    )[0]


def _backward_arguments(inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> tuple[Any, ...]:
    *tensors, clusters, _, dropout, seed, _ = inputs
    out, *others = output
    return (*tensors, clusters, dropout, seed, *others, out)


_differentiable = DifferentiableOperator("improved_clustered_attention", _backward_arguments)


def register() -> None:
    """Tell PyTorch shapes and derivative; called once, when the library is loaded."""

    @torch.library.register_fake("attention_ext::improved_clustered_attention")
    def _(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        groups: Tensor,
        query_lengths: Tensor,
        key_lengths: Tensor,
        clusters: int,
        topk: int,
        dropout: float,
        seed: Tensor | None,
        keep_weights: bool = False,
    ) -> tuple[Tensor, ...]:
        B, H, N, D = q.shape
        C, S, E = min(clusters, N), *v.shape[2:]
        K = min(topk, S)
        sums = sum_dtype(q)
        return (
            q.new_empty(B, H, N, E),
            q.new_empty(B, H, 2, C, dtype=sums),
            q.new_empty(B, H, C, E, dtype=sums),
            q.new_empty(B, H, C, dtype=sums),
            q.new_empty(B, H, C, K, dtype=torch.int32),
            q.new_empty(B, H, kept_size(N, S, D, C, K) if keeps(q, keep_weights) else 0, dtype=sums),
        )

    @torch.library.register_fake("attention_ext::improved_clustered_attention_backward")
    def _(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
        return contiguous_like(q), contiguous_like(k), contiguous_like(v)

    _differentiable.register()
