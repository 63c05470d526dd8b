"""Training and development splits of Switchboard, as in Kaldi's recipe."""

from collections import Counter
from collections.abc import Iterable, Iterator

from .transcripts import Segment

SEGMENTS = 264_333
DEVELOPMENT = 4_000
COPIES = 300


def divide(segments: Iterable[Segment], development: int = DEVELOPMENT) -> dict[str, list[Segment]]:
    """Return train_dev (first by id), train_nodev (the rest) and train_nodup (limited copies per text)."""
    ordered = sorted(segments, key=lambda segment: segment.name)
    nodev = ordered[development:]
    return {
        "train_dev": ordered[:development],
        "train_nodev": nodev,
        "train_nodup": list(without_copies(nodev)),
    }


def without_copies(segments: Iterable[Segment], copies: int = COPIES) -> Iterator[Segment]:
    """Yield the first `copies` segments of each text."""
    seen: Counter[str] = Counter()
    for segment in segments:
        seen[segment.text] += 1
        if seen[segment.text] <= copies:
            yield segment
