import gzip
from pathlib import Path

import pytest

from asr.errors import UserError
from asr.lm.arpa import read_vocabulary, write_arpa
from asr.lm.kneser_ney import estimate
from asr.lm.ngram import NgramModel, check_casing, warn_unknown
from asr.lm.perplexity import score_text

pytest.importorskip("flashlight.lib.text", reason="flashlight-text is not installed")

DATA = Path(__file__).parent / "data"
TEXT = [line.split() for line in (DATA / "words.txt").read_text().splitlines()]


@pytest.mark.parametrize("name", ["own.arpa", "own.arpa.gz"])
def test_kenlm_reads_the_written_file(name, tmp_path):
    estimated = estimate(TEXT, 3)
    write_arpa(estimated, tmp_path / name)
    assert read_vocabulary(tmp_path / name) == set(estimated.vocabulary)
    own = NgramModel(tmp_path / name, ["said", "company", "zebra"])
    theirs = NgramModel(DATA / "lmplz.trie", ["said", "company", "zebra"])
    for words in [(0,), (1, 0), (1, 0, 1), (2, 0)]:
        scores = []
        for model in (own, theirs):
            state, log10 = model.start(), 0.0
            for word in words:
                state, added = model.score(state, word)
                log10 += added
            scores.append(log10 + model.finish(state))
        assert scores[0] == pytest.approx(scores[1], abs=1e-5)


def test_the_vocabulary_of_a_binary_file_is_read():
    words = read_vocabulary(DATA / "lmplz.arpa.gz")
    assert read_vocabulary(DATA / "lmplz.trie") == words
    assert len(words) == 283


@pytest.mark.parametrize("keep", [0.03, 0.3, 0.7, 0.999])
def test_a_truncated_arpa_file_raises(keep, tmp_path):
    content = gzip.decompress((DATA / "lmplz.arpa.gz").read_bytes())
    path = tmp_path / "cut.arpa"
    path.write_bytes(content[: int(keep * len(content))])
    with pytest.raises(UserError, match=r"cut.arpa: the language model is truncated: expected 283.*found"):
        read_vocabulary(path)


def test_a_damaged_file_raises(tmp_path):
    (tmp_path / "cut.arpa.gz").write_bytes((DATA / "lmplz.arpa.gz").read_bytes()[:5000])
    (tmp_path / "cut.trie").write_bytes((DATA / "lmplz.trie").read_bytes()[:9000])
    (tmp_path / "words.arpa").write_text("no model\n")
    (tmp_path / "bytes.arpa").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "empty.arpa").write_text("")
    lines = gzip.decompress((DATA / "lmplz.arpa.gz").read_bytes()).decode().splitlines()
    (tmp_path / "header.arpa").write_text("\n".join([lines[0], "ngram 1=many", *lines[2:]]))
    (tmp_path / "line.arpa").write_text("\n".join([*lines[:6], "-1.0", *lines[7:]]))
    bigram = next(i for i, line in enumerate(lines) if line == "\\2-grams:") + 1
    probability, pair, *backoff = lines[bigram].split("\t")
    unseen = "\t".join([probability, f"zzzz {pair.split()[1]}", *backoff])
    (tmp_path / "unseen.arpa").write_text("\n".join([*lines[:bigram], unseen, *lines[bigram + 1 :]]))
    (tmp_path / "positive.arpa").write_text("\n".join([*lines[:6], lines[6][1:], *lines[7:]]))
    for name, reason in {
        "none.arpa": "found none",
        "cut.arpa.gz": "expected a whole gzip file, found a broken one",
        "cut.trie": r"KenLM rejects: Binary file has size 9000 but the headers say .* at least 15049$",
        "positive.arpa": r"KenLM rejects: Positive log probability 2\.\d+ in .* Error in .* Byte: \d+$",
        "unseen.arpa": r"KenLM rejects: Word zzzz was not seen in the unigrams .* at byte \d+ Byte: \d+$",
        "words.arpa": "expected an ARPA or KenLM file, found 'no model'",
        "bytes.arpa:1": "expected an ARPA or KenLM file in UTF-8, found the bytes ff",
        "empty.arpa": "found no",
        "header.arpa": "expected `ngram 1=<number>`, found 'ngram 1=many'",
        "line.arpa": "expected a probability and a word, found '-1.0'",
    }.items():
        with pytest.raises(UserError, match=f"{name}: .*{reason}"):
            score_text(tmp_path / name.partition(":")[0], [["a"]])


def test_different_casing_raises():
    vocabulary = read_vocabulary(DATA / "lmplz.trie")
    words = [word.upper() for word in vocabulary if word.isalpha()]
    with pytest.raises(UserError, match=r"differ in case from .* the lexicon .*0 of 280, and 280 regard"):
        check_casing("some.arpa", vocabulary, words, "the lexicon")
    check_casing("some.arpa", vocabulary, [word.lower() for word in words], "the lexicon")
    # Words on another subject do not count as a difference in casing.
    check_casing("some.arpa", vocabulary, ["ZEBRA", "YAK", "THE"], "the lexicon")


def test_unknown_words_are_counted(caplog):
    warn_unknown("some.arpa", read_vocabulary(DATA / "lmplz.trie"), ["said", "zebra", "yak"], "the lexicon")
    assert "2 of 3 words of the lexicon are not in the model" in caplog.text
    assert "yak, zebra" in caplog.text
