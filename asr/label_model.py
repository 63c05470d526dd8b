"""How probable labels are after those before them, in the training transcripts: an n-gram model, one table.

It travels with the recogniser and needs no lexicon. Searches don't use it: it tells whether what was found
reads like what was trained on (`asr.confidence`).
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asr.ctc import BLANK
from asr.lm.kneser_ney import BEGIN, SPECIAL, NgramEstimate, estimate

LONGEST = 3  # labels of an n-gram
CELLS = 1_000_000  # of the table at most, 4 MB: 100 labels have trigrams, 1,000 bigrams
UTTERANCES = 50_000  # are enough to estimate it from
NEVER = 1e-30


def estimate_label_model(sequences: Sequence[Sequence[int]], size: int) -> Tensor:
    """Estimate the model, with modified Kneser–Ney smoothing.

    Args:
        sequences: labels of training utterances, 1 … V − 1.
        size: V, blank (index 0) included.

    Returns:
        Natural-log probabilities [V], [V, V] or [V, V, V]: of the label of the last axis after those of the
        axes before it, in their order. As a context, 0 is the beginning of an utterance.

    Example:
        >>> model = estimate_label_model([[1, 2, 1, 2], [1, 2]], 3)
        >>> bool(model[0, 0, 1] > model[0, 0, 2])
        True
    """
    order = max([n for n in range(1, LONGEST + 1) if size**n <= CELLS], default=1)
    labels = range(BLANK + 1, size)
    sentences = [[str(label) for label in labels_U] for labels_U in sequences]
    if not any(sentences):
        return torch.full((size,), -float(np.log(max(1, len(labels)))))
    model = estimate(sentences, max(2, order), vocabulary=map(str, labels))
    return torch.from_numpy(np.log(_dense(model, order, size))).float()


def _dense(model: NgramEstimate, order: int, size: int) -> NDArray[np.float64]:
    """Spell out back-off: the probabilities of every label in every context."""
    cell = np.array([_cell(name) for name in model.vocabulary])
    rows = cell[:, None]  # labels of the n-grams of the order at hand
    known = cell >= 0
    table = np.full(size, NEVER)
    table[cell[known]] = np.maximum(NEVER, model.tables[0].probability[known])
    for shorter, longer in zip(model.tables[: order - 1], model.tables[1:order], strict=False):
        backoff = np.ones((size,) * rows.shape[1])
        inside = (rows >= 0).all(axis=1)
        backoff[tuple(rows[inside].T)] = shorter.backoff[inside]
        table = np.maximum(NEVER, backoff[..., None] * table)
        rows = np.column_stack([rows[longer.context], cell[longer.word]])
        inside = (rows >= 0).all(axis=1)
        table[tuple(rows[inside].T)] = longer.probability[inside]
    return table


def _cell(name: str) -> int:
    if name == BEGIN:
        return BLANK
    return -1 if name in SPECIAL else int(name)


def label_log_probs(model: Tensor, ids_U: Tensor, begins_U: Tensor) -> Tensor:
    """Return the log-probability of each label after those before it.

    Args:
        model: of `estimate_label_model`.
        ids_U: [U] labels.
        begins_U: [U] where an utterance begins: labels before it are no context.
    """
    place_U = torch.arange(len(ids_U))
    since_U = place_U - torch.where(begins_U, place_U, 0).cummax(dim=0).values if len(ids_U) else place_U
    contexts = [torch.where(since_U >= k, ids_U.roll(k), BLANK) for k in range(model.dim() - 1, 0, -1)]
    return model[(*contexts, ids_U)]
