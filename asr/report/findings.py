"""What the figures say, in sentences computed from the results: the first thing a reader sees."""

from collections.abc import Iterator
from dataclasses import dataclass

from asr.compare.estimates import Estimate
from asr.compare.results import Results
from asr.compare.words import clock_words, metric_words, percent, seconds


@dataclass(frozen=True)
class Finding:
    """A heading of one or two words and the sentence that belongs to it."""

    head: str
    text: str


def findings(results: Results) -> list[Finding]:
    """Return what can be said: accuracy, speed, the front, exchange, what is missing."""
    if not results.metrics():
        return list(_missing(results))
    split = main_split(results)
    metric = next(iter(results.metrics(split)), "")
    rates = {
        candidate.label: estimate
        for candidate in results.candidates
        if (estimate := results.error_rate(candidate.label, split, metric))
    }
    if not rates:
        return list(_missing(results))
    times = {label: time_s for label in rates if (time_s := results.forward_s(label, split)) is not None}
    return [
        *_accuracy(rates, metric, split),
        *_speed(rates, times, results.clock, split),
        *_front(list(times), results.front(split)),
        *_exchange(results, split, metric),
        *_missing(results),
    ]


def main_split(results: Results) -> str:
    """Return the split that findings are about: `test` where there is one, else the last one named."""
    return "test" if "test" in results.splits() else results.splits()[-1]


def _accuracy(rates: dict[str, Estimate], metric: str, split: str) -> Iterator[Finding]:
    order = sorted(rates, key=lambda label: rates[label].mean)
    best = [label for label in order if rates[label].mean == rates[order[0]].mean]
    rest = order[len(best) :]
    verb = "has" if len(best) == 1 else "have"
    text = f"{_and(best)} {verb} the lowest {metric_words(metric)} on {split}: {percent(rates[best[0]])} %."
    level = [label for label in rest if _overlap(rates[best[0]], rates[label])]
    if level:
        text += f" The interval overlaps with that of {_and(level)}: this comparison doesn't tell them apart."
    elif rest:
        text += f" Next is {rest[0]} with {percent(rates[rest[0]])} %."
    yield Finding("Most accurate", text)


def _speed(rates: dict[str, Estimate], times: dict[str, float], clock: str, split: str) -> Iterator[Finding]:
    if not times:
        return
    fastest = min(times, key=lambda label: times[label])
    text = f"{fastest} passes over {split} in {seconds(times[fastest])} of {clock_words(clock)}"
    reference = "full" if "full" in times else min(times, key=lambda label: rates[label].mean)
    if reference == fastest and len(times) > 1:
        reference = sorted(times, key=lambda label: times[label])[1]
    if reference != fastest:
        ratio = times[reference] / times[fastest]
        text += f", {ratio:.2f} times as fast as {reference} ({seconds(times[reference])})"
    yield Finding("Fastest", text + ".")


def _front(labels: list[str], on_front: list[str]) -> Iterator[Finding]:
    if len(labels) < 2:
        return
    beaten = [label for label in labels if label not in on_front]
    if len(on_front) == 1:
        yield Finding("Pareto front", f"{on_front[0]} alone: no model is faster, and none is more accurate.")
        return
    verb = "is" if len(beaten) == 1 else "are"
    text = f"{_and(on_front)}, from the fastest to the most accurate."
    if beaten:
        text += f" {_and(beaten)} {verb} beaten in both by another model."
    else:
        text += " No model is beaten in both."
    yield Finding("Pareto front", text)


def _exchange(results: Results, split: str, metric: str) -> Iterator[Finding]:
    """The model that keeps most of its accuracy under a mechanism that it wasn't trained with."""
    kept = []
    for candidate in results.candidates:
        own = results.error_rate(candidate.label, split, metric)
        for attention in results.attentions():
            other = results.error_rate(candidate.label, split, metric, attention)
            if own and other and attention != candidate.attention:
                kept.append((other.mean - own.mean, candidate.label, attention, own, other))
    if kept:
        change, label, attention, own, other = min(kept, key=lambda entry: entry[:3])
        text = (
            f"{label} run with {attention} instead of its own mechanism goes from {percent(own)} % to "
            f"{percent(other)} % ({_signed(100 * change)} points)"
        )
        least = f": of {len(kept)} such exchanges the one that costs least" if len(kept) > 1 else ""
        yield Finding("Exchange", f"{text}{least}.")


def _missing(results: Results) -> Iterator[Finding]:
    if results.failures:
        labels = list(dict.fromkeys(failure.candidate for failure in results.failures))
        cells = "1 cell" if len(results.failures) == 1 else f"{len(results.failures)} cells"
        yield Finding("Failed", f"{cells} failed, of {_and(labels)}: what is shown is without them.")
    states = [x.status for x in results.trainings] + [x.status for x in results.evaluations]
    if unfinished := states.count("missing"):
        yield Finding("Unfinished", f"{unfinished} cells have not run yet: the report will change.")


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")


def _overlap(a: Estimate, b: Estimate) -> bool:
    if a.low is None or a.high is None or b.low is None or b.high is None:
        return False
    return a.low <= b.high and b.low <= a.high


def _and(names: list[str]) -> str:
    if len(names) < 2:
        return "".join(names)
    return ", ".join(names[:-1]) + " and " + names[-1]
