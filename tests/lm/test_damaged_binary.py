"""Damaged KenLM binaries: one line instead of a crash."""

import random
from pathlib import Path

import pytest
from mutants import damaged
from processes import in_a_fork

from asr.errors import UserError
from asr.lm.arpa import read_vocabulary
from asr.lm.ngram import NgramModel

pytest.importorskip("flashlight.lib.text", reason="flashlight-text is not installed")

CONTENT = (Path(__file__).parent / "data" / "lmplz.trie").read_bytes()
HEADER = 136  # bytes before the vocabulary
# Places of 8 bytes: where the 2-grams after the sixth word begin, and the hash of a word.
PLACES = {"a pointer beyond the 2-grams": 2408 + 16 * 5 + 8, "a vocabulary that is not": HEADER + 8 * 40}


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("reason", PLACES)
def test_what_kenlm_would_follow_is_checked(reason: str, tmp_path: Path) -> None:
    at = PLACES[reason]
    swapped = CONTENT[:at] + b"\xff" * 8 + CONTENT[at + 8 :]
    with pytest.raises(UserError, match=rf"x\.trie: expected a KenLM binary .*, found {reason}"):
        read_vocabulary(written(tmp_path / "x.trie", swapped))


def test_zeros_in_place_of_the_middle_are_noticed(tmp_path: Path) -> None:
    """As in a copy that ended early on a file system that had reserved the space."""
    holes = CONTENT[:7000] + bytes(3000) + CONTENT[10000:]
    with pytest.raises(UserError, match=r"x\.trie: .* found a pointer beyond the 3-grams"):
        read_vocabulary(written(tmp_path / "x.trie", holes))


def use_damaged_files(folder: Path) -> None:
    """Score with damaged files; a crash ends the process."""
    source, used = random.Random(0), 0
    lines: list[str] = []
    vocabulary = sorted(read_vocabulary(written(folder / "whole.trie", CONTENT)) or ())
    for number in range(60):
        _, content = damaged(CONTENT, source)
        if number % 2:
            at = source.randrange(HEADER, len(CONTENT) - 500)
            content = CONTENT[:at] + source.randbytes(500) + CONTENT[at + 500 :]
        try:
            read_vocabulary(written(folder / "x.trie", content))
            model = NgramModel(folder / "x.trie", vocabulary)
        except UserError as error:
            lines.append(str(error))
            continue
        state = model.start()
        for _ in range(1000):
            state, _ = model.score(state, source.randrange(len(vocabulary)))
        used += 1
    assert used
    assert lines
    assert all("x.trie: " in line and "\n" not in line for line in lines)


@pytest.mark.slow
def test_no_damage_ends_the_process(tmp_path: Path) -> None:
    """Scoring with a damaged file with 500 wrong bytes was a segmentation fault a third of the time."""
    assert in_a_fork(use_damaged_files, tmp_path) == 0
