"""The main findings of a comparison in sentences: accuracy, speed, Pareto front, exchange, failures."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from asr.console import duration, is_share
from asr.experiment.results import Results
from asr.report.words import (
    changed,
    clock_words,
    conditions_words,
    duration_range,
    measured,
    metric_words,
)
from asr.scoring.estimates import Estimate, fastest


@dataclass(frozen=True)
class Finding:
    """A heading of one or two words and its text."""

    head: str
    text: str


def findings(results: Results) -> list[Finding]:
    """Return the findings; those on accuracy, speed, front and exchange need an error rate."""
    split = main_split(results) if results.metrics() else ""
    metric = next(iter(results.metrics(split)), "")
    rates = {
        candidate.label: estimate
        for candidate in results.candidates
        if (estimate := results.error_rate(candidate.label, split, metric))
    }
    if not rates:
        return [*_kernels(results), *_missing(results)]
    unlearned = [label for label in rates if results.unlearned(label, split, metric)]
    learned = {label: rate for label, rate in rates.items() if label not in unlearned}
    times = {label: time for label in rates if (time := results.forward_time(label, split))}
    return [
        *_accuracy(results, learned, metric, split),
        *_unlearned(results, unlearned, metric, split),
        *_speed(rates, times, results.clock, split),
        *_front({label: time for label, time in times.items() if label in learned}, results.front(split)),
        *_exchange(results, split, metric),
        *_kernels(results),
        *_busy(results),
        *_missing(results),
    ]


def main_split(results: Results) -> str:
    """Return the split of the findings: `test`, or else the last one."""
    return "test" if "test" in results.splits() else results.splits()[-1]


def _accuracy(results: Results, rates: dict[str, Estimate], metric: str, split: str) -> Iterator[Finding]:
    if not rates:
        return
    order = sorted(rates, key=lambda label: rates[label].value)
    best = [label for label in order if rates[label].value == rates[order[0]].value]
    rest = order[len(best) :]
    verb = "has" if len(best) == 1 else "have"
    closed = " (closed vocabulary)" if results.closed(split, metric) else ""
    lowest = f"the lowest {metric_words(metric)} on {split}: {_rate(rates[best[0]], metric)}{closed}"
    text = f"{_and(best)} {verb} {lowest}."
    level = [label for label in rest if results.level(label, best[0], split, metric)]
    if level:
        text += f" The 95 % intervals show no difference to {_and(level)}."
    elif rest:
        text += f" Next is {rest[0]} with {_rate(rates[rest[0]], metric)}."
    yield Finding("Most accurate", text)


def _unlearned(results: Results, labels: list[str], metric: str, split: str) -> Iterator[Finding]:
    """Name the models that have learned nothing, which no table or figure may recommend."""
    if labels:
        rates = [
            f"{label}: {_rate(rate, metric)}"
            for label in labels
            if (rate := results.error_rate(label, split, metric))
        ]
        text = (
            f"{metric_words(metric)} of empty or constant output, or no better than it ({'; '.join(rates)})"
        )
        yield Finding("Nothing learned", f"{text}. Left out of the front.")


def _speed(
    rates: dict[str, Estimate], times: dict[str, Estimate], clock: str, split: str
) -> Iterator[Finding]:
    """Name the fastest model, or the level ones if the ranges of their repeats overlap."""
    if not times:
        return
    level = fastest(times)
    first = level[0]
    others = [label for label in times if label not in level]
    if len(level) == 1:
        text = f"{first} takes {_time(times[first])} {clock_words(clock)} for a forward pass over {split}"
    else:
        shown = [f"{label} ({_time(times[label])})" for label in level]
        text = (
            f"No single winner: {_and(shown)} are level, because the ranges of their repeats overlap "
            f"({clock_words(clock)} of a forward pass over {split})"
        )
    text += "."
    if others:
        reference = "full" if "full" in others else min(others, key=lambda label: rates[label].value)
        ratio = times[reference].value / times[first].value
        text += f" {reference} takes {ratio:.2f} times as long as {first}: {_time(times[reference])}."
    if all(time.count == 1 for time in times.values()):
        text += " Each pass was timed only once, so the spread is unknown."
    yield Finding("Fastest", text)


def _kernels(results: Results) -> Iterator[Finding]:
    if notice := results.protocol.get("kernels"):
        yield Finding("No kernels", f"{notice}.")


def _busy(results: Results) -> Iterator[Finding]:
    sentences = [conditions_words(split, x) for split, x in results.conditions.items() if x.busy()]
    if sentences:
        yield Finding("Busy machine", " ".join(sentences))


def _front(times: dict[str, Estimate], front: list[str]) -> Iterator[Finding]:
    if len(times) < 2:
        return
    dominated = [label for label in times if label not in front]
    if len(front) == 1:
        yield Finding("Pareto front", f"{front[0]} alone: no other model is faster or more accurate.")
        return
    text = f"{_and(front)}, from the fastest to the most accurate."
    for group in _level_groups(front, times):
        text += f" {_and(group)} are level in time."
    if dominated:
        each = "is" if len(dominated) == 1 else "are"
        text += f" {_and(dominated)} {each} dominated by a model that is at least as fast and as accurate."
    else:
        text += " No model is dominated by another."
    yield Finding("Pareto front", text)


def _level_groups(front: list[str], times: dict[str, Estimate]) -> list[list[str]]:
    """Return runs of neighbours on the front whose times are level."""
    groups: list[list[str]] = []
    for label, following in pairwise(front):
        if times[label].level_with(times[following]):
            if groups and groups[-1][-1] == label:
                groups[-1].append(following)
            else:
                groups.append([label, following])
    return groups


def _exchange(results: Results, split: str, metric: str) -> Iterator[Finding]:
    """Name the exchange of mechanisms after training that costs the least accuracy."""
    exchanges = []
    for candidate in results.candidates:
        own = results.error_rate(candidate.label, split, metric)
        for attention in results.variants():
            other = results.error_rate(candidate.label, split, metric, attention)
            pair = (attention, candidate.attention)
            if any(results.unlearned(candidate.label, split, metric, x) for x in pair):
                continue
            if own and other and attention != candidate.attention:
                exchanges.append((other.value - own.value, candidate.label, attention, own, other))
    if exchanges:
        change, label, attention, own, other = min(exchanges, key=lambda entry: entry[:3])
        paired = results.difference((label, attention), (label, results.own(label)), split, metric)
        by = changed(paired or Estimate(change, None, None, 1, ""), metric)
        by += " points" if is_share(metric) else ""
        text = (
            f"Running {label} with {attention} instead of its own mechanism changes the "
            f"{metric_words(metric)} from {_rate(own, metric)} to {_rate(other, metric)}, "
            f"by {by}"
        )
        least = f"; the best of {len(exchanges)} such exchanges" if len(exchanges) > 1 else ""
        yield Finding("Exchange", f"{text}{least}.")


def _missing(results: Results) -> Iterator[Finding]:
    if results.failures:
        labels = list(dict.fromkeys(failure.candidate for failure in results.failures))
        one = len(results.failures) == 1
        cells, them = ("1 cell", "it") if one else (f"{len(results.failures)} cells", "them")
        yield Finding("Failed", f"{cells} failed ({_and(labels)}); the report leaves {them} out.")
    skipped: Counter[str] = Counter()
    for training in results.trainings:
        skipped[training.candidate] += training.skipped_batches or 0
    if any(skipped.values()):
        counts = [f"{label}: {count:,}" for label, count in skipped.items() if count]
        yield Finding(
            "Skipped",
            "Training skipped batches whose loss or gradient was not finite, or that did not fit in memory "
            f"({', '.join(counts)}).",
        )
    # Cells that need a failed one have its name as their error, and don't run.
    states = [(x.status, x.error) for x in results.trainings]
    states += [(x.status, x.error) for x in results.evaluations]
    if unfinished := states.count(("missing", None)):
        cells = "1 cell has" if unfinished == 1 else f"{unfinished} cells have"
        yield Finding("Unfinished", f"{cells} not run yet; the report will change.")


def _rate(estimate: Estimate, metric: str) -> str:
    """Return `8.10 % (7.52–8.71)`, or `2.183 (2.176–2.190)` without a percentage."""
    value, _, interval = measured(estimate, metric).partition(" ")
    return f"{value}{' %' if is_share(metric) else ''} {interval}".rstrip()


def _time(estimate: Estimate) -> str:
    """Return `4.10 s (4.02–4.18 s)`."""
    interval = duration_range(estimate)
    return duration(estimate.value) + (f" ({interval})" if interval else "")


def _and(names: list[str]) -> str:
    if len(names) < 2:
        return "".join(names)
    return ", ".join(names[:-1]) + " and " + names[-1]
