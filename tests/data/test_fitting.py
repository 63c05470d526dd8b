from pathlib import Path

import numpy as np
import pytest
from tone_corpora import save_cuts

from asr.data.cuts import Cuts
from asr.data.fitting import frames_for_words, misfits
from asr.data.manifest import read_cuts
from asr.data.transcripts import CHUNK, Texts, Transcripts
from asr.lengths import frames_needed
from asr.text.lexicon import Lexicon
from asr.text.tokenizer import KINDS, NOISE_WORD, Tokenizer, build_tokenizer

WORDS = ["a", "ha", "aha", "haha", "hall", "lull", "ö", "|", "new", NOISE_WORD, "[laughter]"]
LEXICON = Lexicon({word: [tuple(word.upper())] for word in ["a", "ha", "aha", "haha", "hall", "lull"]})


def drawn_texts(count: int) -> list[str]:
    """Return texts of 0 … 7 words, with many repeats within and between words."""
    random = np.random.default_rng(0)
    return [" ".join(random.choice(WORDS, random.integers(8))) for _ in range(count)]


def drawn_tokenizer(kind: str, texts: list[str]) -> Tokenizer:
    """Return a tokenizer of texts that lack the word `new`."""
    return build_tokenizer(kind, [text.replace("new", "") for text in texts if text], LEXICON, 14)


@pytest.mark.parametrize("topology", ["ctc", "hmm"])
@pytest.mark.parametrize("kind", KINDS)
def test_words_need_the_frames_of_their_sentence(kind: str, topology: str) -> None:
    expected = drawn_texts(CHUNK + 7)
    tokenizer = drawn_tokenizer(kind, expected)
    transcripts = Transcripts()
    for text in expected:
        transcripts.append(text)
    rows = np.random.default_rng(1).permutation(len(expected))
    found = frames_for_words(Texts(transcripts, rows), tokenizer, topology)
    assert found.tolist() == [frames_needed(tokenizer.encode(expected[i]), topology) for i in rows]
    assert frames_for_words(Texts(transcripts, rows[:0]), tokenizer, topology).tolist() == []


@pytest.fixture
def cuts(tone_corpus: Path, tmp_path: Path) -> Cuts:
    """Return cuts with drawn transcripts and durations of 0.01 … 0.3 s."""
    [cut, *_] = read_cuts(tone_corpus / "train.cuts.jsonl.gz")
    path = tmp_path / "x.cuts.jsonl.gz"
    made = []
    for i, text in enumerate(filter(None, drawn_texts(200))):
        part = cut.truncate(duration=round(0.01 + 0.29 * ((7 * i) % 200) / 200, 3)).with_id(f"u{i}")
        part.supervisions[0].text = text
        made.append(part)
    save_cuts(made, path)
    return read_cuts(path)


@pytest.mark.parametrize("kind", KINDS)
def test_misfits_are_those_of_one_utterance_after_another(kind: str, cuts: Cuts) -> None:
    tokenizer = drawn_tokenizer(kind, list(cuts.texts))
    frames = np.rint(cuts.durations_s * 100).astype(np.int64)
    expected = {}
    for i, (cut, count) in enumerate(zip(cuts, frames.tolist(), strict=True)):
        needed = frames_needed(tokenizer.encode(cut.supervisions[0].text or ""), "ctc")
        if not 0.05 <= cut.duration <= 0.25:
            expected[i] = f"duration {cut.duration:.2f} s is outside 0.05 … 0.25 s"
        elif count < needed:
            expected[i] = f"the targets need {needed} encoder frames, found {count}"
    assert dict(misfits(cuts, frames, (0.05, 0.25), tokenizer, "ctc")) == expected
    assert 60 < len(expected) < len(cuts)
    assert {reason.split()[0] for reason in expected.values()} == {"duration", "the"}


def test_a_word_divided_differently_in_its_sentence_is_counted_as_it_is(cuts: Cuts) -> None:
    """An utterance that lacks a frame for its targets has an infinite loss, so estimates don't decide."""
    tokenizer = drawn_tokenizer("character", list(cuts.texts))
    whole = tokenizer.encode
    tokenizer.encode = lambda text: whole(text) + whole("a") * (" " in text)  # type: ignore[method-assign]
    frames = np.array([frames_needed(whole(text), "ctc") for text in cuts.texts])
    found = dict(misfits(cuts, frames, (0.0, 1.0), tokenizer, "ctc"))
    assert list(found) == [i for i, text in enumerate(cuts.texts) if " " in text]
