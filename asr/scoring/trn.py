"""Transcripts in NIST's `trn` format: one `words … (speaker-utterance)` per line."""

import re
from collections.abc import Callable, Iterable
from pathlib import Path

from asr.errors import UserError
from asr.scoring.hypotheses import Hypothesis
from asr.text.files import one_field, read_lines, write_lines
from asr.text.normalise import plain_text

LINE = re.compile(r"^(?P<words>.*?)\s*\((?P<id>[^()\s]+)\)\s*$")
MARKUP = re.compile(r"[{@;*\\]")
BY_SCLITE = "NIST's sclite scores it (apt-get install sctk)"
SUFFIX = re.compile(r"(?<=.)\.(?=\w*[a-z])\w{2,5}$")  # of a recording: .wav, .3gp
LISTED = 5  # ids listed in a message
# Backslashes escape only semicolons, so characters with a meaning become their full-width forms.
LITERAL = {ord(mark): ord(mark) + 0xFEE0 for mark in "{}()<>;@*\\"}


def read_trn(path: str | Path) -> dict[str, str]:
    """Return the words of every utterance by the id in parentheses; `;;` starts a comment.

    Raises:
        UserError: the file is missing or not UTF-8, a line lacks its `(id)`, or an id is repeated (ids are
            compared without case, as in sclite).
    """
    texts: dict[str, str] = {}
    seen = set()
    for number, line in read_lines(path):
        if line.startswith(";;"):
            continue
        match = LINE.match(plain_text(line))
        if match is None:
            raise UserError(
                f"{path}:{number}: expected `words (speaker-utterance)`, found {line.strip()[-60:]!r}"
            )
        if match["id"].lower() in seen:
            raise UserError(f"{path}:{number}: expected each utterance once, found {match['id']!r} again")
        seen.add(match["id"].lower())
        texts[match["id"]] = match["words"]
    return texts


def is_trn(path: str | Path) -> bool:
    """Return whether every line of a text file ends in an utterance id in parentheses, like `(spk1-0001)`."""
    lines = [plain_text(line) for _, line in read_lines(path) if not line.startswith(";;")]
    matches = [LINE.match(line) for line in lines]
    return bool(matches) and all(x is not None and re.search(r"[\d_-]", x["id"]) for x in matches)


def write_trn(folder: str | Path, hypotheses: Iterable[Hypothesis]) -> tuple[Path, Path]:
    """Write `ref.trn` and `hyp.trn` and return their paths.

    A line holds the words of an utterance, or its tokens if it has no words, as `literal` writes them. Score
    the files with `sclite -e utf-8 -i spu_id -r ref.trn trn -h hyp.trn trn`.

    Raises:
        UserError: sclite couldn't tell the ids of two utterances apart.
    """
    references, recognised = [], []
    hypotheses = list(hypotheses)
    labels = distinct_names(
        {x.id: f"{one_field(x.speaker.replace('-', '_'))}-{one_field(x.id)}" for x in hypotheses}
    )
    for hypothesis in hypotheses:
        label = f"({labels[hypothesis.id]})"
        if hypothesis.text is not None and hypothesis.reference is not None:
            reference, text = hypothesis.reference, hypothesis.text
        else:
            reference, text = " ".join(hypothesis.reference_tokens or []), " ".join(hypothesis.tokens)
        references.append(f"{literal(reference)} {label}")
        recognised.append(f"{literal(text)} {label}")
    reference_path, hypothesis_path = Path(folder, "ref.trn"), Path(folder, "hyp.trn")
    write_lines(reference_path, references)
    write_lines(hypothesis_path, recognised)
    return reference_path, hypothesis_path


def pair_trn(hypothesis: str | Path, reference: str | Path) -> list[Hypothesis]:
    """Read a hypothesis and a reference file and return the utterances in the reference's order.

    Ids are compared as by `ident_key`; as in `sclite -i spu_id`, the speaker is the part before the first
    hyphen (else underscore).

    Raises:
        UserError: as in `read_trn`; or an id is in one file only (all such ids are listed), or a text has
            markup, such as the alternatives `{ a / b }`, which only sclite scores.
    """
    recognised, spoken = read_trn(hypothesis), read_trn(reference)
    key = ident_key(recognised, spoken)
    check_same_ids(recognised, spoken, str(hypothesis), str(reference), key=key)
    text_of = {key(ident): text for ident, text in recognised.items()}
    pairs = []
    for ident, text in spoken.items():
        said = text_of[key(ident)]
        for path, words in ((reference, text), (hypothesis, said)):
            if MARKUP.search(words):
                raise UserError(
                    f"{path}: utterance {ident!r}: expected no markup, found {words[:60]!r}: {BY_SCLITE}"
                )
        speaker = ident.lower().partition("-" if "-" in ident else "_")[0]
        pairs.append(Hypothesis(ident, speaker, 0.0, text, None, [], [], said, "piece"))
    return pairs


def ident_key(*sets: Iterable[str]) -> Callable[[str], str]:
    """Return the function that maps ids to keys by which the ids of several files are compared.

    Keys have no case; and no folder and suffix, as of recordings, if each file's keys stay distinct without.

    >>> key = ident_key(["clips/A-1.wav", "clips/A-2.wav"], ["a-1", "a-2"])
    >>> key("clips/A-1.wav"), key("a-1")
    ('a-1', 'a-1')
    """
    for key in (_recording, str.lower):
        if all(len({*map(key, idents)}) == len({*idents}) for idents in map(list, sets)):
            return key
    return str


def _recording(ident: str) -> str:
    name = ident.lower().rpartition("/")[2]
    return SUFFIX.sub("", name) or name


def check_same_ids(
    first: Iterable[str], second: Iterable[str], name: str, other: str, *, key: Callable[[str], str] = str
) -> None:
    """Raise a `UserError` that lists the utterances missing from either set, comparing the ids by `key`."""
    one, two = ({key(ident): ident for ident in idents} for idents in (first, second))
    lacking = [
        f"{_listed({texts[x] for x in missing})} only in {where}"
        for texts, missing, where in ((one, one.keys() - two, name), (two, two.keys() - one, other))
        if missing
    ]
    if lacking:
        raise UserError(f"expected the same utterances in both, found {'; '.join(lacking)}")


def literal(text: str) -> str:
    """Return a text in which nothing is markup in NIST's formats.

    >>> literal("<uh> {it} costs 5 @ 2;")
    '＜uh＞ ｛it｝ costs 5 ＠ 2；'
    """
    return text.translate(LITERAL)


def distinct_names(names: dict[str, str]) -> dict[str, str]:
    """Return the names of utterances in NIST's formats, by id.

    Raises:
        UserError: two names differ only in case, or not at all, as from the ids `a b` and `a_b`.
    """
    seen: dict[str, str] = {}
    for ident, name in names.items():
        if (other := seen.setdefault(name.lower(), ident)) != ident:
            raise UserError(
                f"utterance {ident!r}: expected an id unlike others in sclite, found {other!r} too"
            )
    return names


def _listed(idents: set[str]) -> str:
    names = sorted(idents)
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return f"{len(names)} ({', '.join(names[:LISTED])}{more})"
