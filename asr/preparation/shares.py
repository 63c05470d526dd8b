"""Splits of data that comes without: development and test shares of speakers or texts, fixed by hashes."""

import hashlib
from collections.abc import Sequence

# Fewer speakers than this are too few to hold some out: sentences are held out instead.
SPEAKERS_TO_HOLD_OUT = 10


def position(group: str) -> float:
    """Return where a group lies between 0 and 1: fixed by its hash, whatever else there is."""
    return int(hashlib.sha256(group.encode()).hexdigest()[:13], 16) / 16**13


def split_groups(groups: Sequence[str], dev_share: float, test_share: float) -> dict[str, str]:
    """Return the split of each group.

    A group's hash decides, so nothing moves when data is added; only where dev or test would be empty,
    it gets the group that comes nearest.

    Args:
        groups: speakers or texts; whatever shares one is in one split.
        dev_share: of the groups, 0 … 1.
        test_share: of the groups, 0 … 1.
    """
    ordered = sorted(set(groups), key=position)
    tested = sum(position(group) < test_share for group in ordered)
    tested = max(tested, 1) if test_share > 0 else 0
    developed = sum(position(group) < test_share + dev_share for group in ordered)
    developed = max(developed, tested + 1) if dev_share > 0 else tested
    return {
        group: "test" if rank < tested else "dev" if rank < developed else "train"
        for rank, group in enumerate(ordered)
    }
