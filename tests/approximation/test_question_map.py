"""The map from question to context: weights against transformers' own, tokens, and the choice of a head."""

import itertools
import json
from dataclasses import replace

import pytest
import torch
from tiny_transformers import save_model, write_squad

transformers = pytest.importorskip("transformers", minversion="5", reason="needs transformers ≥ 5")
from asr.approximation.options import Options  # noqa: E402
from asr.approximation.question_map import check_choice, question_map  # noqa: E402
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
    found = question_map(evaluation, replace(evaluation.options, layer=layer, head=head, question="0-0"))
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
    found = question_map(evaluation, replace(evaluation.options, question="1-0"))
    assert [found.tokens[row] for row in found.rows] == ["who", "bought", "a", "violin", "?"]
    assert [found.tokens[at] for at in found.answer] == ["boris"]


def test_the_head_that_looks_at_single_tokens_of_the_context_is_chosen(evaluation: TaskEvaluation) -> None:
    """The head of lowest entropy often looks at [SEP], or at the question itself."""
    peaks = {}
    for layer, head in itertools.product((1, 2), (1, 2)):
        found = question_map(evaluation, replace(evaluation.options, layer=layer, head=head))
        first, last = max(found.rows) + 2, len(found.tokens) - 1  # between the separators
        peaks[layer, head] = float(found.weights_QN["full"][:, first:last].amax(-1).mean())
    for layer in (0, 1, 2):
        chosen = question_map(evaluation, replace(evaluation.options, layer=layer))
        allowed = {place: peak for place, peak in peaks.items() if layer in (0, place[0])}
        assert (chosen.layer, chosen.head) == max(allowed, key=allowed.__getitem__)


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
    found = question_map(evaluation, replace(evaluation.options, question="0-0"))
    record = {"environment": {"command": ["asr"], "commit": None}, "options": {"data": "glue_data"}}
    made = question_chart.figure(found, record)
    assert [panel.title for panel in made.panels] == list(found.weights_QN)
    for panel, name in zip(made.panels, found.weights_QN, strict=True):
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
    question_map(evaluation, evaluation.options)
    assert transformers.AttentionInterface()["full"] is before
