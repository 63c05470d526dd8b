"""Selects the heads to draw: those whose attention weights differ most between mechanisms."""

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

SHOWN = 2  # number of heads in a figure, unless one is requested


def differing_heads(
    layers: Sequence[Callable[[str], Tensor]],
    names: Sequence[str],
    layer: int = 0,
    head: int = 0,
    rows: Sequence[int] | None = None,
) -> list[tuple[int, int, float]]:
    """Return the heads whose weights differ most between mechanisms, on the same queries and keys.

    The difference of a head is the L1 distance between the weights of a query, 0 … 2, averaged over queries
    and pairs of mechanisms.

    Args:
        layers: for each layer, a function that maps a mechanism to its weights, [H, N, S].
        names: mechanisms.
        layer, head: number, from 1, of the layer or head to choose from; 0: all.
        rows: queries to average over; None: all.

    Returns:
        Layer and head, from 1, and their difference, in descending order; at most two heads.
    """
    candidates = []
    for number, weights in enumerate(layers, start=1):
        if layer in (0, number):
            maps_HNS = [weights(name) if rows is None else weights(name)[:, rows] for name in names]
            differences_H = torch.zeros(len(maps_HNS[0]))
            pairs = list(itertools.combinations(maps_HNS, 2))
            for one, other in pairs:
                differences_H += (one - other).abs().sum(-1).mean(-1).cpu() / len(pairs)
            places = enumerate(differences_H.tolist(), start=1)
            candidates += [(number, place, difference) for place, difference in places if head in (0, place)]
    return sorted(candidates, key=lambda entry: -entry[2])[:SHOWN]


def described_choice(heads: Sequence[tuple[int, int, float]], layer: int = 0, head: int = 0) -> str:
    """Return a sentence on how the heads of `differing_heads` were chosen, for captions.

    Example:
        >>> described_choice([(2, 1, 0.8125), (3, 4, 0.5)]).partition(", the L1")[0]
        'Of all heads, these differ most between the mechanisms: 0.81 and 0.50'
    """
    differences = " and ".join(f"{difference:.2f}" for *_, difference in heads)
    measure = "the L1 distance (0 to 2) of a query's weights, averaged over queries and pairs of mechanisms"
    if layer and head:
        return f"The head was asked for; its maps differ by {differences}, {measure}."
    pool = "all heads"
    if layer or head:
        pool = f"the heads of layer {layer}" if layer else f"heads {head} of all layers"
    verb = "these differ" if len(heads) > 1 else "this one differs"
    return f"Of {pool}, {verb} most between the mechanisms: {differences}, {measure}."
