"""Training and development splits of Switchboard, as in Kaldi's recipe."""

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from .options import DEVELOPMENT
from .transcripts import SideSegment

SEGMENTS = 264_333
COPIES = 300


def divide(segments: Iterable[SideSegment], development: int = DEVELOPMENT) -> dict[str, list[SideSegment]]:
    """Return train_dev (first by id), train_nodev (the rest) and train_nodup (about 300 copies per text)."""
    ordered = sorted(segments, key=lambda segment: segment.name)
    nodev = ordered[development:]
    return {
        "train_dev": ordered[:development],
        "train_nodev": nodev,
        "train_nodup": list(without_copies(nodev)),
    }


def without_copies(
    segments: Sequence[SideSegment], copies: int = COPIES, seed: int = 0
) -> Iterator[SideSegment]:
    """Yield each of the n > `copies` segments of a text with probability `copies` / n, others always."""
    counts = Counter(segment.text for segment in segments)
    rng = random.Random(seed)
    for segment in segments:
        count = counts[segment.text]
        # Drawn, because the first copies by id are all from early conversations.
        if count <= copies or rng.random() < copies / count:
            yield segment
