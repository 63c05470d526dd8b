"""Sign hashes for exported graphs: sums of few bits, for runtimes whose integer sums are not exact."""

from torch import Tensor

from attention_ext.hashing.reference import hash_sign as reference_hash_sign

EXACT_BITS = 31  # onnxruntime adds int64 in floating point


def hash_sign(x_BHND: Tensor, planes_PD: Tensor) -> Tensor:
    """See `reference.hash_sign`; the same bits, put together from parts."""
    hashes_BHN = reference_hash_sign(x_BHND, planes_PD[:EXACT_BITS])
    for start in range(EXACT_BITS, planes_PD.shape[0], EXACT_BITS):
        part_BHN = reference_hash_sign(x_BHND, planes_PD[start : start + EXACT_BITS])
        hashes_BHN = hashes_BHN + part_BHN * 2**start
    return hashes_BHN
