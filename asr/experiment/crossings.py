"""Speed-up of operations over their baseline, and from which length they are faster, here and in papers."""

import math
from collections.abc import Mapping, Sequence

from asr.attention import parse_name
from asr.config.names import split_name
from asr.experiment.records import Evaluation
from asr.experiment.variant import Variant, mechanism_of
from asr.measure import quartiles

# By mechanism, for a layer with C = 100 (forward and backward on a GPU), C = 100 and K = 32 (likewise), and 8
# classes (forward on one core).
PUBLISHED = {
    "clustered": "about 1,000 (Vyas et al. 2020, C.1)",
    "i-clustered": "about 2,000 (Vyas et al. 2020, C.1)",
    "agglomerative": "a few hundred (Spellings 2019, Figure 1)",
}


def causal_form(name: str) -> str | None:
    """Return the causal form of a name; None for mechanisms without one, and for names that are causal.

    Example:
        >>> causal_form("full@reference"), causal_form("agglomerative-8:tie=true"), causal_form("lsh-4")
        ('full:causal=true@reference', 'agglomerative-8:causal=true,tie=true', None)
    """
    head, at, tail = Variant.read(name).attention.partition("@")
    if (
        head + at + tail != name
        or head.startswith("peer:")
        or parse_name(head).arguments.get("causal") is not False
    ):
        return None
    separator = "," if split_name(head)[2] else ":"
    return parse_name(f"{head}{separator}causal=true").name + at + tail


def rival(name: str, baseline: str, names: Sequence[str]) -> str:
    """Return the name to compare a mechanism with: the baseline, or its causal form if both are causal."""
    causal = causal_form(baseline) if baseline in names else None
    is_causal = not name.startswith("peer:") and parse_name(mechanism_of(name)).arguments.get("causal")
    return causal if causal and is_causal and causal in names else baseline


def position_us(row: Evaluation, clock: str) -> float:
    """Return the time per position of the batch in microseconds."""
    seconds = row.seconds(clock)
    assert seconds is not None, "rows of operations that ran"
    return 1e6 * seconds / row.positions


def speed_ups(rows: Sequence[Evaluation], baseline: str, clock: str) -> list[float | None]:
    """Return the baseline's time per position divided by each row's; None if the baseline didn't run.

    Args:
        rows: operations that ran, at any lengths and passes.
        baseline: name of the baseline.
        clock: `cpu` or `wall`.
    """
    times = {(row.split, row.variant): position_us(row, clock) for row in rows}
    ratios = []
    for row in rows:
        beside = [name for split, name in times if split == row.split]
        base_us = times.get((row.split, rival(row.variant, baseline, beside)))
        ratios.append(None if base_us is None else base_us / times[row.split, row.variant])
    return ratios


def fastest_by_length(rows: Sequence[Evaluation], baseline: str, clock: str) -> list[str]:
    """Return the fastest operation at each length, in words; operations with overlapping quartiles are level.

    Arguments as in `crossings`.

    Example:
        >>> from asr.experiment.bench import row_of
        >>> from asr.experiment.random_input import Problem
        >>> from asr.measure import Seconds
        >>> problem = Problem(4, 8, "fp32", "cpu", 0, batch=1, length=100)
        >>> times = {"full": (4, 4), "near-25": (2, 2), "local-64": (1.5, 3)}
        >>> rows = [row_of(x, problem, "forward", [Seconds(y, y) for y in s]) for x, s in times.items()]
        >>> fastest_by_length(rows, "full", "cpu")
        ['fastest at N = 100: near-25 (0.50 of full), level with local-64']
    """
    lines = []
    for split in dict.fromkeys(row.split for row in rows):
        ordered = sorted((x for x in rows if x.split == split), key=lambda x: position_us(x, clock))
        ranges = [[x / row.positions for x in quartiles(row.repeats_s(clock))] for row in ordered]
        level = [
            x.variant for x, (low, *_) in zip(ordered[1:], ranges[1:], strict=True) if low <= ranges[0][-1]
        ]
        full_us = next((position_us(x, clock) for x in ordered if x.variant == baseline), None)
        if len(ordered) < 2 or full_us is None:
            continue
        share = (
            ""
            if ordered[0].variant == baseline
            else f" ({position_us(ordered[0], clock) / full_us:.2f} of {baseline})"
        )
        also = f", level with {', '.join(level)}" if level else ""
        lines.append(f"fastest at N = {ordered[0].length:,}: {ordered[0].variant}{share}{also}")
    return lines


def crossing(ratios: Mapping[int, float]) -> str:
    """Return, in words, the length from which a mechanism is faster than its baseline.

    Args:
        ratios: the baseline's time divided by the mechanism's, by length. Between two lengths, the logarithms
            of both are interpolated linearly.

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
    positions = low * (high / low) ** share
    digits = 1 - math.floor(math.log10(positions))  # two significant
    return f"from {round(positions, digits):,.0f}"


def crossings(rows: Sequence[Evaluation], baseline: str, clock: str) -> dict[str, str]:
    """Return in words from which length each mechanism is faster than its baseline, here and in its paper.

    Args:
        rows: operations that ran, in the same pass.
        baseline: name of the baseline.
        clock: `cpu` or `wall`.
    """
    names = list(dict.fromkeys(row.variant for row in rows))
    faster: dict[str, dict[int, float]] = {name: {} for name in names}
    for row, ratio in zip(rows, speed_ups(rows, baseline, clock), strict=True):
        if ratio is not None:
            faster[row.variant][row.length] = ratio
    words = {}
    for name, ratios in faster.items():
        against = rival(name, baseline, names)
        if not ratios or name == against:
            continue
        words[name] = f"faster than {against} {crossing(ratios)}"
        kind = "" if name.startswith("peer:") else parse_name(mechanism_of(name)).mechanism
        if kind in PUBLISHED and split_name(mechanism_of(against))[0] == "full":
            words[name] += f"; paper: {PUBLISHED[kind]}"
    return words
