"""How certain a recogniser is of a recording, and what is less certain than its development set.

Two things are weighed, each in nats per label: how probable the model finds the labels of greedy search, and
how probable these are after each other in the training transcripts. The first is low for noise and music. Of
another language a model may be certain, sound by sound; but it finds labels in an order that is unusual.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asr.ctc import ctc_loss
from asr.label_model import label_log_probs
from asr.search.greedy import greedy_search
from asr.search.path import TokenPath
from asr.transcript import PAUSE_S

USUAL_SHARE = 0.95  # of the development set's labels are in utterances at least as certain as the limit
PIECE_LABELS = 200  # weighed at once
UNKNOWN_LIMIT = 0.5  # where a model doesn't know its development set


Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Evidence:
    """What one recording, or a part of it, gives.

    Attributes:
        labels: found by greedy search.
        acoustic: log-probability of these labels, over all their alignments.
        sequence: log-probability of the labels after each other in the training transcripts, summed; 0
            where the recogniser has no label model.
    """

    labels: int
    acoustic: float
    sequence: float


@dataclass
class UsualCertainty:
    """What is usual on the development set; the means and deviations are per label."""

    labels: float = 0.0  # longer recordings vary no less than those of so many labels; 0: nothing is known
    mean: float = 0.0  # of the log-certainty, weighted by labels
    spread: float = 0.0  # the limit is this below the mean for one label, spread / √n for n
    sequence_mean: float = 0.0  # of the labels' log-probability after each other
    sequence_weight: float = 0.0  # of it, beside the acoustic log-probability


def weigh(log_probs_TV: Tensor, frame_s: float, label_model: Tensor | None = None) -> Evidence:
    """Weigh one recording.

    Args:
        log_probs_TV: [T, V] log-probabilities, without padded frames.
        frame_s: duration of a frame; after a pause labels begin anew.
        label_model: of `estimate_label_model`.
    """
    log_probs_TV = log_probs_TV.detach().to("cpu", torch.float32)
    (path,) = greedy_search(log_probs_TV[None], torch.tensor([len(log_probs_TV)]))
    if not path.ids:
        return Evidence(0, 0.0, 0.0)
    sequence = 0.0
    if label_model is not None:
        gaps_s = frame_s * (np.array(path.frames) - np.array([0, *path.ends[:-1]]))
        begins_U = torch.from_numpy(gaps_s >= PAUSE_S)
        sequence = float(label_log_probs(label_model, torch.tensor(path.ids), begins_U).sum())
    return Evidence(len(path.ids), _acoustic(log_probs_TV, path), sequence)


def _acoustic(log_probs_TV: Tensor, path: TokenPath) -> float:
    """Return the log-probability of the labels of a path, piece by piece: a piece is cut between two labels.

    The cost of a piece grows with frames times labels, of an hour in one piece it would be unbearable.
    """
    total, start = 0.0, 0
    for first in range(0, len(path.ids), PIECE_LABELS):
        after = first + PIECE_LABELS
        last = after >= len(path.ids)
        end = len(log_probs_TV) if last else (path.ends[after - 1] + path.frames[after] + 1) // 2
        tokens_BU = torch.tensor([path.ids[first:after]])
        lengths_B, token_lengths_B = torch.tensor([end - start]), torch.tensor([tokens_BU.shape[1]])
        loss_B = ctc_loss(log_probs_TV[None, start:end], lengths_B, tokens_BU, token_lengths_B)
        total, start = total - float(loss_B), end
    return total


def certainty(evidence: Evidence, usual: UsualCertainty) -> float:
    """Return how certain a recogniser is of the labels that it found, 0 … 1; 0 where there are none.

    It is the geometric mean of the labels' probabilities given the audio, times a power of how much more or
    less probable they are after each other than those of the development set are. Frames of silence weigh
    nothing as long as the model knows them for silence.

    Example:
        >>> round(certainty(Evidence(2, math.log(0.9 * 0.4), 0.0), UsualCertainty()), 6)
        0.6
    """
    return min(1.0, math.exp(_log_certainty(evidence, usual))) if evidence.labels else 0.0


def usual_limit(evidence: Evidence, usual: UsualCertainty) -> float:
    """Return what a recording with so many labels usually reaches; the fewer, the lower."""
    if not usual.labels:
        return UNKNOWN_LIMIT
    labels = min(max(1, evidence.labels), usual.labels)
    return math.exp(usual.mean - usual.spread / math.sqrt(labels))


def usual_certainty(evidences: Sequence[Evidence]) -> UsualCertainty:
    """Learn from the development set what is usual.

    The two log-probabilities are added with the weight at which they vary equally. The mean of n labels is
    taken to vary as 1 / √n, no less where recordings are longer than those of the development set (the
    median of its labels is in one of `labels` labels): speakers and channels don't average out.
    """
    known = [x for x in evidences if x.labels and math.isfinite(x.acoustic)]
    if not known:
        return UsualCertainty()
    labels = np.array([evidence.labels for evidence in known], dtype=float)
    acoustic = np.array([evidence.acoustic for evidence in known]) / labels
    sequence = np.array([evidence.sequence for evidence in known]) / labels
    deviations = [_deviation(values, labels) for values in (acoustic, sequence)]
    weight = min(1.0, deviations[0] / deviations[1]) if deviations[1] > 1e-6 else 0.0
    usual = UsualCertainty(
        labels=_quantile(labels, labels, 0.5),
        sequence_mean=float(np.average(sequence, weights=labels)),
        sequence_weight=weight,
    )
    logs = np.array([_log_certainty(evidence, usual) for evidence in known])
    usual.mean = float(np.average(logs, weights=labels))
    scaled = (logs - usual.mean) * np.sqrt(np.minimum(labels, usual.labels))
    usual.spread = max(0.0, -_quantile(scaled, labels, 1 - USUAL_SHARE))
    return usual


def _log_certainty(evidence: Evidence, usual: UsualCertainty) -> float:
    sequence = evidence.sequence / evidence.labels - usual.sequence_mean
    return evidence.acoustic / evidence.labels + usual.sequence_weight * sequence


def _deviation(values: Floats, labels: Floats) -> float:
    """Standard deviation of a single label's value, where those of an utterance are independent."""
    mean = np.average(values, weights=labels)
    return float(np.sqrt(np.mean(labels * (values - mean) ** 2)))


def _quantile(values: Floats, weights: Floats, share: float) -> float:
    order = np.argsort(values)
    reached = np.cumsum(weights[order]) / weights.sum()
    return float(values[order[int(np.searchsorted(reached, share))]])
