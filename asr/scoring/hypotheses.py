"""Hypothesis files: one JSON object per line, written by decoding and read by scoring."""

import dataclasses
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from asr.errors import UserError
from asr.text.files import read_lines, write_lines
from asr.text.tokenizer import Unit


@dataclass
class Hypothesis:
    """The recognised tokens and words of one utterance, and its reference if known."""

    id: str
    speaker: str
    duration_s: float
    reference: str | None
    reference_tokens: list[str] | None
    tokens: list[str]
    times_s: list[float]  # start of each token
    text: str | None  # recognised words; None if the decoder returns only tokens
    unit: Unit
    # word, start_s, end_s and confidence (0 … 1) of each word; None if the decoder returns only tokens.
    words: list[dict[str, Any]] | None = None
    # text and score (natural log) of the best hypotheses, starting with this one; None if only one is wanted.
    nbest: list[dict[str, Any]] | None = None

    def timed_words(self) -> list[dict[str, Any]]:
        """Return `words`, or the words of `text` spread evenly over the utterance."""
        if self.words is not None:
            return self.words
        texts = (self.text or "").split()
        share_s = self.duration_s / max(len(texts), 1)
        return [
            {"word": text, "start_s": i * share_s, "end_s": (i + 1) * share_s} for i, text in enumerate(texts)
        ]


def write_hypotheses(path: str | Path, hypotheses: Iterable[Hypothesis]) -> None:
    """Write JSONL; the file appears under its name only once it is complete."""
    write_lines(
        path,
        (json.dumps(dataclasses.asdict(x), ensure_ascii=False, allow_nan=False) for x in hypotheses),
    )


def read_hypotheses(path: str | Path) -> list[Hypothesis]:
    """Read a file written by `write_hypotheses`.

    Raises:
        UserError: the file is missing, a line is not a hypothesis (named as file:line), or an id is repeated.
    """
    if not Path(path).is_file():
        raise UserError(f"{path}: expected a file of hypotheses, found none")
    hypotheses = []
    line_of_id: dict[str, int] = {}
    for number, line in read_lines(path):
        try:
            hypothesis = _parse(line)
        except (ValueError, TypeError) as error:
            raise UserError(f"{path}:{number}: expected a hypothesis as JSON, found {error}") from None
        if hypothesis.id in line_of_id:
            raise UserError(
                f"{path}:{number}: utterance {hypothesis.id!r} is already on line {line_of_id[hypothesis.id]}"
            )
        line_of_id[hypothesis.id] = number
        hypotheses.append(hypothesis)
    return hypotheses


def _list_of(kind: Any, value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, kind) for item in value)


EXPECTED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "id": (lambda x: isinstance(x, str), "a string"),
    "speaker": (lambda x: isinstance(x, str), "a string"),
    "reference": (lambda x: isinstance(x, str | None), "a string or null"),
    "text": (lambda x: isinstance(x, str | None), "a string or null"),
    "reference_tokens": (lambda x: x is None or _list_of(str, x), "a list of strings"),
    "tokens": (lambda x: _list_of(str, x), "a list of strings"),
    "words": (lambda x: x is None or _list_of(dict, x), "a list of objects"),
    "nbest": (lambda x: x is None or _list_of(dict, x), "a list of objects"),
    "times_s": (lambda x: _list_of(int | float, x), "a list of seconds"),
    "duration_s": (lambda x: isinstance(x, int | float) and 0 <= x < float("inf"), "seconds"),
    "unit": (lambda x: x in get_args(Unit), f"one of {', '.join(get_args(Unit))}"),
}


def _parse(line: str) -> Hypothesis:
    data = json.loads(line)
    if not isinstance(data, dict):
        raise ValueError(f"{type(data).__name__} instead of an object")
    names = {field.name for field in dataclasses.fields(Hypothesis)}
    if missing := sorted(names - {"words", "nbest"} - data.keys()):
        raise ValueError(f"no {', '.join(missing)}")
    if unknown := sorted(data.keys() - names):
        raise ValueError(f"unknown {', '.join(unknown)}")
    for name, (fits, expected) in EXPECTED.items():
        if not fits(data.get(name)):
            raise ValueError(f"{name}={data[name]!r} instead of {expected}")
    if len(data["times_s"]) != len(data["tokens"]):
        raise ValueError(f"{len(data['times_s'])} times for {len(data['tokens'])} tokens")
    return Hypothesis(**data)
