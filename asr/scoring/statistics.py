"""Statistics: bootstrap, intervals over items and seeds, paired differences and tests, the Pareto front."""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Interval = tuple[float, float]
Values = NDArray[np.float64]
Draws = NDArray[np.intp]  # [draws, items] indices of items
Statistic = Callable[[Draws], Values]  # [draws] values; none for a draw that has no value
DASH = "–"  # stands for an unknown value
BETWEEN = " … "  # between the ends of an interval, which may be negative

# Two-sided 95 % quantiles of Student's t for 1 to 30 degrees of freedom; beyond them, the normal's. A table,
# because SciPy would be a dependency for one function.
T_95 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


@dataclass(frozen=True)
class Estimate:
    """A measured value with its spread.

    Attributes:
        value: mean of an error rate or score, median of a time.
        low, high: 95 % interval of an error rate or score, lowest and highest of several times; None if
            unknown.
        count: number of seeds or repeats.
        over: source of the spread: `seeds`, `utterances` or other items, both (`seeds and utterances`), or
            `repeats`.
    """

    value: float
    low: float | None
    high: float | None
    count: int
    over: str

    @classmethod
    def bootstrapped(cls, value: float, interval: Interval | None, over: str = "utterances") -> "Estimate":
        """Return a value with its bootstrap interval; None for a single item, whose spread is unknown."""
        low, high = interval or (None, None)
        return cls(value, low, high, 1, over)

    def __neg__(self) -> "Estimate":
        low, high = self.interval or (None, None)
        ends = (None if high is None else -high, None if low is None else -low)
        return Estimate(-self.value, *ends, self.count, self.over)

    @property
    def interval(self) -> Interval | None:
        """Both ends of the spread; None if unknown."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    def ends(self, form: Callable[[float], str]) -> str:
        """Return the spread in the format of a number, e.g. `7.52 … 8.71`; empty if unknown."""
        return BETWEEN.join(map(form, self.interval or ()))

    def text(self, form: Callable[[float], str]) -> str:
        """Return the value with its spread, if known.

        Example:
            >>> Estimate(0.081, 0.0752, 0.0871, 1, "utterances").text(percent)
            '8.10 (7.52 … 8.71)'
            >>> Estimate(-0.2, -0.4, 0.1, 1, "examples").text("{:.1f}".format)
            '-0.2 (-0.4 … 0.1)'
        """
        ends = self.ends(form)
        return f"{form(self.value)} ({ends})" if ends else form(self.value)

    def level_with(self, other: "Estimate") -> bool:
        """Return whether the ranges of two times overlap: the measurement shows no difference.

        Error rates are compared by their `paired_difference` instead, where there is one. A value of unknown
        spread counts as a range of one point.
        """
        low, high = self.interval or (self.value, self.value)
        other_low, other_high = other.interval or (other.value, other.value)
        return low <= other_high and other_low <= high


def percent(fraction: float) -> str:
    """Return a fraction in percent with two decimals, without the sign."""
    return f"{100 * fraction:.2f}"


def pooled(amounts: Sequence[float] | NDArray[Any], sizes: Sequence[float] | NDArray[Any]) -> Statistic:
    """Return the statistic (sum of amounts) / (sum of sizes) over the drawn items, such as an error rate.

    A draw whose sizes sum to 0 has no value.

    Example:
        >>> pooled([1, 3], [10, 10])(np.array([[0, 1], [1, 1]]))
        array([0.2, 0.3])
    """
    above, below = np.asarray(amounts), np.asarray(sizes)

    def rates(drawn: Draws) -> Values:
        total, size = above[drawn].sum(axis=1), below[drawn].sum(axis=1)
        return np.asarray(total[size > 0] / size[size > 0], dtype=np.float64)

    return rates


def bootstrap(statistic: Statistic, items: int, samples: int, seed: int) -> Values:
    """Return a statistic of bootstrap samples: corpora drawn with replacement from the items of one.

    Args:
        statistic: function of the draws; a draw without value is repeated.
        items: number of items to draw from: utterances, examples, or groups of them.
        samples: number of bootstrap samples; equal seeds draw equal samples, for paired comparisons.
        seed: random seed.
    """
    generator = np.random.default_rng(seed)
    values = np.empty(0)
    # Drawing in blocks keeps memory near 32 MiB for a corpus of any size.
    block = max(1, 4_000_000 // items)
    while (missing := samples - len(values)) > 0:
        values = np.append(values, statistic(generator.integers(items, size=(min(block, missing), items))))
    return values


def percentiles(values: Values) -> Interval:
    """Return the 95 % percentile interval of resampled values."""
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)


def bootstrap_interval(
    amounts: Sequence[float] | NDArray[Any],
    sizes: Sequence[float] | NDArray[Any],
    *,
    samples: int = 1000,
    seed: int = 0,
) -> Interval:
    """Return the 95 % percentile bootstrap interval of a pooled rate, such as an error rate.

    Utterances, not words, are resampled, because errors within an utterance are correlated (Bisani and Ney,
    *Bootstrap estimates for confidence intervals in ASR performance evaluation*, 2004). The bootstrap ignores
    that utterances of a speaker are correlated, too: with few speakers, the interval holds for these only.

    Args:
        amounts: errors of each utterance.
        sizes: reference tokens of each utterance.
        samples, seed: see `bootstrap`.

    Raises:
        ValueError: the sum of the sizes isn't positive.
    """
    return percentiles(bootstrap(_pooled_checked(amounts, sizes), len(amounts), samples, seed))


def _pooled_checked(
    amounts: Sequence[float] | NDArray[Any], sizes: Sequence[float] | NDArray[Any]
) -> Statistic:
    if np.sum(sizes) <= 0:
        raise ValueError("an error rate needs at least one reference token")
    return pooled(amounts, sizes)


@dataclass(frozen=True)
class BootstrapTest:
    """Difference of two systems' pooled rates, as fractions.

    Attributes:
        difference: rate of the first system minus rate of the second.
        interval: 95 % bootstrap interval.
        p: two-sided p-value: twice the smaller fraction of bootstrap samples on one side of zero, at least
            2 / (samples + 1).
    """

    difference: float
    interval: Interval
    p: float


def bootstrap_test(
    more: NDArray[Any], sizes: NDArray[Any], *, samples: int = 1000, seed: int = 0
) -> BootstrapTest:
    """Bootstrap the difference of two systems' rates, drawing the same items for both: Bisani and Ney 2004.

    Args:
        more: errors of the first system minus errors of the second, for each utterance.
        sizes, samples, seed: see `bootstrap_interval`.

    Raises:
        ValueError: the sum of the sizes isn't positive.
    """
    differences = bootstrap(_pooled_checked(more, sizes), len(more), samples, seed)
    # Counting one more avoids a p-value of zero: Davison and Hinkley 1997, equation 4.11.
    counts = [int((differences <= 0).sum()), int((differences >= 0).sum())]
    p = min(1.0, 2 * (min(counts) + 1) / (samples + 1))
    return BootstrapTest(float(more.sum() / sizes.sum()), percentiles(differences), p)


def ratio_interval(values: Values, baseline: Values) -> Interval | None:
    """Return the 95 % interval of the ratio of two systems' values on the same resampled items.

    Return None unless all baseline values are positive.
    """
    return percentiles(values / baseline) if (baseline > 0).all() else None


def over_seeds(values: Sequence[float]) -> Estimate:
    """Return the mean with Student's 95 % interval of the mean.

    Example:
        >>> estimate = over_seeds([0.10, 0.11, 0.12])
        >>> round(estimate.value, 4), round(estimate.low, 4), round(estimate.high, 4)
        (0.11, 0.0852, 0.1348)
    """
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Estimate(mean, None, None, len(values), "seeds")
    half = t_quantile(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return Estimate(mean, mean - half, mean + half, len(values), "seeds")


def t_quantile(freedom: float) -> float:
    """Return the two-sided 95 % quantile of Student's t; degrees of freedom are rounded down."""
    return T_95[int(freedom) - 1] if freedom < len(T_95) + 1 else 1.96 + 2.4 / freedom


def paired_difference(errors: Values, lengths: Values, items: str = "utterances") -> Estimate:
    """Return the difference of two systems' error rates, with a 95 % interval for other seeds and utterances.

    Seeds and utterances are crossed random effects. The variance of the difference is estimated as the sum of
    two: of a mean over seeds, and of a mean over utterances (of the ratio's linearised residuals); degrees of
    freedom are Satterthwaite's. Their interaction counts in both, so the interval is too wide rather than too
    narrow. With one seed it covers utterances only; with one utterance, seeds only.

    Args:
        errors: [S, U] errors of the first system minus errors of the second, by seed and utterance.
        lengths: [U] reference tokens of each utterance; the sum must be positive.
        items: name of the utterances in `Estimate.over`.

    Example:
        >>> errors, lengths = np.array([[3.0, 1, 2, 0], [2, 2, 1, 2]]), np.array([10.0, 10, 10, 10])
        >>> paired_difference(errors, lengths).text(percent)
        '16.25 (5.48 … 27.02)'
    """
    seeds, utterances = errors.shape
    value = float(errors.sum() / (seeds * lengths.sum()))
    variances: dict[str, tuple[float, int]] = {}  # of the mean, with degrees of freedom
    if seeds > 1:
        rates = errors.sum(axis=1) / lengths.sum()
        variances["seeds"] = float(rates.var(ddof=1)) / seeds, seeds - 1
    if utterances > 1:
        residuals = (errors.mean(axis=0) - value * lengths) / lengths.mean()
        variances[items] = float(residuals.var(ddof=1)) / utterances, utterances - 1
    over = " and ".join(variances)
    if not variances:
        return Estimate(value, None, None, seeds, over)
    total = sum(variance for variance, _ in variances.values())
    uncertainty = sum(variance**2 / freedom for variance, freedom in variances.values())
    half = t_quantile(total**2 / uncertainty) * math.sqrt(total) if uncertainty else 0.0
    return Estimate(value, value - half, value + half, seeds, over)


def spread(values: Iterable[float | None], over: str) -> Estimate | None:
    """Return the median of the known values, with the lowest and highest; None if none is known.

    Disturbances only lengthen a time, so a mean would follow the worst disturbance.

    Args:
        values: times of repeats or seeds.
        over: `seeds` or `repeats`.

    Example:
        >>> spread([4.2, 4.0, None, 4.1], "repeats")
        Estimate(value=4.1, low=4.0, high=4.2, count=3, over='repeats')
    """
    known = [value for value in values if value is not None]
    if not known:
        return None
    low, high = (min(known), max(known)) if len(known) > 1 else (None, None)
    return Estimate(statistics.median(known), low, high, len(known), over)


def fastest(times: Mapping[str, Estimate]) -> list[str]:
    """Return the labels whose times can't be told from the lowest, in order of their medians.

    Example:
        >>> fast, near, slow = (spread(x, "repeats") for x in ([4.0, 4.2], [4.1, 4.3], [5.0, 5.1]))
        >>> fastest({"slow": slow, "near": near, "fast": fast})
        ['fast', 'near']
    """
    order = sorted(times, key=lambda label: times[label].value)
    return [label for label in order if times[label].level_with(times[order[0]])]


Point = tuple[Estimate, float]  # time and mean error rate of a model


def dominates(one: Point, other: Point, level_errors: bool) -> bool:
    """Return whether a model dominates another.

    It does if it isn't slower beyond the spread, its mean error rate isn't higher, and the difference in time
    or in error rate exceeds the spread.

    Args:
        one, other: the models.
        level_errors: whether their error rates don't differ significantly.
    """
    (time, error), (other_time, other_error) = one, other
    level_times = time.level_with(other_time)
    if error > other_error or (time.value > other_time.value and not level_times):
        return False
    return not (level_times and level_errors)


def pareto_front(points: Mapping[str, Point], level_errors: Callable[[str, str], bool]) -> list[str]:
    """Return the labels of the points that no point of the front `dominates`, fastest first.

    A dominated point excludes no other point, because being level in time isn't transitive.

    Args:
        points: models by label.
        level_errors: function of two labels; see `dominates`.

    Example:
        >>> points = {"a": (3.0, 0.1), "b": (1.0, 0.3), "c": (2.0, 0.4), "d": (2.0, 0.2)}
        >>> exact = {label: (spread([time], "repeats"), error) for label, (time, error) in points.items()}
        >>> pareto_front(exact, lambda one, other: points[one][1] == points[other][1])
        ['b', 'd', 'a']
    """
    front: list[str] = []
    for label in sorted(points, key=lambda x: (points[x][1], points[x][0].value)):
        # Points already in the front have no more errors; later ones have no fewer.
        if not any(dominates(points[x], points[label], level_errors(x, label)) for x in front):
            front.append(label)
    return sorted(front, key=lambda label: (points[label][0].value, points[label][1]))
