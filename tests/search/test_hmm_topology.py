"""Searches and alignment with two outputs per label, against all output sequences."""

import itertools
import math
from collections import defaultdict

import pytest
import torch
from torch import Tensor

from asr.errors import UserError
from asr.search.beam import BeamSearch
from asr.search.forced_alignment import force_align
from asr.search.fusion import NoModel
from asr.search.greedy import greedy_search
from asr.search.prefix import PrefixSearch
from asr.text.lexicon import Lexicon
from asr.text.tokenizer import CharacterTokenizer, PhoneTokenizer

V = 3
Spans = tuple[tuple[int, int, int], ...]  # label, first frame, frame after the last one


def random_log_probs(frames: int, seed: int, vocabulary: int = V) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (2 * torch.randn(frames, 2 * vocabulary - 1, generator=generator)).log_softmax(dim=-1)


def all_paths(log_probs: Tensor, vocabulary: int = V, interrupted: bool = False) -> dict[Spans, float]:
    """Return the log-probability of the best output sequence for all labels and frames.

    Args:
        log_probs: [T, 2V − 1] log-probabilities of the outputs.
        vocabulary: V.
        interrupted: whether silence may follow the first frame of a label that goes on.
    """
    paths: dict[Spans, float] = {}

    def extend(t: int, spans: Spans, inside: bool, score: float) -> None:
        if t == len(log_probs):
            paths[spans] = max(score, paths.get(spans, -math.inf))
            return
        row = log_probs[t].tolist()
        starting = bool(spans) and spans[-1][2] - spans[-1][1] == 1
        extend(t + 1, spans, inside and interrupted and starting, score + row[0])
        if inside:
            label, start, _ = spans[-1]
            longer = (*spans[:-1], (label, start, t + 1))
            extend(t + 1, longer, True, score + row[label + vocabulary - 1])
        for label in range(1, vocabulary):
            extend(t + 1, (*spans, (label, t, t + 1)), True, score + row[label])

    extend(0, (), False, 0.0)
    return paths


def batch(log_probs: Tensor) -> tuple[Tensor, Tensor]:
    return log_probs[None], torch.tensor([len(log_probs)])


def test_greedy_search_finds_the_best_path() -> None:
    for seed in range(5):
        log_probs = random_log_probs(5, seed)
        paths = all_paths(log_probs)
        best = max(paths, key=lambda spans: paths[spans])
        (found,) = greedy_search(*batch(log_probs), topology="hmm")
        assert tuple(zip(found.ids, found.frames, found.ends, strict=True)) == best


def test_greedy_search_of_a_batch_ignores_padding() -> None:
    long, short = random_log_probs(7, 0), random_log_probs(4, 1)
    padded = torch.cat((short, torch.full((3, 2 * V - 1), torch.nan)))
    both = greedy_search(torch.stack((long, padded)), torch.tensor([7, 4]), "hmm")
    assert both == [greedy_search(*batch(x), topology="hmm")[0] for x in (long, short)]


@pytest.mark.parametrize("ids", [[1], [1, 1], [2, 1, 1], [1, 2, 2, 1, 1]])
def test_alignment_finds_the_best_path_of_the_labels(ids: list[int]) -> None:
    for seed in range(5):
        log_probs = random_log_probs(5, seed)
        paths = all_paths(log_probs)
        spelled = [spans for spans in paths if [label for label, *_ in spans] == ids]
        best = max(spelled, key=lambda spans: paths[spans])
        found = force_align(log_probs, ids, topology="hmm")
        assert [(span.start_frame, span.end_frame) for span in found] == [span[1:] for span in best]
        (label, start, end), first = best[0], found[0]
        outputs = [label, *[label + V - 1] * (end - start - 1)]
        mean = sum(log_probs[start + i, output].exp() for i, output in enumerate(outputs)) / len(outputs)
        assert first.confidence == pytest.approx(float(mean))


def test_alignment_counts_no_blanks_between_equal_labels() -> None:
    with pytest.raises(UserError, match="its transcript needs 3 encoder frames, found 2"):
        force_align(random_log_probs(2, 0), [1, 1, 1], topology="hmm")


def test_prefix_search_finds_the_most_probable_labels() -> None:
    for seed in range(5):
        log_probs = random_log_probs(4, seed)
        sums: dict[tuple[int, ...], float] = defaultdict(float)
        for path in itertools.product(range(2 * V - 1), repeat=4):
            labels, before = [], 0
            for output in path:
                if output >= V and before not in (output, output - V + 1):
                    break
                labels += [output] if 0 < output < V else []
                before = output
            else:
                sums[tuple(labels)] += math.exp(sum(float(log_probs[t, x]) for t, x in enumerate(path)))
        best = max(sums, key=lambda labels: sums[labels])
        search = PrefixSearch(NoModel(), beam=1000, token_threshold=1e6, topology="hmm")
        (found,) = search(*batch(log_probs))
        assert tuple(found.ids) == best
        assert found.score == pytest.approx(math.log(sums[best]), abs=1e-4)


PHONES = PhoneTokenizer(Lexicon({"ab": [("A", "B")], "b": [("B",)], "aab": [("A", "A", "B")]}))


def words_of(labels: tuple[int, ...], spellings: dict[tuple[int, ...], str]) -> list[list[str]]:
    """Return all segmentations of labels into words."""
    if not labels:
        return [[]]
    return [
        [word, *rest]
        for spelling, word in spellings.items()
        if labels[: len(spelling)] == spelling
        for rest in words_of(labels[len(spelling) :], spellings)
    ]


def test_beam_search_finds_the_best_words() -> None:
    """Words of one label, equal neighbours within and between words, labels of one frame."""
    pytest.importorskip("flashlight.lib.text.decoder")
    A, B = PHONES.encode("ab")
    spellings = {(A, B): "ab", (B,): "b", (A, A, B): "aab"}
    search = BeamSearch(PHONES, beam=1000, threshold=1e6, word_score=-0.5, topology="hmm")
    for seed in range(8):
        log_probs = random_log_probs(5, seed, len(PHONES))
        log_probs[:, [1, 2, len(PHONES), len(PHONES) + 1]] = -1e4  # SPN and NSN are in no word
        scored = {
            (tuple(words), spans): score - 0.5 * len(words)
            for spans, score in all_paths(log_probs, len(PHONES), interrupted=True).items()
            for words in words_of(tuple(label for label, *_ in spans), spellings)
        }
        words, spans = max(scored, key=lambda key: scored[key])
        (found,) = search(*batch(log_probs))
        assert found.score == pytest.approx(scored[words, spans], abs=1e-3)
        assert [word.word for word in found.words or []] == list(words)
        assert tuple(zip(found.ids, found.frames, found.ends, strict=True)) == spans


def test_beam_search_of_characters_has_gaps_of_any_length() -> None:
    pytest.importorskip("flashlight.lib.text.decoder")
    tokenizer = CharacterTokenizer.train(["go on"])
    size = len(tokenizer)
    g, o, gap, n = (tokenizer.symbols.index(x) for x in ("g", "o", "|", "n"))
    later = size - 1
    outputs = [0, g, o, o + later, gap, gap + later, gap + later, o, n, n + later, 0]
    log_probs = torch.full((len(outputs), 2 * size - 1), -8.0)
    log_probs[range(len(outputs)), outputs] = -0.1
    (found,) = BeamSearch(tokenizer, words=["go", "on", "goon"], topology="hmm")(*batch(log_probs))
    assert found.text == "go on"
    assert found.ids == [g, o, gap, o, n]
    assert found.frames == [1, 2, 4, 7, 8]
    assert found.ends == [2, 4, 7, 8, 10]


def test_options_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UserError, match="tokens=5: has no effect"):
        BeamSearch(PHONES, tokens=5, topology="hmm")
