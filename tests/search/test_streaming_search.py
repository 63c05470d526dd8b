"""Searches on log-probabilities as they come, against those of whole recordings."""

import random

import pytest
import torch
from torch import Tensor

from asr.search.fusion import NoModel
from asr.search.greedy import GreedySearch
from asr.search.path import TokenPath, join_paths
from asr.search.prefix import PrefixSearch
from asr.search.run import search_batch
from asr.search.streaming import GreedyStream, PrefixStream, SearchStream, WordStream
from asr.search.words import WordSearch
from asr.text.lexicon import Lexicon
from asr.text.tokenizer import PhoneTokenizer

LEXICON = Lexicon(
    {
        "a": [("A",)],
        "be": [("B", "E")],
        "bed": [("B", "E", "D")],
        "abed": [("A", "B", "E", "D")],
        "deeded": [("D", "E", "D", "E", "D")],
    }
)
TOKENIZER = PhoneTokenizer(LEXICON)
V = len(TOKENIZER)


def spoken(frames: int, seed: int, sharpness: float = 4.0) -> Tensor:
    """Return [T, V] log-probabilities of labels of some frames each, with pauses, and doubt about some."""
    rng = torch.Generator().manual_seed(seed)
    outputs: list[int] = []
    while len(outputs) < frames:
        label = int(torch.randint(1, V, (1,), generator=rng))
        blanks = 60 if torch.rand((), generator=rng) < 0.03 else int(torch.randint(4, (1,), generator=rng))
        outputs += [label] * int(torch.randint(1, 4, (1,), generator=rng)) + [0] * blanks
    scores = torch.randn(frames, V, generator=rng)
    scores[torch.arange(frames), outputs[:frames]] += sharpness
    return scores.log_softmax(dim=-1)


def streamed(stream: SearchStream, log_probs_TV: Tensor, seed: int | None) -> TokenPath:
    """Push blocks of random sizes, empty ones included; None: everything at once."""
    rng = random.Random(seed)
    found, start = [], 0
    while start < len(log_probs_TV):
        end = start + (rng.choice([0, 1, 2, 7, 30]) if seed is not None else len(log_probs_TV))
        found.append(stream.push(log_probs_TV[start:end]))
        start = end
    return join_paths([*found, stream.push(log_probs_TV[:0], last=True)])


def whole(decoder: PrefixSearch | None, log_probs_TV: Tensor) -> TokenPath:
    (path,) = search_batch(decoder or GreedySearch(), log_probs_TV[None], torch.tensor([len(log_probs_TV)]))
    return path


def assert_same(found: TokenPath, expected: TokenPath) -> None:
    assert (found.ids, found.frames, found.ends) == (expected.ids, expected.frames, expected.ends)
    assert found.confidences == pytest.approx(expected.confidences, abs=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_greedy_search_is_that_of_the_whole(seed: int) -> None:
    log_probs = spoken(300, seed, sharpness=2.0)
    assert_same(streamed(GreedyStream(), log_probs, seed), whole(None, log_probs))
    assert streamed(GreedyStream(), log_probs[:0], seed).ids == []


@pytest.mark.parametrize("seed", range(3))
def test_pending_labels_are_those_if_the_recording_ended_here(seed: int) -> None:
    log_probs = spoken(60, seed)
    prefix = PrefixSearch(NoModel(), beam=10)
    for stream, decoder in ((GreedyStream(), None), (PrefixStream(prefix, patience=1000), prefix)):
        final: list[TokenPath] = []
        for frames in range(1, 61):
            final.append(stream.push(log_probs[frames - 1 : frames]))
            assert_same(join_paths([*final, stream.pending()]), whole(decoder, log_probs[:frames]))


@pytest.mark.parametrize("seed", range(4))
def test_prefix_search_depends_on_frames_alone_and_is_that_of_the_whole(seed: int) -> None:
    """Where the model is as sure as trained ones are, what comes after two seconds changes nothing."""
    log_probs = spoken(400, seed, sharpness=9.0)
    decoder = PrefixSearch(NoModel(), beam=20)
    found = [streamed(PrefixStream(decoder, patience=50), log_probs, x) for x in (None, seed, seed + 1)]
    assert found[0] == found[1] == found[2]
    assert_same(found[0], whole(decoder, log_probs))


def test_the_best_hypothesis_decides_and_memory_does_not_grow() -> None:
    """Silence of any length and labels in any number included."""
    decoder = PrefixSearch(NoModel(), beam=20)
    stream = PrefixStream(decoder, patience=25)
    labels = 0
    speech, silence = spoken(600, 1, sharpness=1.5), torch.full((600, V), -12.0)
    silence[:, 0] = -1e-3
    for frame, log_probs_V in enumerate(torch.cat((silence, speech, silence)), start=1):
        labels += len(stream.push(log_probs_V[None]).ids)
        assert stream._first >= frame - 25 - 15  # a label may be as old, and longer
        assert len(stream._root.below()) < 20 * 60
        assert all(prefix.path()[0].parent is stream._root for prefix in stream._beam if prefix.parent)
    assert labels > 100
    assert stream.push(speech[:0], last=True).ids == []  # the silence has decided


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("decoder", [None, PrefixSearch(NoModel(), beam=20)])
def test_words_are_those_in_all_labels(decoder: PrefixSearch | None, seed: int) -> None:
    log_probs = spoken(400, seed, sharpness=9.0)
    labels = whole(decoder, log_probs)
    inner = GreedyStream() if decoder is None else PrefixStream(decoder, patience=50)
    stream = WordStream(inner, TOKENIZER, WordSearch(LEXICON))
    found = streamed(stream, log_probs, seed)
    assert_same(found, labels)
    assert found.words == WordSearch(LEXICON)(TOKENIZER.tokens(labels.ids))
    assert len(found.words) > 5


def test_words_are_final_before_the_end() -> None:
    """After as many phones as the longest word may have, edits included."""
    search = WordSearch(LEXICON)
    segments, rng = search.start(), random.Random(0)
    phones = rng.choices(["A", "B", "E", "D", "NSN"], k=500)
    words, since, waited = 0, 0, 0
    for phone in phones:
        found, returned = segments.push([phone])
        words += len(found)
        since += 1 - returned
        waited = max(waited, since)
        assert len(segments.boundaries) <= since + 1
    assert waited < 40
    assert words > 0.9 * len(search(phones))
    last, _ = segments.push([], last=True)
    assert words + len(last) == len(search(phones))
