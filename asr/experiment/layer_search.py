"""A greedy search over the layers of a model: which of them bear which mechanism and which frame rate.

It starts from full attention at the model's own frame rates. Each step measures every remaining change of one
layer, in turns, and keeps the one that saves the most time for the Kullback–Leibler divergence that it adds.
Changes that exceed the limit, or aren't shown to be faster, aren't tried again: divergence grows with further
changes, and time left to save shrinks. The search ends when no change is left.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from asr.attention.table import joined_name
from asr.config.schedule import joined_factors, layer_factors
from asr.experiment.options import FULL
from asr.experiment.variant import Variant
from asr.experiment.workload import Outcome

DIVERGENCE = "kl"
LEAST = 1e-9  # nats; what a change adds can be nothing, or less

Change = tuple[int, str | int]  # index of a layer, with its mechanism or factor


@dataclass(frozen=True)
class Layers:
    """What each layer runs: a mechanism, and a frame for so many of the encoder's."""

    attentions: tuple[str, ...]
    factors: tuple[int, ...]

    def changed(self, change: Change) -> "Layers":
        """Return them with a change."""
        layer, value = change
        if isinstance(value, str):
            names = [*self.attentions[:layer], value, *self.attentions[layer + 1 :]]
            return replace(self, attentions=tuple(names))
        factors = [*self.factors[:layer], value, *self.factors[layer + 1 :]]
        return replace(self, factors=tuple(factors))

    def variant(self, own: tuple[int, ...]) -> Variant:
        """Return the variant of a model that has factors of its own."""
        frames = "" if self.factors == own else joined_factors(self.factors)
        return Variant(joined_name(self.attentions), frames)


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
        measure: function of variants and the number of the step, from 0, that returns what they were measured
            to be; None for those that can't run.
        attentions, factors: mechanisms and factors of frames to try in each layer.
        layers: number of layers.
        frames: the model's own schedule of frame rates.
        limit: highest mean divergence from full attention in nats.

    Returns:
        `limit`, `chosen`: text of the variant, and `steps`: `tried` and `chosen` of each, as texts.
    """
    own = tuple(layer_factors(frames, layers))
    now = Layers((FULL,) * layers, own)
    (current,) = measure([now.variant(own)], 0)
    values: list[str | int] = [*attentions, *factors]
    every: list[Change] = [(layer, value) for layer in range(layers) for value in values]
    left = [change for change in every if now.changed(change) != now]
    steps: list[dict[str, Any]] = []
    while left and current is not None:
        tried = [now.changed(change).variant(own) for change in left]
        outcomes = dict(zip(left, measure(tried, len(steps) + 1), strict=True))
        worth = {
            change: gain
            for change, outcome in outcomes.items()
            if outcome and (gain := _gain(outcome, current, limit)) > 0
        }
        chosen = max(worth, key=worth.__getitem__, default=None)
        if chosen is not None:
            now, current = now.changed(chosen), outcomes[chosen]
        texts = [str(x) for x in tried]
        steps.append({"tried": texts, "chosen": chosen and str(now.variant(own))})
        left = [x for x in worth if chosen is not None and x != chosen]
    return {"limit": limit, "steps": steps, "chosen": str(now.variant(own))}


def _gain(outcome: Outcome, current: Outcome, limit: float) -> float:
    """Return the share of time that a change saves, per divergence that it adds; 0 if it isn't worth it."""
    divergence = outcome.values[DIVERGENCE]
    ratio, (_, high) = outcome.time(current)
    if divergence > limit or high >= 1:
        return 0.0
    return max(0.0, 1 - ratio) / max(divergence - current.values[DIVERGENCE], LEAST)
