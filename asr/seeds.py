"""Seeds derived from keys, so that random numbers follow from what they are for."""

import numpy as np


def derived_seed(*key: int) -> int:
    """Return a 32-bit seed for non-negative integers, e.g. (seed, batch, rank).

    32 bits because PyTorch's CPU generator ignores all others.
    """
    return int(np.random.SeedSequence(key).generate_state(1)[0])
