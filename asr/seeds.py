"""Random seeds derived from keys such as (seed, epoch, utterance)."""

import numpy as np


def derived_seed(*key: int) -> int:
    """Return a 32-bit seed for a key of non-negative integers, e.g. (seed, batch, rank).

    It has 32 bits, because PyTorch's CPU generator ignores further ones.
    """
    # Mixed rather than added, because (0, 1) and (1, 0) have the same sum.
    return int(np.random.SeedSequence(key).generate_state(1)[0])
