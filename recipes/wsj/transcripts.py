"""Parse WSJ transcripts (`.dot` files) and normalise them by the customary rules."""

import re
from dataclasses import dataclass

from asr.errors import UserError
from asr.text.tokenizer import NOISE_WORD

_LINE = re.compile(r"(.*)\((\w{8})\)\s*")
_INSIDE = r"[^\[\]<>/\s]+"
# Noises during words are marked at both ends, noises beside a word point to it; only noises between words are
# kept. `~`: the recording is cut off. `.`: a pause.
_DROPPED = re.compile(rf"\[<{_INSIDE}\]|\[{_INSIDE}>\]|\[{_INSIDE}/\]|\[/{_INSIDE}\]|~|\.")
_NOISE = re.compile(rf"\[{_INSIDE}\]")
_DELETED_BUT_SPOKEN = re.compile(r"<([^<>\[\]]+)>")
_REWRITTEN = {"%PERCENT": "PERCENT", ".POINT": "POINT", "CORP;": "CORP."}
# Words, including marks of lengthening (`:`), mispronunciation (`*`) and truncation (`-`); and spoken
# punctuation, the mark followed by its name.
_WORD = re.compile(r"[A-Z0-9'.:*/&-]*[A-Z0-9][A-Z0-9'.:*/&-]*")
PUNCTUATION = re.compile(r"""(?:--|\.\.\.|[!"#%&'()+,./:;?{}-])([A-Z]+(?:[-_][A-Z]+)*)""")


UNUSABLE = "~~"  # the whole transcript of an utterance that can't be used (46uc030b, 47hc0418)


@dataclass(frozen=True)
class WrittenTranscript:
    """An utterance id, its transcript as written, and its file and line."""

    utterance: str
    written: str
    line: str


def parse_dot_line(line: str, where: str) -> WrittenTranscript:
    """Parse a line `TEXT (utterance-id)`; `where` is its file and line.

    Raises:
        UserError: the line is malformed.
    """
    if match := _LINE.fullmatch(line):
        return WrittenTranscript(match[2].lower(), match[1].strip(), where)
    raise UserError(f"{where}: expected `TEXT (utterance-id)`, found {line.strip()[-40:]!r}")


def normalise(written: str) -> str:
    """Return the words of a transcript in upper case, with `<NOISE>` for noises between words.

    >>> normalise(r"The Dow [<door_slam] fell \\"DOUBLE\\-QUOTE [loud_breath] . <five> --DASH .POINT ~")
    'THE DOW FELL "DOUBLE-QUOTE <NOISE> FIVE -DASH POINT'

    Raises:
        UserError: a token is neither a word, spoken punctuation nor known markup.
    """
    return " ".join(word for token in written.split() if (word := normalised_token(token)))


def normalised_token(token: str) -> str:
    """Return the word for a token; empty if the token is dropped.

    Raises:
        UserError: the markup is unknown.
    """
    word = token.upper().replace("\\", "").replace("`", "'")
    word = _REWRITTEN.get(word, word)
    if _DROPPED.fullmatch(word):
        return ""
    if _NOISE.fullmatch(word):
        return NOISE_WORD
    if match := _DELETED_BUT_SPOKEN.fullmatch(word):
        word = match[1]
    if word == "--DASH":
        return "-DASH"
    if not (_WORD.fullmatch(word) or PUNCTUATION.fullmatch(word)):
        raise UserError(f"unknown markup {token!r}")
    return word
