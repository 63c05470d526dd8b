"""Hypotheses on disk: one JSON object a line, written by decoding and read by scoring."""

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from asr.errors import UserError
from asr.files import atomic_text
from asr.text.tokenizer import Unit


@dataclass
class Hypothesis:
    """What was recognised in one utterance, and what was said in it where that is known."""

    id: str
    speaker: str
    duration_s: float
    reference: str | None
    reference_tokens: list[str] | None
    tokens: list[str]
    times_s: list[float]  # the start of each token
    text: str | None  # the recognised words; None where the decoder gives tokens alone
    unit: Unit
    # Of each word: word, start_s, end_s, confidence (0 … 1); None where the decoder knows no words.
    words: list[dict[str, Any]] | None = None
    # The best hypotheses, this one first: text and score (natural log); None where only one was asked for.
    nbest: list[dict[str, Any]] | None = None


def write_hypotheses(path: str | Path, hypotheses: Iterable[Hypothesis]) -> None:
    """Write JSONL; the file appears under its name only when it is complete."""
    with atomic_text(path) as file:
        for hypothesis in hypotheses:
            file.write(json.dumps(dataclasses.asdict(hypothesis), ensure_ascii=False, allow_nan=False) + "\n")


def read_hypotheses(path: str | Path) -> list[Hypothesis]:
    """Read what `write_hypotheses` wrote.

    Raises:
        UserError: the file is missing, a line is not such an object (named as file:line), or an id repeats.
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
