"""Transcripts in NIST's `trn` format: one `words … (speaker-utterance)` per line."""

import re
from collections.abc import Iterable
from pathlib import Path

from asr.errors import UserError
from asr.scoring.hypotheses import Hypothesis
from asr.scoring.network import NetworkWord, align_networks, network_of
from asr.text.files import one_field, read_lines, write_lines

LINE = re.compile(r"^(?P<words>.*?)\s*\((?P<id>[^()\s]+)\)\s*$")
MARKUP = re.compile(r"[{@;*]")
LISTED = 5  # ids listed in a message


def read_trn(path: str | Path) -> dict[str, str]:
    """Return the words of every utterance by the id in parentheses; `;;` starts a comment.

    Raises:
        UserError: the file is missing or not UTF-8, a line lacks its `(id)`, or an id is repeated.
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
            raise UserError(f"{path}:{number}: expected each utterance once, found {found['id']!r} again")
        texts[found["id"]] = " ".join(found["words"].split())
    return texts


def is_trn(path: str | Path) -> bool:
    """Return whether every line of a text file ends in an utterance's id in parentheses, as `(spk1-0001)`."""
    lines = [line for _, line in read_lines(path) if not line.startswith(";;")]
    found = [LINE.match(line) for line in lines]
    return bool(found) and all(x is not None and re.search(r"[\d_-]", x["id"]) for x in found)


def write_trn(folder: str | Path, hypotheses: Iterable[Hypothesis]) -> tuple[Path, Path]:
    """Write `ref.trn` and `hyp.trn` and return their paths.

    A line holds the words of an utterance, or its tokens if it has no words. Score the files with
    `sclite -i wsj -r ref.trn trn -h hyp.trn trn`.
    """
    references, heard = [], []
    for hypothesis in hypotheses:
        label = f"({one_field(hypothesis.speaker.replace('-', '_'))}-{one_field(hypothesis.id)})"
        if hypothesis.text is not None and hypothesis.reference is not None:
            reference, text = hypothesis.reference, hypothesis.text
        else:
            reference, text = " ".join(hypothesis.reference_tokens or []), " ".join(hypothesis.tokens)
        references.append(f"{reference} {label}")
        heard.append(f"{text} {label}")
    reference_path, hypothesis_path = Path(folder, "ref.trn"), Path(folder, "hyp.trn")
    write_lines(reference_path, references)
    write_lines(hypothesis_path, heard)
    return reference_path, hypothesis_path


def pair_trn(hypothesis: str | Path, reference: str | Path, *, case: str = "lower") -> list[Hypothesis]:
    """Read a hypothesis and a reference file and return the utterances in the reference's order.

    As in `sclite -i wsj`, the speaker is the part of the id before the first hyphen, `{ a / b c / @ }` is
    the alternative with the fewest errors (`@`: no word), and `word;…` and `word*` are `word`.

    Args:
        hypothesis, reference: paths.
        case: lower: compare alternatives case-insensitively; keep.

    Raises:
        UserError: as in `read_trn`, an id is in one file only (all such ids are listed), or an alternation is
            malformed.
    """
    heard, spoken = read_trn(hypothesis), read_trn(reference)
    check_same_ids(heard, spoken, str(hypothesis), str(reference))
    pairs = []
    for ident, text in spoken.items():
        chosen = text, heard[ident]
        if any(map(MARKUP.search, chosen)):
            try:
                chosen = _best_path(*(x.lower() if case == "lower" else x for x in chosen))
            except ValueError as error:
                raise UserError(f"utterance {ident!r} of {hypothesis} or {reference}: {error}") from None
        speaker = ident.partition("-")[0]
        pairs.append(Hypothesis(ident, speaker, 0.0, chosen[0], None, [], [], chosen[1], "piece"))
    return pairs


def _best_path(reference: str, hypothesis: str) -> tuple[str, str]:
    """Return both texts without markup, with the alternatives that sclite's alignment takes."""
    networks = (network_of(text, NetworkWord.parse_literal) for text in (reference, hypothesis))
    edits = align_networks(*networks)
    return (
        " ".join(edit.reference for edit in edits if edit.reference is not None),
        " ".join(edit.hypothesis for edit in edits if edit.hypothesis is not None),
    )


def check_same_ids(first: Iterable[str], second: Iterable[str], name: str, other: str) -> None:
    """Raise a `UserError` that lists the utterances missing from either set."""
    one, two = set(first), set(second)
    lacking = [
        f"{_listed(missing)} only in {where}"
        for missing, where in ((one - two, name), (two - one, other))
        if missing
    ]
    if lacking:
        raise UserError(f"expected the same utterances in both, found {'; '.join(lacking)}")


def _listed(idents: set[str]) -> str:
    names = sorted(idents)
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return f"{len(names)} ({', '.join(names[:LISTED])}{more})"
