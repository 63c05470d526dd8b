"""Axes: minimum span of linear ones, when to use logarithmic ones, and round labels for those."""

import math
from collections.abc import Sequence

import altair as alt

LEAST_SPAN = 0.2  # minimum of span / centre on a linear axis, so that tiny differences don't fill it
SPREAD = 3.0  # largest / smallest value above which a linear axis would crowd the small values
TICKS = 4  # minimum number of labels, if round numbers allow it
STEPS = ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 8))  # round numbers per decade, from few to many


def extent(values: Sequence[float]) -> tuple[float, float]:
    """Return the ends of a linear axis: the range of the values, or a wider one if they hardly differ.

    Example:
        >>> extent([2.0, 9.0]), extent([99.8, 100.2]), extent([0.0])
        ((2.0, 9.0), (90.0, 110.0), (0.0, 1.0))
    """
    low, high = min(values), max(values)
    if low == high == 0:
        return 0.0, 1.0
    margin = max(0.0, LEAST_SPAN * abs(low + high) / 2 - (high - low)) / 2
    return low - margin, high + margin


def needs_log(values: Sequence[float]) -> bool:
    """Return whether the values need a logarithmic axis.

    Example:
        >>> needs_log([1.0, 2.5]), needs_log([1.0, 9.0]), needs_log([0.0, 9.0])
        (False, True, False)
    """
    return min(values) > 0 and max(values) / min(values) > SPREAD


def log_axis(values: Sequence[float], number: str = "~g") -> alt.Axis:
    """Return a logarithmic axis labelled at `log_ticks`; without `tickCount` Vega would drop some labels."""
    return alt.Axis(values=list(values), tickCount=len(values), format=number)


def log_ticks(values: Sequence[float]) -> list[float]:
    """Return labels for a logarithmic axis over positive values.

    Example:
        >>> log_ticks([2.4, 9.8]), log_ticks([4, 350]), log_ticks([0.5, 20_000])
        ([3, 4, 5, 6, 8], [10, 30, 100, 300], [1, 10, 100, 1000, 10000])
    """
    low, high = min(values), max(values)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks: list[float] = []
    for steps in STEPS:
        rounds = [step * 10**decade for decade in decades for step in steps]
        ticks = [value for value in rounds if low <= value <= high]
        if len(ticks) >= TICKS:
            break
    return ticks
