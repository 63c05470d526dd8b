"""Forced alignment against a search through all paths."""

import itertools
import math

import pytest
import torch
import torchaudio.functional

from asr.errors import UserError
from asr.search.forced_alignment import align_text, force_align, word_labels
from asr.search.viterbi import best_path
from asr.text.lexicon import Lexicon
from asr.text.tokenizer import (
    CharacterTokenizer,
    PhoneTokenizer,
    PieceTokenizer,
    SentencePieceTokenizer,
    Tokenizer,
)


def spelled(path: tuple[int, ...]) -> list[int]:
    return [label for label, _ in itertools.groupby(path) if label != 0]


def best_of_all(log_probs: torch.Tensor, ids: list[int]) -> tuple[int, ...]:
    T, V = log_probs.shape
    paths = [path for path in itertools.product(range(V), repeat=T) if spelled(path) == ids]
    return max(paths, key=lambda path: sum(float(log_probs[t, v]) for t, v in enumerate(path)))


@pytest.mark.parametrize(
    ("frames", "ids"), [(1, [2]), (3, [1, 1]), (5, [1, 2]), (6, [2, 2, 1]), (6, [1, 2, 1])]
)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("block", [2, 1024])
def test_spans_are_those_of_the_best_of_all_paths(
    frames: int, ids: list[int], seed: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asr.search.viterbi.BLOCK_FRAMES", block)
    log_probs = 2 * torch.randn(frames, 3, generator=torch.Generator().manual_seed(seed))
    log_probs = log_probs.log_softmax(dim=-1)
    path = best_of_all(log_probs, ids)
    runs = [(label, list(run)) for label, run in itertools.groupby(range(frames), key=lambda t: path[t])]
    expected = [(run[0], run[-1] + 1) for label, run in runs if label != 0]
    spans = force_align(log_probs, ids)
    assert [(span.start_frame, span.end_frame) for span in spans] == expected
    for span, label in zip(spans, ids, strict=True):
        mean = log_probs[span.start_frame : span.end_frame, label].exp().mean()
        assert span.confidence == pytest.approx(float(mean), abs=1e-5)


def test_too_few_frames_name_the_utterance() -> None:
    log_probs = torch.zeros(2, 3).log_softmax(dim=-1)
    with pytest.raises(UserError, match=r"u7: its transcript needs 3 encoder frames, found 2"):
        force_align(log_probs, [1, 1], utterance="u7")
    assert force_align(log_probs, []) == []


@pytest.mark.parametrize("levels", [1, 2, 3])
@pytest.mark.parametrize("block", [3, 1024])
def test_of_paths_that_tie_the_best_is_found(
    levels: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In 44 of 2,584 cases with equal log-probabilities, torchaudio's path was up to 2 nats worse."""
    monkeypatch.setattr("asr.search.viterbi.BLOCK_FRAMES", block)
    generator = torch.Generator().manual_seed(levels)
    worse = 0
    for frames, ids in [(5, [1, 2]), (6, [1, 2, 1]), (6, [2, 2, 1]), (7, [1, 2]), (7, [1, 1])] * 10:
        log_probs = -torch.randint(levels + 1, (frames, 3), generator=generator).float()
        best = sum(float(log_probs[t, v]) for t, v in enumerate(best_of_all(log_probs, ids)))
        spans = force_align(log_probs, ids)
        labels = [0] * frames
        for span, label in zip(spans, ids, strict=True):
            labels[span.start_frame : span.end_frame] = [label] * (span.end_frame - span.start_frame)
        assert spelled(tuple(labels)) == ids
        assert sum(float(log_probs[t, v]) for t, v in enumerate(labels)) == best
        theirs = torchaudio.functional.forced_align(log_probs[None], torch.tensor([ids]))[1]
        worse += float(theirs.sum()) < best
    assert worse > 0


def test_impossible_labels_name_the_utterance() -> None:
    log_probs = torch.tensor([[0.5, 0.5, 0.0]]).repeat(4, 1).log()
    with pytest.raises(UserError, match="u7: no path"):
        force_align(log_probs, [2], utterance="u7")


@pytest.mark.parametrize("block", [1, 7, 100, 400, 1000])
def test_blocks_of_any_size_find_torchaudios_path(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(block)
    log_probs = (3 * torch.randn(400, 6, generator=generator)).log_softmax(dim=-1)
    ids = torch.randint(1, 6, (150,), generator=generator).tolist()
    monkeypatch.setattr("asr.search.viterbi.BLOCK_FRAMES", block)
    states, log_prob = best_path(log_probs, ids)
    path = torch.tensor([ids[state // 2] if state % 2 else 0 for state in states.tolist()])
    expected, scores = torchaudio.functional.forced_align(log_probs[None], torch.tensor([ids]))
    assert torch.equal(path, expected[0].long())
    assert log_prob == pytest.approx(float(scores.double().sum()), abs=1e-4)


def test_a_path_as_long_as_its_labels_need_and_no_longer() -> None:
    log_probs = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)).log_softmax(dim=-1)
    assert best_path(log_probs, [1, 1, 2, 2])[1] == -math.inf
    assert best_path(log_probs, [1, 2, 1, 1])[0].tolist() == [1, 3, 5, 6, 7]


TEXTS = ["go on go", "no gong  on", "n g o"]
LEXICON = Lexicon({"go": [("G", "OW")], "on": [("AA", "N")], "no": [("N", "OW")]})


@pytest.mark.parametrize(
    "tokenizer",
    [PhoneTokenizer(LEXICON), CharacterTokenizer.train(TEXTS), SentencePieceTokenizer.train(TEXTS * 20, 9)],
    ids=["phone", "character", "piece"],
)
def test_words_share_the_labels_of_their_transcript(tokenizer: Tokenizer) -> None:
    for text in TEXTS:
        parts = word_labels(text, tokenizer)
        assert [word for word, _ in parts if word] == text.split()
        assert [index for _, labels in parts for index in labels] == tokenizer.encode(text)


def test_a_normaliser_may_divide_a_word() -> None:
    """NFKC puts a space into l´homme: a ValueError ended the alignment of the whole split."""
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    pieces = ["<unk>", "▁", *"lehom", "▁l", "\u0301"]
    own = tokenizers.Tokenizer(tokenizers.models.Unigram([(x, -1.0) for x in pieces], unk_id=0))
    own.normalizer, own.pre_tokenizer = tokenizers.normalizers.NFKC(), tokenizers.pre_tokenizers.Metaspace()
    tokenizer = PieceTokenizer(own.to_str(), list(range(own.get_vocab_size())))
    text = "le l´homme"
    parts = word_labels(text, tokenizer)
    assert [word for word, _ in parts] == text.split()
    assert [index for _, labels in parts for index in labels] == tokenizer.encode(text)


def test_words_take_the_times_of_their_labels() -> None:
    tokenizer = PhoneTokenizer(LEXICON)
    labels = [0, *tokenizer.encode("go")[:1] * 2, *tokenizer.encode("go")[1:], 0, *tokenizer.encode("on"), 0]
    log_probs = torch.full((len(labels), len(tokenizer)), -5.0)
    log_probs[range(len(labels)), labels] = -0.1
    go, on = align_text(log_probs, "go on", tokenizer, frame_s=0.04).words
    assert (go.word, go.start_s, go.end_s) == ("go", 0.04, 0.16)
    assert [(token.label, token.start_s, token.end_s) for token in on.tokens] == [
        ("AA", 0.2, 0.24),
        ("N", 0.24, 0.28),
    ]
    assert on.confidence == pytest.approx(0.9048, abs=1e-4)
    with pytest.raises(UserError, match="u7: its transcript has no label"):
        align_text(log_probs, " ", tokenizer, frame_s=0.04, utterance="u7")


def test_log_probabilities_that_are_not_numbers_are_refused() -> None:
    """Torchaudio returned labels like 94065944854848, which raised an IndexError."""
    with pytest.raises(UserError, match=r"x\.wav: expected log-probabilities, found NaN"):
        force_align(torch.full((5, 3), float("nan")), [1, 2], "x.wav")
