"""Random seeds derived from keys such as (seed, epoch, utterance)."""

import numpy as np


def derived_seed(*key: int) -> int:
    """Return a 32-bit seed for a key of non-negative integers, e.g. (seed, batch, rank).

    PyTorch's CPU generator ignores any further bits.
    """
    return int(np.random.SeedSequence(key).generate_state(1)[0])
