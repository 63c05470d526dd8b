"""The main findings of a comparison in sentences: accuracy, speed, Pareto front, exchange, failures."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from asr.console import counted, duration
from asr.experiment.engines import ENGINE
from asr.experiment.paying import spots
from asr.experiment.results import Results
from asr.experiment.variant import Variant
from asr.report.tables import paying
from asr.report.words import (
    changed,
    clock_words,
    conditions_words,
    duration_range,
    measured,
    metric_words,
    scored,
)
from asr.scoring.measures import is_share, measure_of
from asr.scoring.statistics import Estimate, fastest

DIVERGENCE = "kl"
MANY = 6  # maximum number of names in a sentence


@dataclass(frozen=True)
class Finding:
    """A finding: a short heading and its text."""

    head: str
    text: str


def findings(results: Results) -> list[Finding]:
    """Return the findings; without error rates, only those on missing kernels and failures."""
    split = main_split(results) if results.metrics() else ""
    metric = next(iter(results.metrics(split)), "")
    systems = results.systems(split)
    rates = {
        name: estimate
        for name, (label, variant) in systems.items()
        if (estimate := results.error_rate(label, split, metric, variant))
    }
    if not rates:
        return [*_verdict(results), *_kernels(results), *_missing(results)]
    unlearned = [
        name for name in rates if results.unlearned(systems[name][0], split, metric, systems[name][1])
    ]
    learned = {name: rate for name, rate in rates.items() if name not in unlearned}
    times = {name: time for name in rates if (time := results.time(systems[name], split))}
    return [
        *_verdict(results),
        *_accuracy(results, learned, metric, split),
        *_closest(results, split, metric),
        *_chosen(results, split),
        *_unlearned(results, rates, unlearned, metric),
        *_speed(results, rates, times, split, metric),
        *_front({name: time for name, time in times.items() if name in learned}, results.front(split)),
        *_exchange(results, split, metric),
        *_kernels(results),
        *_busy(results),
        *_missing(results),
    ]


def main_split(results: Results) -> str:
    """Return the split that the findings are about: `test`, or else the last one."""
    return "test" if "test" in results.splits() else results.splits()[-1]


def _verdict(results: Results) -> Iterator[Finding]:
    """Say when attention pays, when frames and precision do, and when nothing."""
    for head, text in paying.verdict(spots(results)).items():
        yield Finding(head, f"{text[0].upper()}{text[1:]}")


def _accuracy(results: Results, rates: dict[str, Estimate], metric: str, split: str) -> Iterator[Finding]:
    if not rates:
        return
    higher, systems = measure_of(metric).higher, results.systems(split)
    order = sorted(rates, key=lambda name: rates[name].value, reverse=higher)
    best = [name for name in order if rates[name].value == rates[order[0]].value]
    rest = order[len(best) :]
    verb = "has" if len(best) == 1 else "have"
    closed = " (closed vocabulary)" if results.closed(split, metric) else ""
    extreme = "highest" if higher else "lowest"
    what = f"the {extreme} {metric_words(metric)} on {split}: {_rate(rates[best[0]], metric)}{closed}"
    text = f"{_and(best)} {verb} {what}."
    level = [name for name in rest if results.level(systems[name], systems[best[0]], split, metric)]
    if len(level) > MANY:
        text += f" The 95 % intervals show no difference to {len(level)} others."
    elif level:
        text += f" The 95 % intervals show no difference to {_and(level)}."
    elif rest:
        text += f" Next is {rest[0]} with {_rate(rates[rest[0]], metric)}."
    yield Finding("Most accurate", text)


def _closest(results: Results, split: str, metric: str) -> Iterator[Finding]:
    """Name the variant whose output is closest to that under full attention."""
    if DIVERGENCE not in results.metrics(split):
        return
    kls = {
        name: kl
        for name, (label, variant) in results.systems(split).items()
        if not variant.startswith(ENGINE)
        and (kl := results.error_rate(label, split, DIVERGENCE, variant))
        and kl.value > 0
    }
    if kls:
        name = min(kls, key=lambda x: kls[x].value)
        label, variant = results.systems(split)[name]
        rate = results.error_rate(label, split, metric, variant)
        shown = f", {metric_words(metric)} {_rate(rate, metric)}" if rate else ""
        text = f"{name}: KL {scored(kls[name], DIVERGENCE)}{shown}."
        yield Finding("Closest to full attention", text)


def _chosen(results: Results, split: str) -> Iterator[Finding]:
    """Name the variant that a search over layers chose."""
    if search := results.protocol.get("search", {}).get(split):
        variant = search["chosen"]
        kl = results.error_rate(results.candidates[0].label, split, DIVERGENCE, variant)
        shown = f": KL {scored(kl, DIVERGENCE)}" if kl else ""
        text = f"{variant}{shown}, after {counted(len(search['steps']), 'step')} with KL up to"
        yield Finding(
            "Chosen by the search", f"{text} {search['limit']:g}. To confirm: \"candidates=['{variant}']\"."
        )


def _unlearned(
    results: Results, rates: dict[str, Estimate], names: list[str], metric: str
) -> Iterator[Finding]:
    """Name the systems that have learned nothing, which must not be recommended for their speed."""
    if not names:
        return
    if "baseline" in results.protocol:
        text = f"{metric_words(metric)} of 100 % or more, or constant output: {_and(names)}"
        yield Finding("Text lost", f"{text}. Left out of the front.")
        return
    shown = [f"{name}: {_rate(rates[name], metric)}" for name in names]
    text = f"{metric_words(metric)} of empty or constant output, or no better than it ({'; '.join(shown)})"
    yield Finding("Nothing learned", f"{text}. Left out of the front.")


def _speed(
    results: Results, rates: dict[str, Estimate], times: dict[str, Estimate], split: str, metric: str
) -> Iterator[Finding]:
    """Name the fastest system, or all that are level with it because the ranges of their times overlap."""
    if not times:
        return
    clock = clock_words(results.clock)
    level = fastest(times)
    first = level[0]
    if baseline := results.protocol.get("baseline"):
        named = first if len(level) == 1 else f"{_and(level[:MANY])} are level; {first}"
        ratio = times[first].text("{:.2f}".format)
        rate = f"{metric_words(metric)} {_rate(rates[first], metric)}"
        yield Finding("Fastest", f"{named} takes {ratio} of the {clock} of {baseline}, with {rate}.")
        return
    others = [label for label in times if label not in level]
    if len(level) == 1:
        text = f"{first} takes {_time(times[first])} {clock} for a forward pass over {split}"
    else:
        shown = [f"{label} ({_time(times[label])})" for label in level]
        text = (
            f"No single winner: {_and(shown)} are level, because the ranges of their repeats overlap "
            f"({clock} of a forward pass over {split})"
        )
    text += "."
    if others:
        reference = "full" if "full" in others else min(others, key=lambda label: rates[label].value)
        ratio = f"{times[reference].value / times[first].value:.2f}"
        text += f" {reference} takes {ratio} times as long as {first}: {_time(times[reference])}."
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
    if len(dominated) > MANY:
        text += f" {len(dominated)} others are dominated: another one is at least as fast and as accurate."
    elif dominated:
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
    """Name the exchange of mechanisms after training that loses the least accuracy."""
    plain = [x for x in results.variants() if Variant.read(x).attention == x]
    exchanges = []
    for candidate in results.candidates:
        trained = results.error_rate(candidate.label, split, metric)
        if not results.was_trained(candidate.label):
            continue
        for attention in plain:
            other = results.error_rate(candidate.label, split, metric, attention)
            pair = (attention, candidate.attention)
            if any(results.unlearned(candidate.label, split, metric, x) for x in pair):
                continue
            if trained and other and attention != candidate.attention:
                exchanges.append((other.value - trained.value, candidate.label, attention, trained, other))
    if exchanges:
        change, label, attention, trained, other = min(exchanges, key=lambda entry: entry[:3])
        paired = results.difference((label, attention), (label, results.own(label)), split, metric)
        by = changed(paired or Estimate(change, None, None, 1, ""), metric)
        by += " points" if is_share(metric) else ""
        text = (
            f"Running {label} with {attention}, not the mechanism it was trained with, changes the "
            f"{metric_words(metric)} from {_rate(trained, metric)} to {_rate(other, metric)}, "
            f"by {by}"
        )
        least = f"; the best of {len(exchanges)} such exchanges" if len(exchanges) > 1 else ""
        yield Finding("Exchange", f"{text}{least}.")


def _missing(results: Results) -> Iterator[Finding]:
    if results.failures:
        labels = list(dict.fromkeys(failure.candidate for failure in results.failures))
        cells = counted(len(results.failures), "cell")
        yield Finding("Failed", f"{cells} failed ({_and(labels)}); the report has the others.")
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
    # Cells that depend on a failed cell have its name as their error, and don't run.
    states = [(x.status, x.error) for x in results.trainings]
    states += [(x.status, x.error) for x in results.evaluations]
    if unfinished := states.count(("missing", None)):
        cells = counted(unfinished, "cell has", "cells have")
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
