"""Local attention on the compiled kernels, with its derivative; on CUDA, on PyTorch's fused attention."""

from typing import Any

from torch import Tensor

from attention_ext.autograd import DifferentiableOperator
from attention_ext.local_attention import sdpa
from attention_ext.tensors import compute_dtype, dropout_seed


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
    bias_BN: Tensor | None = None,
) -> Tensor:
    """Attend to the keys within a window and to the first positions; equals `reference.local_attention`.

    Sums are accumulated in float32 (float64 for float64). Memory grows with N·(D + E);
    weights are never stored. Padded positions are never read. On CUDA, see `sdpa.local_attention`.

    Args:
        q_BHND, k_BHND, v_BHNE: queries, keys and values of the same type.
        lengths_B: valid positions of each sequence.
        left, right, chunk, first: W, R, C and G, see there.
        dropout: dropout probability of the weights; PyTorch's generator seeds each call.
        bias_BN: addend of each key's logits; it receives no gradient. On CPU only.

    Returns:
        [B, H, N, E]; zeros at padding.
    """
    if q_BHND.device.type == "cuda":
        return sdpa.local_attention(q_BHND, k_BHND, v_BHNE, lengths_B, left, right, chunk, first, dropout)
    seed = dropout_seed(q_BHND, dropout)
    return OPERATOR(q_BHND, k_BHND, v_BHNE, lengths_B, left, right, chunk, first, dropout, seed, bias_BN)


def _outputs(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    B, H, N, _D = q.shape
    return q.new_empty(B, H, N, v.shape[3]), q.new_empty(B, H, 2, N, dtype=compute_dtype(q))


def _backward_arguments(inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> tuple[Any, ...]:
    return (*inputs, *output)


OPERATOR = DifferentiableOperator("local_attention", _outputs, _backward_arguments)
