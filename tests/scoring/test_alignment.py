import random

import pytest

from asr.scoring.alignment import Edit, align_all, align_sclite, render
from asr.scoring.error_rates import ErrorCounts


def naive_cost(reference: list[str], hypothesis: list[str], substitution: int, indel: int) -> int:
    """Return the cost of the best alignment, from the full table."""
    table = [[indel * (i + j) for j in range(len(hypothesis) + 1)] for i in range(len(reference) + 1)]
    for i, r in enumerate(reference, 1):
        for j, h in enumerate(hypothesis, 1):
            pair = table[i - 1][j - 1] + substitution * (r != h)
            table[i][j] = min(table[i - 1][j] + indel, table[i][j - 1] + indel, pair)
    return table[-1][-1]


@pytest.mark.parametrize(("costs", "substitution", "indel"), [("unit", 1, 1), ("sclite", 4, 3)])
def test_alignment_has_the_lowest_cost_and_is_an_alignment(costs, substitution, indel):
    rng = random.Random(0)
    corpora = [[rng.choices("abcd", k=rng.randrange(13)) for _ in range(500)] for _ in range(2)]
    for reference, hypothesis, edits in zip(*corpora, align_all(*corpora, costs), strict=True):
        counts = ErrorCounts.of(edits)
        cost = substitution * counts.substitutions + indel * (counts.deletions + counts.insertions)
        assert cost == naive_cost(reference, hypothesis, substitution, indel)
        assert counts.length == len(reference)
        assert [edit.reference for edit in edits if edit.reference is not None] == reference
        assert [edit.hypothesis for edit in edits if edit.hypothesis is not None] == hypothesis
        for edit in edits:
            match edit.operation:
                case "=":
                    assert edit.reference == edit.hypothesis
                case "S":
                    assert None not in (edit.reference, edit.hypothesis)
                    assert edit.reference != edit.hypothesis
                case "D":
                    assert edit.hypothesis is None
                case "I":
                    assert edit.reference is None


@pytest.mark.parametrize("costs", ["unit", "sclite"])
def test_tokens_may_contain_spaces(costs):
    """The character error rate counts spaces."""
    references = [["a", " ", "b"], [" "], ["new york"]]
    letters, space, city = align_all(references, [["a", "b"], [" "], ["new", "york"]], costs)
    assert letters == [Edit("=", "a", "a"), Edit("D", " ", None), Edit("=", "b", "b")]
    assert space == [Edit("=", " ", " ")]
    assert sorted(edit.operation for edit in city) == ["I", "S"]


@pytest.mark.parametrize("costs", ["unit", "sclite"])
def test_empty_sides(costs):
    aligned = align_all([[], [], ["a"]], [[], ["a", "b"], []], costs)
    assert ["".join(edit.operation for edit in edits) for edits in aligned] == ["", "II", "D"]
    assert align_all([], [], costs) == []


def test_rendering_lines_up_columns():
    text = render(align_sclite(["the", "cat", "sat"], ["a", "cat", "sat", "down"]))
    assert text.plain.splitlines() == ["REF: the cat sat ****", "HYP: a   cat sat down", "     S           I"]
    assert {span.style for span in text.spans if span.style} == {"bold yellow", "bold magenta"}


def test_rendering_wraps_at_the_terminal_width():
    edits = align_sclite(["one", "two", "three", "four", "five"], ["one", "too", "three", "five"])
    lines = render(edits, width=14).plain.splitlines()
    assert max(map(len, lines)) <= 14
    assert len(lines) % 3 == 0
    joined = [word for line in lines[::3] for word in line.split()[1:]]
    assert joined == ["one", "two", "three", "four", "five"]
