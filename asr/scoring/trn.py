"""Transcripts in NIST's `trn` format: `words … (speaker-utterance)`, one utterance a line."""

import re
from collections.abc import Iterable
from pathlib import Path

from asr.errors import UserError
from asr.scoring.hypotheses import Hypothesis
from asr.text.files import read_lines

LINE = re.compile(r"^(?P<words>.*?)\s*\((?P<id>[^()\s]+)\)\s*$")
LISTED = 5  # ids that a message names


def read_trn(path: str | Path) -> dict[str, str]:
    """Return the words of every utterance by the id in its parentheses; `;;` begins a comment.

    Raises:
        UserError: no such file, other bytes than UTF-8, a line without `(id)`, or an id twice.
    """
    texts: dict[str, str] = {}
    for number, line in read_lines(path):
        if line.startswith(";;"):
            continue
        found = LINE.match(line)
        if found is None:
            raise UserError(
                f"{path}:{number}: expected `words (speaker-utterance)`, found {line.strip()[-60:]!r}"
            )
        if found["id"] in texts:
            raise UserError(f"{path}:{number}: utterance {found['id']!r} is there twice")
        texts[found["id"]] = " ".join(found["words"].split())
    return texts


def speaker_of(ident: str) -> str:
    """Return the speaker of an id as `sclite -i wsj` takes it: what stands before the first dash.

    >>> speaker_of("4k0-4k0c0301"), speaker_of("utterance7")
    ('4k0', 'utterance7')
    """
    return ident.partition("-")[0]


def pair_trn(hypothesis: str | Path, reference: str | Path) -> list[Hypothesis]:
    """Read two files and return what was heard with what was said, in the reference's order.

    Raises:
        UserError: as `read_trn`, or ids that one of the files lacks: they are listed.
    """
    heard, spoken = read_trn(hypothesis), read_trn(reference)
    check_same_ids(heard, spoken, str(hypothesis), str(reference))
    return [
        Hypothesis(ident, speaker_of(ident), 0.0, text, None, [], [], heard[ident], "piece")
        for ident, text in spoken.items()
    ]


def check_same_ids(first: Iterable[str], second: Iterable[str], name: str, other: str) -> None:
    """Raise `UserError` that lists the utterances which only one of two sets has."""
    one, two = set(first), set(second)
    lacking = [
        f"{_listed(missing)} in {where} alone"
        for missing, where in ((one - two, name), (two - one, other))
        if missing
    ]
    if lacking:
        raise UserError(f"expected the same utterances in both, found {'; '.join(lacking)}")


def _listed(idents: set[str]) -> str:
    names = sorted(idents)
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return f"{len(names)} ({', '.join(names[:LISTED])}{more})"
