"""Size of the attention weights that the CPU kernels keep for the backward pass."""

from torch import Tensor


def kept_size(x: Tensor, keep_weights: bool, N: int, S: int, D: int, C: int, K: int = 0) -> int:
    """Return the numbers kept per head, as `KeptSize` in cpu_dense.h counts them.

    Args:
        x: any tensor on the operator's device; the CUDA kernels keep nothing.
        keep_weights: whether to keep weights at all.
        N, S, D, C, K: queries, keys, head size, clusters, top keys.
    """
    if not keep_weights or x.device.type != "cpu":
        return 0
    row_C, row_K = ((size + 15) // 16 * 16 for size in (C, K))
    return (S + (S + 15) // 16 + D) * row_C + N * row_K
