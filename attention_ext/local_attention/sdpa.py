"""Local attention on PyTorch's fused attention, for CUDA: flash, or one call for all blocks of queries."""

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_ext.flash import flash_attention, why_no_flash
from attention_ext.local_attention.reference import make_blocks
from attention_ext.tensors import zero_padding


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
    """Attend within windows; equals `reference.local_attention`, without storing the weights."""
    q, k, v = (zero_padding(x, lengths_B) for x in (q_BHND, k_BHND, v_BHNE))
    if not first and chunk == 1 and why_no_flash(q, k, v) is None:  # flash attention knows no chunks
        return zero_padding(flash_attention(q, k, v, lengths_B, (left, right), dropout), lengths_B)
    blocks = make_blocks(q, k, v, lengths_B, left, right, chunk, first)
    # Blocks join the batch: the fused kernels take four dimensions.
    rows_q, rows_k, rows_v, mask = (
        x.transpose(1, 2).flatten(0, 1)
        for x in (blocks.q_BHLMD, blocks.k_BHLWD, blocks.v_BHLWE, blocks.seen_B1LMW)
    )
    out = F.scaled_dot_product_attention(rows_q, rows_k, rows_v, attn_mask=mask, dropout_p=dropout)
    out_BHNE = out.unflatten(0, (len(q), -1)).transpose(1, 2).flatten(2, 3)[:, :, : q.shape[2]]
    if first:
        keep_BN = torch.arange(q.shape[2], device=q.device) < lengths_B.unsqueeze(-1)
        keep_BN = keep_BN | (lengths_B == 0).unsqueeze(-1)
        out_BHGE = F.scaled_dot_product_attention(
            q[:, :, :first], k, v, attn_mask=keep_BN[:, None, None, :], dropout_p=dropout
        )
        out_BHNE = torch.cat((out_BHGE, out_BHNE[:, :, out_BHGE.shape[2] :]), dim=2)
    return zero_padding(out_BHNE, lengths_B)
