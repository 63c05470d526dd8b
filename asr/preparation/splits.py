"""Splits of your own data: named by the data, or held out by hashes of speakers or sentences."""

from collections import Counter
from collections.abc import Sequence

from asr.errors import UserError
from asr.files import digest
from asr.preparation.options import SHARE_RULE
from asr.preparation.rows import Row

SPLIT_NAMES = {
    "training": "train",
    "valid": "dev",
    "validation": "dev",
    "development": "dev",
    "val": "dev",
    "eval": "test",
    "evaluation": "test",
    "testing": "test",
}
SHARE = 0.05
# Fewer utterances would make error rates too uncertain; more would leave too few to train on.
LEAST_HELD_OUT, LARGEST_SHARE = 10, 1 / 6
# With fewer speakers, `auto` holds out sentences: one speaker would be more than a tenth of the data.
SPEAKERS_TO_HOLD_OUT = 10


def split_rows(
    rows: list[Row], hold_out: str, dev_share: float | None, test_share: float | None
) -> tuple[str, dict[str, list[Row]]]:
    """Return a sentence on how the rows were split, for the data card, and the rows by split.

    Splits named by the data are kept; if there is a train but no dev, dev is held out from train. If the data
    name no splits, dev and test are held out.

    Args:
        rows: rows with text and speaker.
        hold_out: one of `HOLD_OUT`.
        dev_share: share of groups held out for dev, 0 … 1; None: see `SHARE_RULE`.
        test_share: share of groups held out for test, 0 … 1; None: see `SHARE_RULE`.

    Raises:
        UserError: only some rows name a split.
    """
    named = Counter(usual_split_name(row.split) for row in rows)
    if named[""] not in (0, len(rows)):
        row = next(row for row in rows if not row.split)
        raise UserError(
            f"{row.where}: expected a split for {row.name}, because other utterances have one; found none"
        )
    pool = "train" if not named[""] else ""
    splits: dict[str, list[Row]] = {"train": [], "dev": [], "test": []}
    for row in rows:
        splits.setdefault(usual_split_name(row.split), []).append(row)
    if pool and (named["dev"] or not named["train"]):
        return "As named by the data.", {name: members for name, members in splits.items() if members}
    candidates = splits.pop(pool)
    splits["train"] = []
    speakers = {row.speaker for row in candidates}
    by_speaker = hold_out == "speaker" or (
        hold_out == "auto" and SPEAKERS_TO_HOLD_OUT <= len(speakers) < len(candidates)
    )
    groups = [row.speaker if by_speaker else row.text for row in candidates]
    chosen = split_groups(groups, dev_share, 0.0 if pool else test_share)
    for row, group in zip(candidates, groups, strict=True):
        splits[chosen[group]].append(row)
    kind = "speakers" if by_speaker else "sentences (identical ones together)"
    how = f"Held out by hash as whole {kind}: for dev {_described(dev_share)}; "
    for_test = "as much" if test_share == dev_share else _described(test_share)
    how += "other splits as named by the data." if pool else f"for test {for_test}."
    first = ["train", "dev", "test"]
    order = first + [name for name in splits if name not in first]
    return how, {name: splits[name] for name in order if splits[name] or name == "train"}


def _described(share: float | None) -> str:
    return SHARE_RULE if share is None else f"{share:g}"


def usual_split_name(written: str) -> str:
    """Return the usual name of a split: `validation` and `Dev` are `dev`."""
    name = written.strip()
    usual = SPLIT_NAMES.get(name.lower(), name.lower())
    return usual if usual in ("train", "dev", "test") else name


def split_groups(groups: Sequence[str], dev_share: float | None, test_share: float | None) -> dict[str, str]:
    """Return the split of each group.

    A group's hash decides, so that groups keep their split when data are added. With few groups, chance may
    leave dev or test empty, or give it more than twice its share; then the groups with the nearest hashes are
    moved.

    Args:
        groups: speaker or sentence of each utterance, never divided between splits.
        dev_share: share of groups for dev, 0 … 1; None: see `SHARE_RULE`.
        test_share: share of groups for test, 0 … 1; None: see `SHARE_RULE`.
    """
    sizes = Counter(groups)
    ordered = sorted(sizes, key=hash_position)
    counts: list[int] = []
    limit = 0.0
    for share in (test_share, dev_share):
        limit += SHARE if share is None else share
        first = sum(counts)
        count = sum(hash_position(group) < limit for group in ordered) - first
        count = _within_reason(count, (SHARE if share is None else share) * len(ordered))
        if share is None:
            wanted = min(LEAST_HELD_OUT, int(len(groups) * LARGEST_SHARE))
            most = int(len(ordered) * LARGEST_SHARE)  # a speaker may have most of the utterances
            while count < most and sum(sizes[group] for group in ordered[first : first + count]) < wanted:
                count += 1
        counts.append(count)
    tested, developed = counts
    # Train gets the first group, and dev the second.
    developed = min(developed, len(ordered) - 1)
    tested = min(tested, len(ordered) - 1 - developed)
    return {
        group: "test" if rank < tested else "dev" if rank < tested + developed else "train"
        for rank, group in enumerate(ordered)
    }


def hash_position(group: str) -> float:
    """Return a group's position in 0 … 1, derived from its hash alone."""
    return int(digest(group, 13), 16) / 16**13


def _within_reason(count: int, expected: float) -> int:
    """Limit a count to 1 … 2 × expected; 0 if 0 is expected."""
    return min(max(count, 1), max(round(2 * expected), 1)) if expected else 0
