"""The map from question to context: weights against transformers' own, tokens, and the choice of a head."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_transformers import save_model, write_squad

transformers = pytest.importorskip("transformers", minversion="5", reason="needs transformers ≥ 5")
from asr_recipes.questions.maps import QuestionMap, check_choice, question_maps  # noqa: E402
from asr_recipes.questions.options import WorkloadOptions  # noqa: E402
from asr_recipes.questions.workload import SquadTask  # noqa: E402

from asr.errors import UserError  # noqa: E402
from asr.experiment.options import CompareConfig  # noqa: E402

NAMES = ["full", "clustered-3", "i-clustered-3:topk=4"]


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> SquadTask:
    folder = tmp_path_factory.mktemp("map")
    options = CompareConfig(
        model=str(save_model(folder / "model", "BertForQuestionAnswering")),
        data=str(write_squad(folder).parent.parent),
        device="cpu",
    )
    return SquadTask("squad", options, WorkloadOptions(task=["squad"], max_length=60))


def maps(task: SquadTask, **chosen: Any) -> list[QuestionMap]:
    own = replace(task.own, **chosen)
    return question_maps(task.model, task.questions, task.items, NAMES, own, "auto")


@pytest.mark.parametrize(("layer", "head"), [(1, 1), (2, 2), (1, 2)])
def test_full_weights_are_those_of_transformers(task: SquadTask, layer: int, head: int) -> None:
    (found,) = maps(task, layer=layer, head=head, question="0-0")
    eager = transformers.BertForQuestionAnswering.from_pretrained(
        task.model.folder, attn_implementation="eager"
    ).eval()
    window = task.items[0]
    inputs = {name: torch.tensor([values]) for name, values in window.inputs.items()}
    with torch.inference_mode():
        attentions = eager(**inputs, output_attentions=True).attentions
    assert (found.layer, found.head) == (layer, head)
    expected = attentions[found.layer - 1][0, head - 1][found.rows]
    torch.testing.assert_close(found.weights_QN["full"], expected, rtol=0, atol=1e-5)
    for weights in found.weights_QN.values():
        torch.testing.assert_close(weights.sum(-1), torch.ones(len(found.rows)))
    assert list(found.weights_QN) == NAMES


def test_rows_are_the_question_and_the_answer_is_marked(task: SquadTask) -> None:
    found = maps(task, question="1-0")[0]
    assert [found.tokens[row] for row in found.rows] == ["who", "bought", "a", "violin", "?"]
    assert [found.tokens[at] for at in found.answer] == ["boris"]


def test_the_heads_that_differ_most_are_chosen(task: SquadTask) -> None:
    """The head that looks most at single tokens was drawn; there, clustered-25 looks perfect."""
    differences = {}
    for layer, head in itertools.product((1, 2), (1, 2)):
        (found,) = maps(task, layer=layer, head=head)
        pairs = list(itertools.combinations(found.weights_QN.values(), 2))
        assert len(pairs) == 3
        differences[layer, head] = sum(float((a - b).abs().sum(-1).mean()) for a, b in pairs) / 3
    for layer, head in itertools.product((0, 1, 2), (0, 2)):
        chosen = maps(task, layer=layer, head=head)
        allowed = [x for x in differences if layer in (0, x[0]) and head in (0, x[1])]
        expected = sorted(allowed, key=lambda place: -differences[place])[:2]
        assert [(one.layer, one.head) for one in chosen] == expected
        assert [one.difference for one in chosen] == pytest.approx([differences[x] for x in expected])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layer": 3}, "layer=3: expected 1 to 2"),
        ({"head": 3}, "head=3: expected 1 to 2"),
        ({"question": "9"}, "question=9: no question"),
    ],
)
def test_what_the_model_lacks_is_refused(change: dict[str, Any], message: str, task: SquadTask) -> None:
    with pytest.raises(UserError, match=message):
        check_choice(replace(task.own, **change), task.model.model.config, task.questions, task.path)


def test_recording_leaves_the_mechanism_in_place(task: SquadTask) -> None:
    """The attention function that records queries and keys must not stay registered."""
    before = transformers.AttentionInterface()["full"]
    maps(task)
    assert transformers.AttentionInterface()["full"] is before
