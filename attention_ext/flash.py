"""Attention over padded sequences, full or within a window, by PyTorch's flash attention on CUDA.

`scaled_dot_product_attention` takes lengths only as a mask, which excludes flash attention.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

LARGEST_HEAD = 256
LEAST_CAPABILITY = (8, 0)  # Ampere


def why_no_flash(q_BHND: Tensor, k_BHSD: Tensor, v_BHSE: Tensor) -> str | None:
    """Return the reason why flash attention can't take these queries, keys and values; None if it can."""
    if q_BHND.device.type != "cuda" or q_BHND.dtype not in (torch.float16, torch.bfloat16):
        return "flash attention needs float16 or bfloat16 on CUDA"
    if q_BHND.shape != k_BHSD.shape or q_BHND.shape != v_BHSE.shape:
        return "queries, keys and values differ in size"
    if q_BHND.shape[-1] % 8 or q_BHND.shape[-1] > LARGEST_HEAD:
        return f"flash attention needs head sizes that are multiples of 8, up to {LARGEST_HEAD}"
    gpu = torch.cuda.get_device_properties(q_BHND.device)  # cached by PyTorch, and constant in torch.compile
    if (gpu.major, gpu.minor) < LEAST_CAPABILITY:
        return f"flash attention needs compute capability 8.0 or above, found {gpu.major}.{gpu.minor}"
    return None


def flash_attention(
    q_BHND: Tensor,
    k_BHND: Tensor,
    v_BHND: Tensor,
    lengths_B: Tensor,
    window: tuple[int, int] | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Attend within each sequence; memory grows with N. Differentiable, and never synchronises.

    Args:
        q_BHND, k_BHND, v_BHND: queries, keys and values accepted by `why_no_flash`; padding is finite.
        lengths_B: valid positions of each sequence.
        window: numbers of earlier and later neighbours that a query sees; None: all.
        dropout: dropout probability of the weights.

    Returns:
        [B, H, N, D]; finite at padding.
    """
    B, _, N, _ = q_BHND.shape
    left, right = window or (None, None)
    # The padding of a sequence is treated as another sequence: packing the valid positions would need a copy,
    # and its size on the host.
    begins_B = N * torch.arange(B, device=q_BHND.device)
    ends_2B = torch.stack((begins_B + lengths_B, begins_B + N), dim=1).flatten()
    offsets = F.pad(ends_2B, (1, 0)).int()
    rows = [x.transpose(1, 2).flatten(0, 1) for x in (q_BHND, k_BHND, v_BHND)]
    # torch.nn.attention.varlen.varlen_attn is this operator without dropout.
    out_THD = torch.ops.aten._flash_attention_forward(
        *rows,
        offsets,
        offsets,
        N,
        N,
        dropout,
        False,
        False,
        window_size_left=left,
        window_size_right=right,
    )[0]
    return out_THD.unflatten(0, (B, N)).transpose(1, 2)
