import pytest
import torch

from asr.search.greedy import greedy_search


def naive_greedy(log_probs_TV):
    """Decode frame by frame."""
    ids, frames, confidences = [], [], []
    previous = None
    for frame, log_probs_V in enumerate(log_probs_TV):
        label = int(log_probs_V.argmax())
        probability = float(log_probs_V[label].exp())
        if label != 0 and label != previous:
            ids.append(label)
            frames.append(frame)
            confidences.append(probability)
        elif label != 0:
            confidences[-1] = max(confidences[-1], probability)
        previous = label
    return ids, frames, confidences


@pytest.mark.parametrize("size", [2, 3, 6])
def test_equals_a_plain_loop(size):
    generator = torch.Generator().manual_seed(size)
    log_probs_BTV = (2 * torch.randn(17, 31, size, generator=generator)).log_softmax(-1)
    lengths_B = torch.randint(0, 32, (17,), generator=generator)
    lengths_B[:3] = torch.tensor([0, 1, 31])
    # Huge values and NaN in the padding would show if it were read.
    for utterance, length in enumerate(lengths_B.tolist()):
        log_probs_BTV[utterance, length:] = 1e9 if utterance % 2 else torch.nan
    for path, log_probs_TV, length in zip(
        greedy_search(log_probs_BTV, lengths_B), log_probs_BTV, lengths_B.tolist(), strict=True
    ):
        ids, frames, confidences = naive_greedy(log_probs_TV[:length])
        assert path.ids == ids
        assert path.frames == frames
        assert path.confidences == pytest.approx(confidences, rel=1e-5)
        assert path.words is None


def test_the_last_label_of_an_utterance_does_not_merge_with_the_next_utterance():
    """The batch is searched as one flat sequence of frames, so a run must not cross the boundary."""
    certain = torch.tensor([[0.0, -9.0], [-9.0, -0.1]])
    following = torch.tensor([[-9.0, -0.5], [0.0, -9.0]])
    first, second = greedy_search(torch.stack([certain, following]), torch.tensor([2, 2]))
    assert (first.ids, first.frames) == ([1], [1])
    assert (second.ids, second.frames) == ([1], [0])
    assert first.confidences == pytest.approx([2.718281828**-0.1])
    assert second.confidences == pytest.approx([2.718281828**-0.5])


def test_half_precision_and_no_frames():
    path = greedy_search(torch.tensor([[[-9.0, -0.5]]], dtype=torch.bfloat16), torch.tensor([1]))[0]
    assert path.confidences == pytest.approx([2.718281828**-0.5], rel=1e-2)
    assert greedy_search(torch.zeros(2, 0, 5), torch.tensor([0, 0]))[1].ids == []
