"""Sign hashes for exported graphs: summed in parts, because a runtime may add int64 in floating point."""

from torch import Tensor

from attention_ext.hashing.reference import hash_sign as reference_hash_sign

EXACT_BITS = 31  # as many as onnxruntime sums exactly


def hash_sign(x_BHND: Tensor, planes_PD: Tensor) -> Tensor:
    """Return the hashes of `reference.hash_sign`, summed 31 bits at a time."""
    hashes_BHN = reference_hash_sign(x_BHND, planes_PD[:EXACT_BITS])
    for start in range(EXACT_BITS, planes_PD.shape[0], EXACT_BITS):
        part_BHN = reference_hash_sign(x_BHND, planes_PD[start : start + EXACT_BITS])
        hashes_BHN = hashes_BHN + part_BHN * 2**start
    return hashes_BHN
