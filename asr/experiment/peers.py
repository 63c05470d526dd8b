"""Adapters to the attention of other libraries: pytorch-fast-transformers and reformer-pytorch."""

import re
from collections.abc import Callable

import torch
from torch import Tensor

from asr.errors import UserError

Attend = Callable[..., Tensor]  # called with q, k, v, or with a layer's input
CHUNK = 32  # positions in a chunk of LSH attention, the default of `lsh` as well


def build_peer(name: str, *, length: int, batch: int, device: str) -> Attend:
    """Return the attention function of another library.

    Args:
        name: `clustered-C` or `i-clustered-C` (pytorch-fast-transformers), or `lsh-R` (reformer-pytorch).
        length, batch: size of the input.
        device: device of the input.

    Returns:
        A function of q, k, v, [B, H, N, D] each. LSH attention derives its own keys from q.

    Raises:
        UserError: an unknown name, a length that doesn't fit, or a library that isn't installed.
    """
    found = re.fullmatch(r"(clustered|i-clustered|lsh)-([1-9]\d*)", name)
    if found is None:
        raise UserError(f"peer:{name}: expected peer:clustered-C, peer:i-clustered-C or peer:lsh-R")
    kind, number = found[1], int(found[2])
    if kind == "lsh":
        return _build_lsh(name, number, length, device)
    return _build_clustered(name, kind, number, length, batch, device)


def _build_clustered(name: str, kind: str, clusters: int, length: int, batch: int, device: str) -> Attend:
    try:
        from fast_transformers.attention import ClusteredAttention, ImprovedClusteredAttention
        from fast_transformers.masking import FullMask, LengthMask
    except ImportError as error:
        raise UserError(f"peer:{name} needs pytorch-fast-transformers: {error}") from None
    # Iterations, bits and, below, top keys are the defaults of our mechanisms as well.
    options = {"clusters": clusters, "iterations": 10, "bits": 63, "attention_dropout": 0.0}
    if kind == "clustered":
        module = ClusteredAttention(**options).eval().to(device)
    else:
        module = ImprovedClusteredAttention(**options, topk=32).eval().to(device)
    full = FullMask(length, device=device)
    lengths = LengthMask(torch.full((batch,), length), device=device)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        # The library takes [B, N, H, D] and transposes it back, so these views cost no copy.
        rows = (x.transpose(1, 2) for x in (q, k, v))
        return module(*rows, full, lengths, lengths).transpose(1, 2)

    return attend


def _build_lsh(name: str, rounds: int, length: int, device: str) -> Attend:
    try:
        from reformer_pytorch import LSHAttention
    except ImportError as error:
        raise UserError(f"peer:{name} needs reformer-pytorch: {error}") from None
    if length % (2 * CHUNK):
        raise UserError(f"peer:{name}: length {length} is not a multiple of {2 * CHUNK}")
    # It counts a key once per round; ours counts a key only once, however many rounds share it.
    module = LSHAttention(bucket_size=CHUNK, n_hashes=rounds, dropout=0.0).eval().to(device)

    return lambda q, k, v: module(q.flatten(0, 1), v.flatten(0, 1))[0].view_as(v)
