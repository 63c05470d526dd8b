"""Paired differences between the error rates of a comparison's systems."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np

from asr.experiment.records import Difference, Evaluation, ItemErrors
from asr.experiment.results import Results, System
from asr.scoring.statistics import Estimate, paired_difference

Measured = tuple[Evaluation, ItemErrors]


def differences(results: Results, measured: Sequence[Measured]) -> list[Difference]:
    """Return the differences between all candidates, and between the variants of each.

    Args:
        results: results of the comparison.
        measured: finished evaluations with the errors of their items.
    """
    systems: dict[tuple[str, System], dict[int, Measured]] = defaultdict(dict)  # by split; by seed
    for evaluation, items in measured:
        system = (evaluation.candidate, evaluation.variant)
        systems[evaluation.split, system][evaluation.seed] = evaluation, items
    return [
        Difference(split, metric, first, second, difference)
        for split in results.splits()
        for first, second in _pairs(results, [system for where, system in systems if where == split])
        for metric in results.metrics(split)
        if (difference := _difference(systems[split, first], systems[split, second], metric, results.unit))
    ]


def _pairs(results: Results, systems: list[System]) -> Iterator[tuple[System, System]]:
    owns = [system for system in systems if results.own(system[0]) == system[1]]
    yield from combinations(owns, 2)
    for label in dict.fromkeys(label for label, _ in systems):
        # The model as it was trained comes second, so that a difference is the effect of the exchange.
        of_model = [system for system in systems if system[0] == label]
        yield from combinations(sorted(of_model, key=lambda system: system in owns), 2)


def _difference(
    first: dict[int, Measured], second: dict[int, Measured], metric: str, unit: str
) -> Estimate | None:
    """Return the difference over the seeds that both systems have; None if they have none in common."""
    pairs = [(first[seed], second[seed]) for seed in first if seed in second]
    pairs = [pair for pair in pairs if all(metric in evaluation.rates for evaluation, _ in pair)]
    if not pairs:
        return None
    lengths = [items.lengths.get(metric) for pair in pairs for _, items in pair]
    if lengths[0] and all(x == lengths[0] for x in lengths):
        errors = [[np.array(items.errors[metric]) for _, items in pair] for pair in pairs]
        more = np.array([one - other for one, other in errors], dtype=float)
        return paired_difference(more, np.array(lengths[0], dtype=float), unit)
    # Official rates have no errors per utterance, and the items of some recipes differ by seed.
    rates = [[evaluation.rates[metric]["rate"] for evaluation, _ in pair] for pair in pairs]
    return paired_difference(np.array([[one - other] for one, other in rates]), np.ones(1), unit)
