"""SQuAD 1.1: questions and the official scores (Rajpurkar et al. 2016)."""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asr_recipes.questions.files import RawExample, find_data, read_records

from asr.errors import UserError

SPLITS = ("validation", "dev")
NAMES = ("dev-v1.1", "dev", "validation")
PUNCTUATION = frozenset(string.punctuation)


@dataclass(frozen=True)
class Question:
    """A question on a context.

    Attributes:
        id: the public id.
        question, context: texts.
        answers: accepted answers.
        paragraph: number of the context; questions of one paragraph share it.
        start: first character of the first answer in the context; -1 if it isn't there.
    """

    id: str
    question: str
    context: str
    answers: tuple[str, ...]
    paragraph: int
    start: int


def find_squad(data: Path) -> Path:
    """Return SQuAD's evaluation set; see `find_data`."""
    return find_data(data, ("squad", "SQuAD"), NAMES, f"squad/{NAMES[0]}.json")


def read_squad(path: Path) -> list[Question]:
    """Return the questions in SQuAD's JSON, or in records with id, question, context and answers.

    Raises:
        UserError: there are no questions, one has no answer (as in SQuAD 2.0), a field is missing, or an id
            occurs twice.
    """
    by_id: dict[str, Question] = {}
    contexts: dict[str, int] = {}
    for record in read_records(path, (), SPLITS):
        for question, context, where in _questions(record):
            ident, text = _text(question, "id", where), _text(question, "question", where)
            if ident in by_id:
                raise UserError(f"{where}: expected ids to be distinct, found {ident} again")
            answers, start = _answers(question.get("answers"), context, f"{where}: question {ident}")
            paragraph = contexts.setdefault(context, len(contexts))
            by_id[ident] = Question(ident, text.strip(), context, answers, paragraph, start)
    if not by_id:
        raise UserError(f"{path}: expected questions, found none")
    return list(by_id.values())


def _questions(record: RawExample) -> list[tuple[dict[str, Any], str, str]]:
    """Return the questions of a record with context and place: an article, or a single question."""
    if "paragraphs" not in record.fields:
        return [(record.fields, _text(record.fields, "context", record.where), record.where)]
    entries = []
    for number, paragraph in enumerate(_list(record.fields, "paragraphs", record.where)):
        where = f"{record.where}, paragraph {number}"
        context = _text(paragraph, "context", where)
        entries += [(question, context, where) for question in _list(paragraph, "qas", where)]
    return entries


def _list(fields: dict[str, Any], name: str, where: str) -> list[dict[str, Any]]:
    values = fields.get(name)
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise UserError(f"{where}: expected a list of objects as {name}, found {str(values)[:60]!r}")
    return values


def _text(fields: dict[str, Any], name: str, where: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not value.strip():
        raise UserError(f"{where}: expected text as {name}, found {str(value)[:60]!r}")
    return value


def _answers(value: Any, context: str, where: str) -> tuple[tuple[str, ...], int]:
    """Return answers, and where the first one starts, from SQuAD's objects or the lists of `datasets`."""
    if isinstance(value, dict):
        texts, starts = value.get("text"), value.get("answer_start")
    else:
        rows = value if isinstance(value, list) else []
        texts, starts = (
            [row.get(name) if isinstance(row, dict) else None for row in rows]
            for name in ("text", "answer_start")
        )
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise UserError(f"{where}: expected at least one answer, as in SQuAD 1.1, found {str(value)[:60]!r}")
    start = starts[0] if isinstance(starts, list) and starts else None
    if not isinstance(start, int) or not context.startswith(texts[0], start):
        start = context.find(texts[0])  # no score depends on it
    return tuple(texts), start


def normalise_answer(text: str) -> str:
    """Return an answer as the official script compares it.

    It is in lower case, without punctuation, articles and extra space.

    Example:
        >>> normalise_answer(" The  U.S. Army's a-team"), normalise_answer("an A.")
        ('us armys ateam', '')
    """
    plain = "".join(letter for letter in text.lower() if letter not in PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", plain).split())


def exact_match(prediction: str, answer: str) -> float:
    """Return 1 if the normalised texts are equal, else 0."""
    return float(normalise_answer(prediction) == normalise_answer(answer))


def token_f1(prediction: str, answer: str) -> float:
    """Return the F1 score of the normalised words, counted with their multiplicity; 0 without a common word.

    Example:
        >>> token_f1("the tall Eiffel Tower", "Eiffel Tower")
        0.8
    """
    predicted, true = normalise_answer(prediction).split(), normalise_answer(answer).split()
    same = sum((Counter(predicted) & Counter(true)).values())
    if same == 0:
        return 0.0
    precision, recall = same / len(predicted), same / len(true)
    return 2 * precision * recall / (precision + recall)


def best(score: Callable[[str, str], float], prediction: str, answers: Sequence[str]) -> float:
    """Return the highest score over the accepted answers."""
    return max(score(prediction, answer) for answer in answers)
