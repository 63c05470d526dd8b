"""The papers' grids: what the files in conf/plan/ train, and the figures of the papers beside it."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from quick import quick

from asr.config import configurations, flat, to_dict
from asr.console import open_console
from asr.errors import UserError
from asr.experiment.candidates import evaluated_with, plan_candidates
from asr.experiment.cell import Cell
from asr.experiment.progress import TrainingTime, _expected, print_grid
from asr.experiment.request import Request, parse

# The tables as the papers print them. In table 1 of the first, a column is a trained model.
WSJ_TABLE_1 = """
                   full  shared-full  lsh-1  lsh-4  clustered-100  i-clustered-100
full               5.14  -            -      -      7.10           5.56
shared-full        -     6.57         25.16  41.61  -              -
lsh-1              -     71.40        10.43  13.76  -              -
lsh-4              -     64.29        9.35   9.33   -              -
clustered-100      44.88 40.86        68.06  66.43  7.06           18.83
clustered-200      21.76 25.86        57.75  57.24  6.34           8.95
i-clustered-100    9.29  13.22        41.65  48.20  8.80           5.95
i-clustered-200    6.38  8.43         30.09  42.43  7.71           5.60
oracle-top-32      17.16 77.18        43.35  59.38  24.32          6.96
"""
WSJ_TABLE_2 = """
                   full   lsh-1   lsh-4   clustered-100  i-clustered-100
PER                5.03   9.43    8.59    7.50           5.61
seconds            2514   1004    2320    803            1325
hours              87.99  189.64  210.09  102.15         72.14
"""
SWITCHBOARD_TABLE_3 = """
                   full   clustered-100  i-clustered-100
WER                15.0   18.5           15.5
hours-per-epoch    3.84   1.91           2.57
hours              228.05 132.13         127.44
"""
LANGUAGE_TABLE_1 = """
                   full,embedding  full,convolution  agglomerative,embedding  agglomerative,convolution
thousands          64.2            88.5              57.0                     81.4
bits               2.271           2.177             2.52                     2.183
seconds            75              81                54                       57
"""
LONGRANGE_PATHFINDER = """
                   full   linear  cast-8,Top-K  cast-8,SA-Top-K
accuracy           71.40  75.30   -             -
"""
LANGUAGE_TABLE_2 = """
                   full,embedding  full,convolution  agglomerative,embedding  agglomerative,convolution
millions           1.50            1.61              1.47                     1.58
perplexity         122.0           134.5             134                      132.6
seconds            41              44                31                       34
"""


def request(name: str, *overrides: str) -> Request:
    return parse([f"plan={name}", "decoder=greedy", "beam.lm=", "tune=", *overrides])


@pytest.mark.parametrize("name", quick(configurations("plan"), "wsj_table1".__eq__))
def test_every_grid_is_a_valid_comparison(name: str) -> None:
    asked = request(name)
    candidates, trainings = plan_candidates(asked)
    labels = [candidate.label for candidate in candidates]
    assert asked.command[0] == f"plan={name}"
    if asked.paper and asked.paper.rows:
        assert list(asked.paper.rows) == labels
        assert all(len(row) == len(asked.paper.columns) for row in asked.paper.rows.values())
    if name.startswith(("wsj", "switchboard")):
        assert asked.options.metric == ("wer" if name.startswith("switchboard") else "per")  # the papers'
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
            model = options.model  # as in the authors' library
            assert (model.norm, model.activation, model.attention_dropout) == ("post", "relu", 0.1)
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
        printed = {column for column, figure in figures if figure != "null"}
        ours = set(evaluated_with(candidate, asked.options.evaluate))
        tied = candidate.attention in ("shared-full", "lsh-1", "lsh-4")
        assert ours - printed == ({"full"} if tied else set())
        assert printed <= ours


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("wsj_table1", WSJ_TABLE_1),
        ("wsj_table2", WSJ_TABLE_2),
        ("switchboard_table3", SWITCHBOARD_TABLE_3),
        ("language_table1", LANGUAGE_TABLE_1),
        ("language_table2", LANGUAGE_TABLE_2),
        ("longrange_pathfinder", LONGRANGE_PATHFINDER),
    ],
)
def test_the_dry_run_shows_the_papers_figures(
    name: str, printed: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The corpus is not needed: what is missing is said after the table. 5.60 was shown as 5.6."""
    monkeypatch.setenv("COLUMNS", "250")
    print_grid(request(name), open_console())
    tables = capsys.readouterr().out.split("table")
    found = {}
    for line in tables[-1].splitlines():
        if "│" in line:
            label, *cells = (cell.strip() for cell in line.strip("│").split("│"))
            found[label.replace(", ", ",").replace("SA ", "SA-")] = [
                "-" if cell == "–" else cell for cell in cells
            ]
    labels, *lines = (line.split() for line in printed.strip().splitlines())
    expected = map(list, zip(*(line[1:] for line in lines), strict=True))
    assert found == dict(zip(labels, expected, strict=True))


def test_trainings_until_convergence_take_as_many_epochs_as_in_the_paper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dry run multiplied an epoch by the plan's limit of 10,000: 291 days for the paper's 88 hours."""
    endless = TrainingTime(100, 2514.0, 2514e4, "timed steps", at_most=True)
    monkeypatch.setattr("asr.experiment.progress._timed", lambda options: (None, endless))
    asked = request("wsj_table1")
    candidates, trainings = plan_candidates(asked)
    plan = SimpleNamespace(folder=tmp_path, request=asked)
    for candidate, hours in zip(candidates[:2], (87.99, 87.99), strict=True):
        options = flat(to_dict(trainings[candidate.label]))
        cell = Cell("cell", "training", {"options": options})
        found = _expected(plan, candidate, [cell])  # type: ignore[arg-type]
        assert found.seconds / 3600 == pytest.approx(hours, abs=0.01)
        assert found.columns()[2:] == ("87 h 59 min", "the paper's 126 epochs and timed steps")


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


@pytest.mark.slow
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


@pytest.mark.parametrize(
    ("given", "expected"),
    [("budget=1h", ("1h", "cpu", 0)), ("steps=3", ("", "wall", 3)), ("seeds=[1]", ("9s", "cpu", 0))],
)
def test_a_length_overrides_a_plans_of_another_kind(
    given: str, expected: tuple[str, str, int], tmp_path: Path
) -> None:
    """budget= beside a plan with epochs was refused, because both set the length of training."""
    path = tmp_path / "mine.yaml"
    path.write_text("recipe: demo\nattentions: [full]\nbudget: 9s\nbudget_clock: cpu\n")
    options = parse([f"plan={path}", given]).options
    assert (",".join(options.budget), options.budget_clock, options.steps) == expected
    assert request("wsj_table1", "budget=1h").options.epochs == 0


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
        (json.dumps({"recipe": "demo", "attentions": ["full"], "paper": {"rows": 3}}), "paper: "),
        (
            json.dumps({"recipe": "demo", "attentions": ["full"], "paper": {"rows": {"full": ["much"]}}}),
            "paper: expected numbers, found 'much'",
        ),
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
