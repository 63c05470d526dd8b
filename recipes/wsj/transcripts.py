"""Transcripts of WSJ: `.dot` files to words, by the rules that the field applies."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from asr.errors import UserError
from asr.text.tokenizer import NOISE_WORD

_LINE = re.compile(r"(.*)\((\w{8})\)\s*")
_INSIDE = r"[^\[\]<>/\s]+"
# A noise that goes on over words is marked at both ends, one beside a word points to it: neither stands
# between words. `~`: the recording was cut off. `.`: a pause.
_DROPPED = re.compile(rf"\[<{_INSIDE}\]|\[{_INSIDE}>\]|\[{_INSIDE}/\]|\[/{_INSIDE}\]|~|\.")
_NOISE = re.compile(rf"\[{_INSIDE}\]")
_DELETED_BUT_SPOKEN = re.compile(r"<([^<>\[\]]+)>")
_REWRITTEN = {"%PERCENT": "PERCENT", ".POINT": "POINT"}
# Words, with the marks of lengthening (`:`), mispronunciation (`*`) and breaking off (`-`) that are part
# of them; and punctuation that was read aloud: its mark before its name.
_WORD = re.compile(r"[A-Z0-9'.:*/&-]*[A-Z0-9][A-Z0-9'.:*/&-]*")
PUNCTUATION = re.compile(r"""(?:--|\.\.\.|[!"#%&'()+,./:;?{}-])([A-Z]+(?:[-_][A-Z]+)*)""")


@dataclass(frozen=True)
class Transcript:
    """What a line of a `.dot` file says, as it is written, and where it stands."""

    utterance: str
    written: str
    line: str


def parse_dot_file(lines: list[tuple[int, str]], source: str) -> Iterator[Transcript | UserError]:
    """Yield the transcripts `TEXT (utterance-id)` of a file, or what is wrong with a line.

    Args:
        lines: (number, text) of the file.
        source: name of the file, for messages.
    """
    for number, line in lines:
        match = _LINE.fullmatch(line)
        if match:
            yield Transcript(match[2].lower(), match[1].strip(), f"{source}:{number}")
        else:
            yield UserError(
                f"{source}:{number}: expected `TEXT (utterance-id)`, found {line.strip()[-40:]!r}"
            )


def normalise(written: str) -> str:
    """Return the words of a transcript, upper-case, `<NOISE>` for a noise between them.

    >>> normalise(r"The Dow [<door_slam] fell \\"DOUBLE\\-QUOTE [loud_breath] . <five> --DASH .POINT ~")
    'THE DOW FELL "DOUBLE-QUOTE <NOISE> FIVE -DASH POINT'

    Raises:
        UserError: a token that is neither a word, punctuation read aloud, nor known markup.
    """
    return " ".join(word for token in written.split() if (word := normalised_token(token)))


def normalised_token(token: str) -> str:
    """Return the word that a token stands for, empty where it stands for none.

    Raises:
        UserError: unknown markup.
    """
    word = token.upper().replace("\\", "")
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
