"""The map from question to context: weights against transformers' own, tokens, and the choice of a head."""

import itertools
import json
from dataclasses import replace

import pytest
import torch
from tiny_transformers import save_model, write_squad

transformers = pytest.importorskip("transformers", minversion="5", reason="needs transformers ≥ 5")
from asr.approximation.options import Options  # noqa: E402
from asr.approximation.question_map import check_choice, question_maps  # noqa: E402
from asr.approximation.run import TaskEvaluation  # noqa: E402
from asr.errors import UserError  # noqa: E402
from asr.report import question_chart  # noqa: E402


@pytest.fixture(scope="module")
def evaluation(tmp_path_factory: pytest.TempPathFactory) -> TaskEvaluation:
    folder = tmp_path_factory.mktemp("map")
    options = Options(
        model=str(save_model(folder / "model", "BertForQuestionAnswering")),
        task=["squad"],
        data=str(write_squad(folder).parent.parent),
        attentions=["clustered-3", "i-clustered-3:topk=4"],
        max_length=60,
        device="cpu",
    )
    return TaskEvaluation("squad", options, folder / "out")


@pytest.mark.parametrize(("layer", "head"), [(1, 1), (2, 2), (1, 2)])
def test_full_weights_are_those_of_transformers(evaluation: TaskEvaluation, layer: int, head: int) -> None:
    chosen = replace(evaluation.options, layer=layer, head=head, question="0-0")
    (found,) = question_maps(evaluation, chosen)
    eager = transformers.BertForQuestionAnswering.from_pretrained(
        evaluation.model.folder, attn_implementation="eager"
    ).eval()
    window = evaluation.windows[0]
    inputs = {name: torch.tensor([values]) for name, values in window.inputs.items()}
    with torch.inference_mode():
        attentions = eager(**inputs, output_attentions=True).attentions
    assert (found.layer, found.head) == (layer, head)
    expected = attentions[found.layer - 1][0, head - 1][found.rows]
    torch.testing.assert_close(found.weights_QN["full"], expected, rtol=0, atol=1e-5)
    for weights in found.weights_QN.values():
        torch.testing.assert_close(weights.sum(-1), torch.ones(len(found.rows)))
    assert list(found.weights_QN) == ["full", "clustered-3", "i-clustered-3:topk=4"]


def test_rows_are_the_question_and_the_answer_is_marked(evaluation: TaskEvaluation) -> None:
    found = question_maps(evaluation, replace(evaluation.options, question="1-0"))[0]
    assert [found.tokens[row] for row in found.rows] == ["who", "bought", "a", "violin", "?"]
    assert [found.tokens[at] for at in found.answer] == ["boris"]


def test_the_heads_that_differ_most_are_chosen(evaluation: TaskEvaluation) -> None:
    """The head that looks most at single tokens was drawn; there, clustered-25 looks perfect."""
    differences = {}
    for layer, head in itertools.product((1, 2), (1, 2)):
        (found,) = question_maps(evaluation, replace(evaluation.options, layer=layer, head=head))
        pairs = list(itertools.combinations(found.weights_QN.values(), 2))
        assert len(pairs) == 3
        differences[layer, head] = sum(float((a - b).abs().sum(-1).mean()) for a, b in pairs) / 3
    for layer, head in itertools.product((0, 1, 2), (0, 2)):
        chosen = question_maps(evaluation, replace(evaluation.options, layer=layer, head=head))
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
def test_what_the_model_lacks_is_refused(
    change: dict[str, object], message: str, evaluation: TaskEvaluation
) -> None:
    with pytest.raises(UserError, match=message):
        check_choice(evaluation, replace(evaluation.options, **change))


def test_the_chart_names_top_tokens(evaluation: TaskEvaluation) -> None:
    """Names of tokens above the map, the dots of all rows, and the answer; full attention's in bold."""
    maps = question_maps(evaluation, replace(evaluation.options, question="0-0"))
    options = {"data": "glue_data", "layer": 0, "head": 0}
    made = question_chart.figure(
        maps, {"environment": {"command": ["asr"], "commit": None}, "options": options}
    )
    shown = [(one, name) for one in maps for name in one.weights_QN]
    titles = [f"{name}, layer {one.layer}, head {one.head}" for one, name in shown]
    assert [panel.title for panel in made.panels] == titles
    assert len(titles) == 6
    assert "Of all heads, these differ most between the mechanisms" in made.caption
    for panel, (found, name) in zip(made.panels, shown, strict=True):
        text = json.dumps(panel.spec)
        layers = [layer["data"]["values"] for layer in panel.spec["layer"]]
        dots = next(rows for rows in layers if rows and "weight" in rows[0])
        assert [dot["to"] for dot in dots] == [found.tokens[places[0]] for places in found.top(name)]
        named = {row["token"] for rows in layers[4:] for row in rows}
        assert named
        assert named <= {dot["to"] for dot in dots}
        assert text.count('"x2"') >= 2
    assert "i-clustered-3:topk=4" in made.caption


def test_recording_leaves_the_mechanism_in_place(evaluation: TaskEvaluation) -> None:
    """The attention function that records queries and keys must not stay registered."""
    before = transformers.AttentionInterface()["full"]
    question_maps(evaluation, evaluation.options)
    assert transformers.AttentionInterface()["full"] is before
