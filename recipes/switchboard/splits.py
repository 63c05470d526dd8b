"""Training and development splits of Switchboard, as in Kaldi's recipe."""

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from .transcripts import Segment

SEGMENTS = 264_333
DEVELOPMENT = 4_000
COPIES = 300


def divide(segments: Iterable[Segment], development: int = DEVELOPMENT) -> dict[str, list[Segment]]:
    """Return train_dev (first by id), train_nodev (the rest) and train_nodup (about 300 copies per text)."""
    ordered = sorted(segments, key=lambda segment: segment.name)
    nodev = ordered[development:]
    return {
        "train_dev": ordered[:development],
        "train_nodev": nodev,
        "train_nodup": list(without_copies(nodev)),
    }


def without_copies(segments: Sequence[Segment], copies: int = COPIES, seed: int = 0) -> Iterator[Segment]:
    """Yield each of the n > `copies` segments of a text with probability `copies` / n, others always."""
    counts = Counter(segment.text for segment in segments)
    rng = random.Random(seed)
    for segment in segments:
        count = counts[segment.text]
        if count <= copies or rng.random() < copies / count:
            yield segment
