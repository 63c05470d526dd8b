"""Attention from the tokens of a question to its input, under several mechanisms (Figure 8 of the paper)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from asr_recipes.questions.model import TextModel
from asr_recipes.questions.options import WorkloadOptions
from asr_recipes.questions.spans import Window
from asr_recipes.questions.squad import Question
from torch import Tensor

from asr.attention import build_mechanism
from asr.attention.maps import differing_heads
from asr.attention.softmax import SoftmaxMechanism
from asr.errors import UserError
from asr.experiment.options import FULL
from asr.files import checked_entries

TOP = 3  # tokens named per token of the question


@dataclass(frozen=True)
class StoredMap:
    """A map in `results.json`: see `QuestionMap`, whose tokens are `input`."""

    question: str
    layer: int
    head: int
    difference: float
    input: list[str]
    rows: list[int]
    answer: list[int]
    weights: dict[str, list[list[float]]]


@dataclass(frozen=True)
class QuestionMap:
    """A head in Figure 8.

    Attributes:
        question: id of the question.
        tokens: tokens of the input.
        rows: positions of the question's tokens.
        answer: positions of an accepted answer's tokens; empty if the window doesn't contain it.
        weights_QN: [Q, N] by mechanism: rows are tokens of the question, columns tokens of the input.
        layer, head: numbers, starting from 1.
        difference: see `differing_heads`.
    """

    question: str
    tokens: list[str]
    rows: list[int]
    answer: list[int]
    weights_QN: dict[str, Tensor]
    layer: int
    head: int
    difference: float

    def top(self, name: str) -> list[list[int]]:
        """Return the positions with the largest weights, in descending order, for each row."""
        tokens: list[list[int]] = self.weights_QN[name].topk(min(TOP, len(self.tokens))).indices.tolist()
        return tokens

    def same_top(self, name: str) -> float:
        """Return the share of rows whose largest weight is at the same position as with full attention."""
        pairs = zip(self.top(name), self.top(FULL), strict=True)
        return sum(one[0] == other[0] for one, other in pairs) / len(self.rows)

    def as_json(self) -> dict[str, Any]:
        """Return the entry of `results.json`: all weights, and the top tokens for each of the question."""
        top = {
            name: [
                [f"{self.tokens[at]} ({float(row[at]):.3f})" for at in places]
                for row, places in zip(weights, self.top(name), strict=True)
            ]
            for name, weights in self.weights_QN.items()
        }
        return {
            "question": self.question,
            "layer": self.layer,
            "head": self.head,
            "difference": self.difference,
            "tokens": [self.tokens[row] for row in self.rows],
            "top": top,
            "same_top": {name: self.same_top(name) for name in self.weights_QN},
            "input": self.tokens,
            "rows": self.rows,
            "answer": self.answer,
            "weights": {
                name: [[float(f"{x:.6g}") for x in row] for row in weights_QN.tolist()]
                for name, weights_QN in self.weights_QN.items()
            },
        }

    @classmethod
    def from_json(cls, values: dict[str, Any], source: str) -> "QuestionMap":
        """Return the map that `as_json` wrote; raise UserError, which names `source`, for other data."""
        stored = StoredMap(**checked_entries(StoredMap, values, source))
        weights_QN = {name: torch.tensor(rows) for name, rows in stored.weights.items()}
        shape = (len(stored.rows), len(stored.input))
        for name, weights in weights_QN.items():
            if weights.shape != shape:
                raise UserError(f"{source}: {name}: expected {shape} weights, found {tuple(weights.shape)}")
        places = (stored.question, stored.input, stored.rows, stored.answer)
        return cls(*places, weights_QN, stored.layer, stored.head, stored.difference)


def check_choice(choice: WorkloadOptions, config: Any, questions: Sequence[Question], path: Path) -> None:
    """Raise UserError if SQuAD or the model lack the question, layer or head of the map.

    Args:
        choice: options of the recipe: `question`, `layer`, `head`.
        config: configuration of the model.
        questions, path: questions, and their file.
    """
    limits = {"layer": config.num_hidden_layers, "head": config.num_attention_heads}
    for name, most in limits.items():
        if (value := getattr(choice, name)) > most:
            raise UserError(f"recipe.{name}={value}: expected 1 to {most}, or 0 to choose one")
    if choice.question and all(question.id != choice.question for question in questions):
        raise UserError(f"recipe.question={choice.question}: no question of {path} has this id")


def question_maps(
    model: TextModel,
    questions: Sequence[Question],
    windows: Sequence[Window],
    names: list[str],
    choice: WorkloadOptions,
    backend: str,
) -> list[QuestionMap]:
    """Return the weights of heads for one question, on the queries and keys under full attention.

    Args:
        model: fine-tuned model.
        questions, windows: questions, and the inputs of all.
        names: mechanisms, full attention first.
        choice: `question`, `layer` and `head`; see `check_choice` and `differing_heads`.
        backend: `auto`, `reference` or `native`.
    """
    window = _choose(questions, windows, choice.question)
    # All mechanisms get the queries and keys of full attention, so that maps show the effect of a mechanism,
    # not how errors of earlier layers change its input.
    projections = model.projections(model.batch([window]), backend)
    layers = [
        partial(_weights, backend=backend, q_1HND=q_1HND, k_1HND=k_1HND) for q_1HND, k_1HND, _ in projections
    ]
    special = set(model.tokenizer.all_special_ids)
    ids = window.inputs["input_ids"]
    rows = [at for at, place in enumerate(window.offsets) if place is None and ids[at] not in special]
    question = questions[window.example]
    start, end = question.start, question.start + len(question.answers[0])
    places = list(enumerate(window.offsets)) if start >= 0 else []
    answer = [at for at, place in places if place and place[0] < end and place[1] > start]
    return [
        QuestionMap(
            question.id,
            list(model.tokenizer.convert_ids_to_tokens(ids)),
            rows,
            answer,
            {name: layers[layer - 1](name)[head - 1][rows].cpu() for name in names},
            layer,
            head,
            difference,
        )
        for layer, head, difference in differing_heads(layers, names, choice.layer, choice.head, rows)
    ]


def _choose(questions: Sequence[Question], windows: Sequence[Window], ident: str) -> Window:
    """Return the first window of a question; without an id, the window of median length."""
    if not ident:
        return sorted(windows, key=lambda window: window.length)[len(windows) // 2]
    names = [question.id for question in questions]
    return next(window for window in windows if window.example == names.index(ident))


def _weights(name: str, backend: str, q_1HND: Tensor, k_1HND: Tensor) -> Tensor:
    """Return the dense weights [H, N, N] of a mechanism."""
    mechanism = build_mechanism(name, backend=backend).eval().to(q_1HND.device)
    assert isinstance(mechanism, SoftmaxMechanism)
    with torch.inference_mode():
        return mechanism.weights(q_1HND, k_1HND)[0]
