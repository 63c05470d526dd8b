"""hypotheses.jsonl: what a model in training hears in a few development utterances, at every validation."""

from dataclasses import dataclass
from pathlib import Path

from asr.errors import UserError
from asr.files import build, parse_json, require_file


@dataclass(frozen=True)
class Heard:
    """A hypothesis beside its reference.

    Attributes:
        step: number of optimiser steps before the validation.
        id: utterance.
        reference, hypothesis: text, or phones for a model of phones.
    """

    step: int
    id: str
    reference: str
    hypothesis: str


def read_heard(path: Path) -> list[Heard]:
    """Read the hypotheses of all validations; none without the file.

    A last line without a line break is ignored: it is being written, or its writer was killed.

    Raises:
        UserError: a line is no hypothesis; the message names it as file:line.
    """
    if not path.exists():
        return []
    require_file(path, "a text file")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{path}: expected hypotheses in UTF-8, found other bytes") from None
    lines = text[: text.rfind("\n") + 1].split("\n")[:-1]
    return [
        build(Heard, parse_json(line, f"{path}:{number}"), f"{path}:{number}")
        for number, line in enumerate(lines, start=1)
    ]
