import pytest
import torch

from asr.search.greedy import greedy_search


def naive_greedy(log_probs_TV):
    """Decode frame by frame."""
    ids, frames, ends = [], [], []
    previous = None
    for frame, log_probs_V in enumerate(log_probs_TV):
        label = int(log_probs_V.argmax())
        if label != 0 and label != previous:
            ids.append(label)
            frames.append(frame)
            ends.append(frame + 1)
        elif label != 0:
            ends[-1] = frame + 1
        previous = label
    return ids, frames, ends


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
        ids, frames, ends = naive_greedy(log_probs_TV[:length])
        assert path.ids == ids
        assert path.frames == frames
        assert path.ends == ends
        assert path.words is None


def test_the_last_label_of_an_utterance_does_not_merge_with_the_next_utterance():
    """The batch is searched as one flat sequence of frames, so a run must not cross the boundary."""
    certain = torch.tensor([[0.0, -9.0], [-9.0, -0.1]])
    following = torch.tensor([[-9.0, -0.5], [0.0, -9.0]])
    first, second = greedy_search(torch.stack([certain, following]), torch.tensor([2, 2]))
    assert (first.ids, first.frames, first.ends) == ([1], [1], [2])
    assert (second.ids, second.frames, second.ends) == ([1], [0], [1])


def test_half_precision_and_no_frames():
    path = greedy_search(torch.tensor([[[-9.0, -0.5]]], dtype=torch.bfloat16), torch.tensor([1]))[0]
    assert path.ids == [1]
    assert greedy_search(torch.zeros(2, 0, 5), torch.tensor([0, 0]))[1].ids == []
