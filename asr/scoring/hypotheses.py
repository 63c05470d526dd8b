"""Hypothesis files: one JSON object per line, written by decoding and read by scoring."""

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from asr.errors import UserError
from asr.text.files import write_lines
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
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise UserError(f"{path}: expected a file of hypotheses, found none") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: expected a file of hypotheses, found {error}") from None
    hypotheses = []
    line_of_id: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
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


def _parse(line: str) -> Hypothesis:
    data = json.loads(line)
    if not isinstance(data, dict):
        raise ValueError(f"{type(data).__name__} instead of an object")
    names = {field.name for field in dataclasses.fields(Hypothesis)}
    if missing := sorted(names - {"words", "nbest"} - data.keys()):
        raise ValueError(f"no {', '.join(missing)}")
    if unknown := sorted(data.keys() - names):
        raise ValueError(f"unknown {', '.join(unknown)}")
    for name in ("id", "speaker"):
        if not isinstance(data[name], str):
            raise ValueError(f"{name}={data[name]!r} instead of a string")
    for name in ("reference", "text"):
        if not isinstance(data[name], str | None):
            raise ValueError(f"{name}={data[name]!r} instead of a string or null")
    for name in ("reference_tokens", "tokens"):
        optional = name == "reference_tokens" and data[name] is None
        if not optional and not _all_of(data[name], str):
            raise ValueError(f"{name}={data[name]!r} instead of a list of strings")
    for name in ("words", "nbest"):
        if data.get(name) is not None and not _all_of(data[name], dict):
            raise ValueError(f"{name}={data[name]!r} instead of a list of objects")
    if not _all_of(data["times_s"], int | float):
        raise ValueError(f"times_s={data['times_s']!r} instead of a list of seconds")
    if len(data["times_s"]) != len(data["tokens"]):
        raise ValueError(f"{len(data['times_s'])} times for {len(data['tokens'])} tokens")
    duration_s = data["duration_s"]
    if not isinstance(duration_s, int | float) or not 0 <= duration_s < float("inf"):
        raise ValueError(f"duration_s={duration_s!r} instead of seconds")
    if data["unit"] not in get_args(Unit):
        raise ValueError(f"unit={data['unit']!r} instead of one of {', '.join(get_args(Unit))}")
    return Hypothesis(**data)


def _all_of(value: object, kind: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, kind) for item in value)  # type: ignore[arg-type]
