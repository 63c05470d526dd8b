"""Confidence of labels from the entropy of the posteriors."""

import math

import pytest
import torch

from asr.search.confidence import ALPHA, frame_confidences, with_confidences
from asr.search.greedy import greedy_search
from asr.search.run import search_batch


def by_definition(probabilities: list[float]) -> float:
    """Exponentially normalised Tsallis entropy (Laptev and Ginsburg 2022), with plain sums."""

    def entropy(p: list[float]) -> float:
        return (1 - sum(x**ALPHA for x in p)) / (ALPHA - 1)

    V = len(probabilities)
    return 1 - entropy(probabilities) / entropy([1 / V] * V)


@pytest.mark.parametrize(
    "probabilities", [[0.7, 0.2, 0.1], [0.98, 0.01, 0.01], [0.5, 0.5, 0.0], [0.25, 0.25, 0.25, 0.25]]
)
def test_the_confidence_follows_the_paper(probabilities: list[float]) -> None:
    found = frame_confidences(torch.tensor([probabilities], dtype=torch.float64).log())
    assert float(found) == pytest.approx(by_definition(probabilities), abs=1e-6)


def test_one_hot_gives_one_and_uniform_gives_zero_for_any_vocabulary() -> None:
    for V in (2, 40, 5000):
        certain = torch.full((1, V), -torch.inf).index_fill_(1, torch.tensor([1]), 0.0)
        uniform = torch.full((1, V), -math.log(V))
        assert float(frame_confidences(certain)) == 1.0
        assert float(frame_confidences(uniform)) == pytest.approx(0.0, abs=1e-5)


def test_the_confidence_of_a_label_is_the_mean_over_its_frames() -> None:
    probs = torch.tensor(
        [[0.4, 0.3, 0.3], [0.1, 0.8, 0.1], [0.2, 0.6, 0.2], [0.5, 0.25, 0.25], [0.0, 0.0, 1.0]]
    )
    frames = frame_confidences(probs.log())
    (path,) = greedy_search(probs.log()[None], torch.tensor([5]))
    (path,) = with_confidences([path], probs.log()[None])
    assert (path.ids, path.frames, path.ends) == ([1, 2], [1, 4], [3, 5])
    assert path.confidences == pytest.approx([float(frames[1:3].mean()), 1.0])
    assert path.confidence == pytest.approx((float(frames[1:3].mean()) + 1) / 2)


def test_confidence_ignores_padding_and_is_zero_for_silence() -> None:
    probs = torch.tensor([[[0.1, 0.9], [0.9, 0.1]], [[0.9, 0.1], [0.9, 0.1]]])
    padded = torch.nn.functional.pad(probs.log(), (0, 0, 0, 3), value=float("nan"))
    spoken, silent = search_batch(greedy_search, padded, torch.tensor([2, 2]))
    assert spoken.confidences == pytest.approx(frame_confidences(probs[0, :1].log()).tolist())
    assert (silent.ids, silent.confidences, silent.confidence) == ([], [], 0.0)
