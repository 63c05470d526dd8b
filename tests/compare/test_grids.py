"""The papers' grids: what the files in conf/plan/ train, and the figures of the papers beside it."""

import json
from pathlib import Path

import pytest

from asr.compare.candidates import evaluated_with, plan_candidates
from asr.compare.options import Request, parse
from asr.config import configurations
from asr.errors import UserError


def request(name: str, *words: str) -> Request:
    return parse([f"plan={name}", "decoder=greedy", "beam.lm=", "tune=", *words])


@pytest.mark.parametrize("name", configurations("plan"))
def test_every_grid_is_a_valid_comparison(name: str) -> None:
    asked = request(name)
    candidates, trainings = plan_candidates(asked)
    labels = [candidate.label for candidate in candidates]
    assert asked.command[0] == f"plan={name}"
    if asked.paper:
        assert list(asked.paper.rows) == labels
        assert all(len(row) == len(asked.paper.columns) for row in asked.paper.rows.values())
    if not name.startswith(("copy", "language")):
        batches = {"full": 2, "shared-full": 2, "lsh-1": 8, "lsh-4": 6}
        batches |= (
            {"clustered": 14, "i-clustered": 10}
            if name.startswith("wsj")
            else {"clustered": 6, "i-clustered": 6}
        )
        for candidate in candidates:
            options = trainings[candidate.label]
            expected = batches.get(candidate.attention) or batches[candidate.mechanism]
            assert options.data.utterances_per_batch == expected
            assert (options.optimizer.name, options.optimizer.schedule, options.trainer.clip) == (
                "radam",
                "plateau",
                10,
            )
            assert options.optimizer.weight_decay == 0.01
            if not candidate.finetuned_from:
                rate = {"wsj": 1e-4, "switchboard": 2e-4}[options.recipe.name]
                assert (options.optimizer.learning_rate, options.trainer.max_epochs) == (rate, 10_000)


def test_table_1_evaluates_each_model_as_the_paper_does() -> None:
    """Models with tied keys are also evaluated with full attention, which is their own shared-full."""
    asked = request("wsj_table1")
    candidates, _ = plan_candidates(asked)
    assert asked.paper is not None
    for candidate in candidates:
        figures = zip(asked.paper.columns, asked.paper.rows[candidate.label], strict=True)
        printed = {column for column, figure in figures if figure is not None}
        ours = set(evaluated_with(candidate, asked.options.evaluate))
        tied = candidate.attention in ("shared-full", "lsh-1", "lsh-4")
        assert ours - printed == ({"full"} if tied else set())
        assert printed <= ours


@pytest.mark.parametrize(
    ("name", "epochs", "layers", "clusters"),
    [
        ("wsj_figure1", 15, {4, 6, 9}, {100, 200, 300}),
        ("switchboard_figure1", 5, {6, 8, 12}, {100, 200, 300}),
    ],
)
def test_figure_1_finetunes_from_100_clusters(
    name: str, epochs: int, layers: set[int], clusters: set[int]
) -> None:
    candidates, trainings = plan_candidates(request(name))
    assert {x.layers for x in candidates if x.attention == "full"} == layers
    assert {x.size for x in candidates if x.mechanism == "clustered"} == clusters
    by_label = {candidate.label: candidate for candidate in candidates}
    for candidate in candidates:
        assert (candidate.size in (200, 300)) == (candidate.finetuned_from is not None)
        if candidate.finetuned_from:
            parent = by_label[candidate.finetuned_from]
            assert (parent.mechanism, parent.size, parent.layers) == (
                candidate.mechanism,
                100,
                candidate.layers,
            )
            options = trainings[candidate.label]
            assert (options.trainer.max_epochs, options.optimizer.learning_rate) == (epochs, 1e-5)


def test_figure_5_has_the_papers_lengths_clusters_and_rounds() -> None:
    candidates, trainings = plan_candidates(request("copy_figure5"))
    lengths = [trainings[candidate.label].recipe.length for candidate in candidates]  # type: ignore[attr-defined]
    assert lengths == sorted(lengths)
    assert set(lengths) == {31, 63, 127, 255}
    names = [candidate.attention for candidate in candidates]
    assert len(names) == len(set(zip(lengths, names, strict=True))) == 4 * 13
    sizes = {(x.mechanism, x.size) for x in candidates}
    for mechanism in ("clustered", "i-clustered"):
        assert {size for name, size in sizes if name == mechanism} == {15, 30, 60, 100}
    assert {size for name, size in sizes if name == "lsh"} == {1, 4, 8, 16}


def test_options_beside_a_plan_override_it() -> None:
    asked = request("wsj_table1", "epochs=2", "model.layers=3", "splits=[eval92]")
    assert asked.options.splits == ["eval92"]
    candidates, trainings = plan_candidates(asked)
    assert {candidate.layers for candidate in candidates} == {3}
    assert {training.trainer.max_epochs for training in trainings.values()} == {2}


def test_a_file_of_ones_own_is_a_plan(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("recipe: demo\nattentions: [full, 'lsh-4:chunk=16,buckets=8']\nseeds: [3, 4]\n")
    options = parse([f"plan={path}"]).options
    assert options.attentions == ["full", "lsh-4:chunk=16,buckets=8"]
    assert options.seeds == [3, 4]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("recipe: demo\nattentions: [full]\nseed: 3\n", "asr compare sets this itself"),
        ("recipe: demo\nattentionz: [full]\n", "unknown option 'attentionz'"),
        ("[1]", "expected options"),
        (json.dumps({"recipe": "demo", "attentions": ["full"], "paper": {"title": 3}}), "paper: expected"),
    ],
)
def test_a_bad_plan_is_one_line(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(content)
    with pytest.raises(UserError, match=message):
        parse([f"plan={path}"])


def test_an_unknown_plan_is_named() -> None:
    with pytest.raises(UserError, match=r"plan=wsj_table9: no such plan or file \(did you mean 'wsj_table"):
        parse(["plan=wsj_table9"])
