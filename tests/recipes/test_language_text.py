"""Texts of language models: text8's normalisation, splits, word pieces, the Bible's package, bad input."""

import gzip
import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
from asr_recipes.language import bible
from asr_recipes.language.options import Options
from asr_recipes.language.prepare import prepare
from asr_recipes.language.text import ALPHABET, load_text, normalise, read_splits

from asr.cli import main
from asr.errors import UserError
from asr.text.tokenizer import SentencePieceTokenizer

# The rules after the removal of markup in Mahoney's wikifil.pl, for each line.
PERL = r"""
use bytes;
while (<>) {
  $_=" $_ "; tr/A-Z/a-z/;
  s/0/ zero /g; s/1/ one /g; s/2/ two /g; s/3/ three /g; s/4/ four /g;
  s/5/ five /g; s/6/ six /g; s/7/ seven /g; s/8/ eight /g; s/9/ nine /g;
  tr/a-z/ /cs; chop; print $_;
}
"""
LINES = ["The 2nd «Café», of 1984!\n", "\n", "  ÉTÉ\tKelvin K…  \n", "don't -- stop\n", "7\n", "the end\n"]


@pytest.mark.skipif(shutil.which("perl") is None, reason="the script that defines text8 is in Perl")
@pytest.mark.parametrize("lines", [LINES, LINES[1:], LINES[:1], ["no line break"], ["\n"]])
def test_characters_are_normalised_as_by_mahoneys_script(lines: list[str]) -> None:
    text = "".join(lines)
    done = subprocess.run(["perl", "-e", PERL], input=text.encode(), capture_output=True, check=True)
    assert normalise(text) == done.stdout.decode()
    assert normalise(normalise(text)) == normalise(text)


def test_characters_are_numbered_from_1(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("Abc xyz 1 " * 200)
    text = load_text(path, "character", 0, 10)
    assert text.vocabulary == 28
    assert "".join(ALPHABET[i - 1] for i in text.tokens["train"][:16]) == " abc xyz one abc"
    assert text.tokens["train"].dtype == np.uint8
    assert "characters 2,160 train, 120 dev, 120 test; 28 symbols" in text.describe()
    path.write_text("Abc xyz 2 " * 200)
    other = load_text(path, "character", 0, 10)
    assert all(other.digest(split) != text.digest(split) for split in ("train", "dev", "test"))


def test_splits_are_contiguous_or_files(tmp_path: Path) -> None:
    """The public folder with all words, `wikitext-2-raw`, was refused."""
    (tmp_path / "text8").write_text("a" * 90 + "b" * 5 + "c" * 5)
    expected = {"train": "a" * 90, "dev": "b" * 5, "test": "c" * 5}
    assert read_splits(tmp_path) == read_splits(tmp_path / "text8") == expected
    for kind in ("raw", "tokens"):
        found = {}
        for split, name in (("train", "train"), ("dev", "valid"), ("test", "test")):
            found[split] = f" = {name} {kind} = \n"
            (tmp_path / f"wiki.{name}.{kind}").write_text(found[split])
        assert read_splits(tmp_path) == found


def test_word_pieces_are_learned_from_the_training_split(tmp_path: Path) -> None:
    words = [a + b + c for a in "bcdfghm" for b in "aeiou" for c in "nprst"]
    (tmp_path / "train.txt").write_text("".join(f"the {x} sat on the mat\n" for x in words) + "x" * 2500)
    (tmp_path / "dev.txt").write_text("the mat sat\n\nон the cat\n" * 5)
    (tmp_path / "test.txt").write_text("cat " * 30)
    text = load_text(tmp_path, "sentencepiece", 40, 4)
    assert text.unit == "token"
    assert text.vocabulary == 41
    assert min(tokens.min() for tokens in text.tokens.values()) == 1  # <unk>: dev has unknown letters
    assert max(tokens.max() for tokens in text.tokens.values()) <= 40
    assert len(text.tokens["test"]) >= 30
    with pytest.raises(UserError, match="pieces=5000: sentencepiece can't learn that many"):
        load_text(tmp_path, "sentencepiece", 5000, 4)


def test_bad_texts_are_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "text"
    missing = "expected a text file or a folder, found none \\(asr prepare language"
    for content, message in (
        (None, missing),
        ("short", "expected more than recipe.length=10 characters in train, found 5"),
        ("an english text " * 11, "expected more than recipe.length=10 characters in dev, found 10"),
        ("русский текст " * 9, "expected text in the letters a–z, found 97 other letters beside 0"),
        (b"\xff" * 99, "expected utf-8 text, found the bytes ff"),
    ):
        if content is not None:
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(UserError, match=message) as error:
            load_text(path, "character", 0, 10)
        assert "\n" not in str(error.value)
    with pytest.raises(
        UserError,
        match=r"expected a folder with text8 or wiki\.train\.tokens or wiki\.train\.raw or train\.txt",
    ):
        read_splits(tmp_path)
    (tmp_path / "train.txt").write_text("a")
    with pytest.raises(UserError, match=r"dev\.txt"):
        read_splits(tmp_path)


def packed(content: bytes) -> bytes:
    """Return content as Unix compress would write it, without header: codes of 9 bits, no dictionary used."""
    # The decoder's codes grow to 10 bits after 255 codes, so the content must be shorter.
    assert len(content) < 250
    bits = sum(byte << (9 * i) for i, byte in enumerate(content))
    return bits.to_bytes(-(-9 * len(content) // 8), "little")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A miniature of the package, of two blocks."""
    blocks = [packed(b"Holy Bible.\nGe1:1 In the beginning.\n1Jo2:3 And he"), packed(b"reby, 1:2 so.\n")]
    start = bible.HEADER + 16 + 4
    starts = [start, start + len(blocks[0])]
    header = bible.MAGIC.ljust(bible.HEADER, b"\0") + struct.pack(">4I", 65536, 2, *starts)
    path = tmp_path / "package" / bible.DATA
    path.parent.mkdir(parents=True)
    path.write_bytes(header + b"\0" + bible.COMPRESS + b"".join(blocks))
    return tmp_path / "package"


def test_the_bible_is_unpacked_without_references(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match=r"bible\.data: expected 31102 verses, found 2"):
        prepare(Options(source=str(package)), tmp_path)
    monkeypatch.setattr(bible, "VERSES", 2)
    prepare(Options(source=str(package)), tmp_path / "data")
    assert (tmp_path / "data" / "bible.txt").read_text() == "In the beginning.\nAnd hereby, 1:2 so.\n"


def test_a_damaged_package_is_one_clear_line(
    package: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = package / bible.DATA
    content = path.read_bytes()
    for damaged in (b"", content[:60], gzip.compress(b"other"), content.replace(b"EC02", b"EC03")):
        path.write_bytes(damaged)
        assert main(["prepare", "language", f"source={package}", f"folder={tmp_path / 'data'}"]) == 1
        error = capsys.readouterr().err
        assert "expected the text of the package bible-kjv-text" in error
        assert error.count("\n") == 1
    path.unlink()
    assert main(["prepare", "language", f"source={package}", f"folder={tmp_path / 'data'}"]) == 1
    assert "bible.data" in capsys.readouterr().err
    assert main(["prepare", "language", f"source={package}", "shard=1/2"]) == 1
    assert "unknown option 'shard' (known: source)" in capsys.readouterr().err


def test_candidates_of_one_text_share_its_word_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planning language_table2 trained the same tokenizer for every candidate, 20 seconds each."""
    trained = []
    learn = SentencePieceTokenizer.train
    monkeypatch.setattr(
        SentencePieceTokenizer, "train", lambda *given: trained.append(given) or learn(*given)
    )
    path = tmp_path / "words.txt"
    words = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    for content in (words * 40, words[::-1] * 40):
        path.write_text(content)
        first, second = (load_text(path, "sentencepiece", 25, 4) for _ in range(2))
        assert all(np.array_equal(first.tokens[split], second.tokens[split]) for split in first.tokens)
    assert len(trained) == 2
