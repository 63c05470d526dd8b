"""Local attention on the compiled kernels, with its derivative."""

from torch import Tensor

from attention_ext.local_attention import sdpa


def local_attention(
    q_BHND: Tensor,
    k_BHND: Tensor,
    v_BHNE: Tensor,
    lengths_B: Tensor,
    window: int,
    first: int,
    dropout: float = 0.0,
) -> Tensor:
    """Attend to the keys within a window and to the first positions; equals `reference.local_attention`."""
    return sdpa.local_attention(q_BHND, k_BHND, v_BHNE, lengths_B, window, first, dropout)
