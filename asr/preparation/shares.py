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

    A group's hash decides, so nothing moves when data is added; only where chance would leave dev or test
    empty, or give it more than twice its share, which few groups may see, the nearest groups make up for it.

    Args:
        groups: speakers or texts; whatever shares one is in one split.
        dev_share: of the groups, 0 … 1.
        test_share: of the groups, 0 … 1.
    """
    ordered = sorted(set(groups), key=position)
    below = [
        sum(position(group) < limit for group in ordered) for limit in (test_share, test_share + dev_share)
    ]
    tested = _within_reason(below[0], test_share * len(ordered))
    developed = tested + _within_reason(below[1] - tested, dev_share * len(ordered))
    return {
        group: "test" if rank < tested else "dev" if rank < developed else "train"
        for rank, group in enumerate(ordered)
    }


def _within_reason(count: int, expected: float) -> int:
    """At least one and at most twice what is expected; none where none is."""
    return min(max(count, 1), max(round(2 * expected), 1)) if expected else 0
