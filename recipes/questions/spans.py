"""Windows over a question's context, and the best spans in their logits."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from asr_recipes.questions.squad import Question
from torch import Tensor

from asr.errors import UserError

LONGEST_QUESTION = 64  # tokens; longer questions are cut, as in BERT's script


@dataclass(frozen=True)
class Window:
    """An input of the model.

    Attributes:
        example: index of the example.
        inputs: lists of equal length by argument of the model, as the tokenizer returns them.
        offsets: first and last + 1 character in the context for tokens of the context, None for other
            tokens; empty for examples without a context.
    """

    example: int
    inputs: dict[str, list[int]]
    offsets: list[tuple[int, int] | None]

    @property
    def length(self) -> int:
        """Number of tokens."""
        return len(self.inputs["input_ids"])


def question_windows(
    tokenizer: Any, question: Question, example: int, max_length: int, stride: int
) -> list[Window]:
    """Return the windows of a question, each with the question and a part of its context.

    Consecutive windows start `stride` tokens apart, or closer if a window has less room for the context, so
    that every token of the context is in at least one.

    Args:
        tokenizer: a fast tokenizer of transformers.
        question: the question.
        example: index of the example.
        max_length: tokens of the longest window.
        stride: number of tokens between the starts of successive windows.

    Raises:
        UserError: the question leaves no room for a context.
    """
    text = _shortened(tokenizer, question.question)
    taken = len(tokenizer(text, add_special_tokens=False)["input_ids"])
    room = max_length - taken - tokenizer.num_special_tokens_to_add(pair=True)
    if room < 1:
        raise UserError(
            f"recipe.max_length={max_length}: question {question.id} of {taken} tokens leaves no room "
            "for its context"
        )
    encoded = tokenizer(
        text,
        question.context,
        truncation="only_second",
        max_length=max_length,
        stride=max(0, room - stride),  # transformers' stride is the overlap
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    names = [name for name in tokenizer.model_input_names if name in encoded]
    windows = []
    for row, offsets in enumerate(encoded["offset_mapping"]):
        sequences = encoded.sequence_ids(row)
        # Some tokenizers mark special tokens by empty offsets only.
        places = [
            tuple(place) if sequence == 1 and place[0] < place[1] else None
            for place, sequence in zip(offsets, sequences, strict=True)
        ]
        windows.append(Window(example, {name: encoded[name][row] for name in names}, places))
    return windows


def _shortened(tokenizer: Any, text: str) -> str:
    offsets = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    return text if len(offsets) <= LONGEST_QUESTION else text[: offsets[LONGEST_QUESTION - 1][1]]


Span = tuple[int, int, float]  # first and last + 1 character of the context, score


def best_spans(
    start_N: Tensor, end_N: Tensor, offsets: list[tuple[int, int] | None], max_answer: int, nbest: int
) -> list[Span]:
    """Return the `nbest` spans with the highest sum of start and end logit, best first.

    The search is exact over all spans within the context of at most `max_answer` tokens.

    Args:
        start_N, end_N: [N] logits of a window.
        offsets: see `Window`.
        max_answer: tokens of the longest span.
        nbest: number of spans.
    """
    inside = torch.tensor([offset is not None for offset in offsets], device=start_N.device)
    start_N = start_N.float().masked_fill(~inside, -torch.inf)
    end_N = end_N.float().masked_fill(~inside, -torch.inf)
    size = len(offsets)
    width = min(max_answer, size)
    # Row i contains the spans that start at i; they end at i … i + width − 1.
    padded = torch.cat([end_N, end_N.new_full((width - 1,), -torch.inf)])
    scores_NW = start_N[:, None] + padded.unfold(0, width, 1)
    values, places = scores_NW.flatten().topk(min(nbest, size * width))
    spans = []
    for score, place in zip(values.tolist(), places.tolist(), strict=True):
        if score == -torch.inf:  # outside the context
            break
        first, last = offsets[place // width], offsets[place // width + place % width]
        if first and last:
            spans.append((first[0], last[1], score))
    return spans


def merged_spans(windows: Iterable[list[Span]], nbest: int) -> list[Span]:
    """Return the best spans of several windows; a span in two of them gets the higher score."""
    scores: dict[tuple[int, int], float] = {}
    for spans in windows:
        for start, end, score in spans:
            scores[start, end] = max(score, scores.get((start, end), score))
    order = sorted(scores.items(), key=lambda item: (-item[1], item[0]))
    return [(start, end, score) for (start, end), score in order[:nbest]]
