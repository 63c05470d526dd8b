"""Hypothesis files: one JSON object per line, written by decoding and read by scoring."""

import dataclasses
import json
import math
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asr.errors import UserError
from asr.files import atomic_text, build, parse_json, record_text, require_file
from asr.records.run_folder import DECODING, EXPORTS, HYPOTHESES, OFFICIAL, SCORE, TABLES
from asr.text.files import read_lines
from asr.text.tokenizer import Unit


@dataclass
class WordEntry:
    """An entry of `Hypothesis.words`; confidence: 0 … 1."""

    word: str
    start_s: float
    end_s: float
    confidence: float | None = None


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
    # text and score (natural log) of the best hypotheses, this one first; None without an n-best list.
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


def write_decoded(folder: Path, lines: str, record: dict[str, Any]) -> None:
    """Write decode.json, then hyp.jsonl; scores of earlier hypotheses are removed first.

    Nothing is removed before both files are on disk under temporary names.
    """
    with atomic_text(folder / HYPOTHESES) as file:
        file.write(lines)
        file.flush()
        with atomic_text(folder / DECODING) as about:
            about.write(record_text(record))
            about.flush()
            for name in (SCORE, *TABLES, *EXPORTS, HYPOTHESES):
                Path(folder, name).unlink(missing_ok=True)
            shutil.rmtree(folder / OFFICIAL, ignore_errors=True)


def hypothesis_line(hypothesis: Hypothesis) -> str:
    """Return the line of a hypothesis in hyp.jsonl."""
    return json.dumps(dataclasses.asdict(hypothesis), ensure_ascii=False, allow_nan=False) + "\n"


def read_hypotheses(path: str | Path) -> list[Hypothesis]:
    """Read hyp.jsonl, written by `asr decode`.

    Raises:
        UserError: the file is missing, a line is not a hypothesis (named as file:line), or an id is repeated.
    """
    require_file(path, "a file of hypotheses")
    hypotheses = []
    line_of_id: dict[str, int] = {}
    for number, line in read_lines(path):
        hypothesis = _parse(line, f"{path}:{number}")
        if hypothesis.id in line_of_id:
            raise UserError(
                f"{path}:{number}: utterance {hypothesis.id!r} is already on line {line_of_id[hypothesis.id]}"
            )
        line_of_id[hypothesis.id] = number
        hypotheses.append(hypothesis)
    return hypotheses


def _parse(line: str, source: str) -> Hypothesis:
    hypothesis: Hypothesis = build(Hypothesis, parse_json(line, source), source)
    if not 0 <= hypothesis.duration_s < math.inf:
        raise UserError(f"{source}: duration_s={hypothesis.duration_s}: expected seconds")
    if len(hypothesis.times_s) != len(hypothesis.tokens):
        raise UserError(f"{source}: {len(hypothesis.times_s)} times for {len(hypothesis.tokens)} tokens")
    for word in hypothesis.words or []:
        build(WordEntry, word, f"{source}: words")
    return hypothesis
