"""A greedy search for the mechanism and the frame rate of each layer that a model tolerates.

It starts from full attention at the model's frame rates. A change is another mechanism in one layer, or
another frame rate from a layer on: in one layer alone, half the frames add as much divergence and save less
than in all that follow, because frames are pooled and restored around it. Each step measures every remaining
change, in turns, and keeps the one that saves the most time per Kullback–Leibler divergence that it adds.
Changes that exceed the limit aren't tried again. The search ends when no change within the limit is faster.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from asr.attention.table import joined_name
from asr.config.schedule import joined_factors, layer_factors
from asr.errors import UserError
from asr.experiment.options import FULL
from asr.experiment.variant import Variant
from asr.experiment.workload import Outcome

DIVERGENCE = "kl"
LEAST = 1e-9  # nats, a lower bound: a change may add no divergence, or reduce it

Change = tuple[int, str | int]  # index of a layer, with its mechanism or the factor from it on


@dataclass(frozen=True)
class Layers:
    """The mechanism of each layer, and the number of encoder frames per frame of each layer."""

    attentions: tuple[str, ...]
    factors: tuple[int, ...]

    def changed(self, change: Change) -> "Layers":
        """Return the layers with a change."""
        layer, value = change
        if isinstance(value, str):
            names = [*self.attentions[:layer], value, *self.attentions[layer + 1 :]]
            return replace(self, attentions=tuple(names))
        after = len(self.factors) - layer
        return replace(self, factors=self.factors[:layer] + (value,) * after)

    def variant(self, trained: tuple[int, ...]) -> Variant:
        """Return the variant for a model whose factors are `trained`."""
        frames = "" if self.factors == trained else joined_factors(self.factors)
        return Variant(joined_name(self.attentions), frames)


def full_attention(layers: int, frames: str) -> Layers:
    """Return full attention in all layers, at the model's frame rates.

    Raises:
        UserError: the model joins frames by similarity.
    """
    factors = tuple(x for x in layer_factors(frames, layers) if isinstance(x, int))
    if len(factors) < layers:
        raise UserError(f"sweep=: expected a model with a factor for each layer, found frames={frames}")
    return Layers((FULL,) * layers, factors)


def each_layer_on(factors: Sequence[int], layers: int, frames: str) -> list[Variant]:
    """Return full attention with each factor from each layer on.

    Example:
        >>> [x.frames for x in each_layer_on([2], 3, "1")]
        ['2', '1,2*2', '1*2,2']
    """
    now = full_attention(layers, frames)
    return [
        now.changed((layer, factor)).variant(now.factors) for factor in factors for layer in range(layers)
    ]


def search_layers(
    measure: Callable[[list[Variant], int], list[Outcome | None]],
    attentions: Sequence[str],
    factors: Sequence[int],
    layers: int,
    frames: str,
    limit: float,
) -> dict[str, Any]:
    """Search for the fastest variant of a model within a limit.

    Args:
        measure: maps variants and the number of the step, from 0, to outcomes; None for variants that can't
            run.
        attentions, factors: mechanisms to try in each layer, and frame factors from each layer on.
        layers: number of layers.
        frames: the model's schedule of frame rates.
        limit: maximum mean divergence from full attention in nats.

    Returns:
        `limit`, `chosen`: text of the variant, and `steps`: `tried` and `chosen` of each, as texts.

    Raises:
        UserError: the model joins frames by similarity.
    """
    now = full_attention(layers, frames)
    trained = now.factors
    (current,) = measure([now.variant(trained)], 0)
    values: list[str | int] = [*attentions, *factors]
    every: list[Change] = [(layer, value) for layer in range(layers) for value in values]
    left = [change for change in every if now.changed(change) != now]
    steps: list[dict[str, Any]] = []
    while left and current is not None:
        tried = [now.changed(change).variant(trained) for change in left]
        outcomes = dict(zip(left, measure(tried, len(steps) + 1), strict=True))
        within = {x: trial for x, trial in outcomes.items() if trial and trial.values[DIVERGENCE] <= limit}
        worth = {x: gain for x, trial in within.items() if (gain := _gain(trial, current)) > 0}
        chosen = max(worth, key=worth.__getitem__, default=None)
        if chosen is not None:
            now, current = now.changed(chosen), within[chosen]
        texts = [str(x) for x in tried]
        steps.append({"tried": texts, "chosen": chosen and str(now.variant(trained))})
        left = [x for x in within if chosen is not None and now.changed(x) != now]
    return {"limit": limit, "steps": steps, "chosen": str(now.variant(trained))}


def _gain(outcome: Outcome, current: Outcome) -> float:
    """Return the fraction of time that a change saves per divergence that it adds; 0 if none is shown."""
    ratio, (_, high) = outcome.time(current)
    if high >= 1:
        return 0.0
    return max(0.0, 1 - ratio) / max(outcome.values[DIVERGENCE] - current.values[DIVERGENCE], LEAST)
