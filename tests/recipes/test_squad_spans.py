"""Windows cover a context; the span search finds what a loop over all spans finds."""

import itertools

import pytest
import torch

pytest.importorskip("transformers", minversion="5", reason="needs transformers ≥ 5")
from asr_recipes.questions.spans import best_spans, merged_spans, question_windows
from asr_recipes.questions.squad import Question
from tiny_transformers import tokenizer

from asr.errors import UserError

CONTEXT = "Anna bought a boat in Paris. " * 12


def ask(context: str = CONTEXT, question: str = "who bought a boat?") -> Question:
    return Question("q", question, context, ("Anna",), 0, 0)


@pytest.mark.parametrize(
    ("max_length", "stride"), [(384, 128), (40, 16), (40, 1), (40, 1000), (23, 7), (10, 1)]
)
def test_every_token_of_the_context_is_in_a_window(max_length: int, stride: int) -> None:
    words = tokenizer()
    windows = question_windows(words, ask(), 3, max_length, stride)
    places = {place for window in windows for place in window.offsets if place}
    whole = words(CONTEXT, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    assert places == set(whole)
    assert {window.example for window in windows} == {3}
    assert all(window.length <= max_length for window in windows)
    starts = [next(place for place in window.offsets if place) for window in windows]
    steps = [whole.index(after) - whole.index(before) for before, after in itertools.pairwise(starts)]
    room = max_length - 5 - 3  # question; [CLS] and two [SEP]
    assert set(steps) <= {min(stride, room)}


def test_windows_hold_question_types_and_offsets() -> None:
    words = tokenizer()
    (window,) = question_windows(words, ask("Boris bought a violin."), 0, 40, 16)
    assert words.convert_ids_to_tokens(window.inputs["input_ids"]) == (
        ["[CLS]", "who", "bought", "a", "boat", "?", "[SEP]", "boris", "bought", "a", "violin", ".", "[SEP]"]
    )
    assert window.inputs["token_type_ids"] == [0] * 7 + [1] * 6
    assert window.offsets == [None] * 7 + [(0, 5), (6, 12), (13, 14), (15, 21), (21, 22), None]


def test_long_questions_are_cut_and_short_windows_refused() -> None:
    (window,) = question_windows(tokenizer(), ask("Anna.", "a " * 100), 0, 384, 128)
    assert window.length == 64 + 2 + 3
    with pytest.raises(UserError, match="max_length=8: question q of 5 tokens leaves no room"):
        question_windows(tokenizer(), ask(), 0, 8, 4)


@pytest.mark.parametrize("longest", [1, 3, 50])
def test_the_search_is_exact(longest: int) -> None:
    generator = torch.Generator().manual_seed(longest)
    start, end = torch.randn(2, 12, generator=generator)
    offsets = [None if i in (0, 1, 11) else (10 * i, 10 * i + 7) for i in range(12)]
    expected = sorted(
        (
            (10 * i, 10 * j + 7, float(start[i] + end[j]))
            for i in range(2, 11)
            for j in range(i, min(11, i + longest))
        ),
        key=lambda span: -span[2],
    )
    for nbest in (1, 5, 1000):
        found = best_spans(start, end, offsets, longest, nbest)
        assert [span[:2] for span in found] == [span[:2] for span in expected[:nbest]]
        assert [span[2] for span in found] == pytest.approx([span[2] for span in expected[:nbest]])


def test_tokens_outside_the_context_are_never_answers() -> None:
    """A window without context has no answer, whatever its logits."""
    assert best_spans(torch.full((3,), 1e9), torch.full((3,), 1e9), [None] * 3, 30, 20) == []


def test_an_answer_cut_by_one_window_is_taken_from_the_next() -> None:
    first = [(0, 4, 1.0), (5, 9, 0.5)]
    second = [(0, 9, 3.0), (5, 9, 0.75)]
    assert merged_spans([first, second], 3) == [(0, 9, 3.0), (0, 4, 1.0), (5, 9, 0.75)]
    assert merged_spans([first, second], 1) == [(0, 9, 3.0)]
    assert merged_spans([[], []], 5) == []
