"""Lengths from which a mechanism is faster than the baseline: measured here, and reported by the papers."""

import math
from collections.abc import Mapping, Sequence

from asr.attention import parse_name
from asr.benchmark.mechanisms import Timing, rival
from asr.config.names import split_name

# By mechanism, for a layer with C = 100 (forward and backward on a GPU), C = 100 and K = 32 (likewise), and 8
# classes (forward on one core).
PUBLISHED = {
    "clustered": "about 1,000 (Vyas et al. 2020, C.1)",
    "i-clustered": "about 2,000 (Vyas et al. 2020, C.1)",
    "agglomerative": "a few hundred (Spellings 2019, Figure 1)",
}


def crossing(ratios: Mapping[int, float]) -> str:
    """Return in words from which length on a mechanism is faster than its baseline.

    Args:
        ratios: the baseline's time divided by the mechanism's, by length. Between two lengths, both
            logarithms are interpolated linearly.

    Example:
        >>> crossing({512: 0.5, 1024: 2.0}), crossing({512: 1.5, 1024: 2.0}), crossing({512: 2.0, 1024: 0.5})
        ('from 720', 'from 512 or less', 'nowhere up to 1,024')
    """
    lengths = sorted(ratios)
    slower = [length for length in lengths if ratios[length] <= 1]
    if not slower:
        return f"from {lengths[0]:,} or less"
    if slower[-1] == lengths[-1]:
        return f"nowhere up to {lengths[-1]:,}"
    low, high = slower[-1], lengths[lengths.index(slower[-1]) + 1]
    share = math.log(ratios[low]) / (math.log(ratios[low]) - math.log(ratios[high]))
    found = low * (high / low) ** share
    digits = 1 - math.floor(math.log10(found))  # two significant
    return f"from {round(found, digits):,.0f}"


def crossings(timings: Sequence[Timing], baseline: str) -> dict[str, str]:
    """Return from which length on each mechanism is faster than its baseline, here and in its paper."""
    names = list(dict.fromkeys(timing.name for timing in timings))
    found = {}
    for name in names:
        ratios = {x.length: x.ratio for x in timings if x.name == name and x.ratio is not None}
        against = rival(name, baseline, names)
        if not ratios or name == against:
            continue
        found[name] = f"faster than {against} {crossing(ratios)}"
        kind = "" if name.startswith("peer:") else parse_name(name.partition("@")[0]).mechanism
        if kind in PUBLISHED and split_name(against.partition("@")[0])[0] == "full":
            found[name] += f"; paper: {PUBLISHED[kind]}"
    return found
