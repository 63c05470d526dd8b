"""`asr compare` on the tone corpus: training, evaluation, timing, refusals and recovery."""

import json
import os
import random
import re
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from comparisons import arguments, put, reusing
from lhotse import CutSet
from processes import Asr
from runs import in_process
from tone_corpora import TINY

import attention_ext
from asr.cli import main
from asr.config import flat
from asr.data.manifest import read_cuts
from asr.errors import UserError
from asr.experiment import launch, processes, worker
from asr.experiment.cell import Cell, read_state
from asr.experiment.collect import collect
from asr.experiment.plan import Plan, make_plan, timing_cells
from asr.experiment.request import parse, plan_decoding
from asr.experiment.results import read_results
from asr.experiment.speech import find_manifests
from asr.files import locked, read_record
from asr.report.findings import findings
from asr.report.options import ReportOptions
from asr.report.page import write_report
from asr.training import labelling
from asr.training.config import train_options

MEASURED = {"created", "environment", "commit", "hardware", "conditions", "seconds_per_epoch"}


def without_times(value: Any) -> Any:
    """Return results without the fields that differ between two runs: clocks, memory, the environment."""
    if isinstance(value, list):
        return [without_times(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: without_times(item)
        for key, item in value.items()
        if key == "audio_s" or not (key in MEASURED or key.endswith(("_s", "_mib")))
    }


def untimed(folder: Path) -> Any:
    """Return the results without times, command, folder name, and the digest of all these."""
    text = (folder / "results.json").read_text()
    for name in (str(folder), os.path.relpath(folder)):  # commands contain the relative one
        text = text.replace(name, "FOLDER")
    return {key: x for key, x in without_times(json.loads(text)).items() if key not in ("command", "mark")}


@pytest.mark.slow
@pytest.mark.usefixtures("fast")
def test_shar_folders_are_compared_like_manifests(tone_corpus: Path, compared: Path, tmp_path: Path) -> None:
    """A comparison expected a file for each split."""
    for split in ("train", "dev", "test"):
        (tmp_path / "shar" / split).mkdir(parents=True)
        cuts = CutSet.from_cuts(read_cuts(tone_corpus / f"{split}.cuts.jsonl.gz"))
        cuts.to_shar(tmp_path / "shar" / split, {"recording": "flac"})
    shutil.copy(tone_corpus / "lexicon.txt", tmp_path / "shar")
    assert main(arguments(tmp_path / "shar", tmp_path / "found", "attentions=[full]")) == 0
    found, expected = read_results(tmp_path / "found"), read_results(compared)
    assert {x.status for x in found.evaluations} == {"done"}
    assert [x.rates for x in found.evaluations] == [x.rates for x in expected.evaluations]
    assert found.data["test"].hours == expected.data["test"].hours > 0


@pytest.mark.usefixtures("fast")
def test_models_are_trained_evaluated_and_timed(
    tone_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = arguments(
        tone_corpus,
        tmp_path,
        "attentions=[full,shared-full,agglomerative-4]",
        "evaluate=[clustered-3:bits=31,iterations=2,shared-full]",
    )
    assert main(asked) == 0
    results = read_results(tmp_path)
    matrix = {(x.candidate, x.variant) for x in results.evaluations if x.status == "done"}
    clustered = "clustered-3:bits=31,iterations=2"
    assert matrix == {
        ("full", "full"),
        ("full", clustered),
        ("shared-full", "shared-full"),
        ("shared-full", clustered),
        ("agglomerative-4", "agglomerative-4"),
    }
    for evaluation in results.evaluations:
        assert set(evaluation.rates) == {"per", "wer", "cer"}
        assert (tmp_path / evaluation.folder / "hyp.jsonl").exists()
        assert evaluation.forward_s is not None
        assert evaluation.forward_s > 0
        assert len(evaluation.forward_repeats_s) == len(evaluation.forward_cpu_repeats_s) == 1
        assert evaluation.utterances == 8
    for training in results.trainings:
        assert (training.status, training.steps, len(training.curve)) == ("done", 4, 2)
        assert training.epochs == pytest.approx(1.0)
        assert 1.001 * (training.train_s or 0) >= (training.time_to_best_s or 0) > 0  # metrics.csv is float32
        assert training.dev_error == min(point.dev_error for point in training.curve)
        assert (tmp_path / training.run / "config.yaml").exists()
    assert results.data["test"].utterances == 8
    assert (results.conditions["test"].device, results.conditions["test"].threads) == ("cpu", 1)
    assert results.conditions["test"].wall_s > 0
    shown = capsys.readouterr().out
    assert "Trained with one mechanism, run with another" in shown

    def work(*_: Any) -> None:
        pytest.fail("a finished cell ran again")

    before = untimed(tmp_path)
    monkeypatch.setattr(worker, "work", work)
    assert main(asked) == 0
    assert untimed(tmp_path) == before
    # Another candidate adds cells and changes none; all are timed again together.
    monkeypatch.undo()
    monkeypatch.setattr(launch, "run_cells", in_process)
    assert main([*asked[:-2], "attentions=[full,lsh-1]", "evaluate=[full]", "dry_run=true"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert re.search(r"timed steps of \d+ ms \(CPU \d+ ms\)", shown)
    assert "done" in shown
    # By default, each model runs with all compatible mechanisms and the oracle of table 1.
    assert main([*asked[:-1], "dry_run=true"]) == 0
    assert "6 evaluations, 3 of them to do" in " ".join(capsys.readouterr().out.split())


def test_the_only_step_of_a_training_is_timed(
    corpus_maker: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The step was spent on warming up, and the training was expected to take 0 ms."""
    asked = arguments(corpus_maker(train=2), tmp_path / "out", "attentions=[full]", "dry_run=true")
    short = {"steps=4": "steps=1", "trainer.validate_every=2": "trainer.validate_every=1"}
    assert main([short.get(x, x) for x in asked]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert re.search(r"\b1 timed step of [1-9]\d* ms", shown)


@pytest.mark.slow
@pytest.mark.usefixtures("fast")
def test_missing_kernels_are_said_once(
    trained: Path,
    tone_corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(attention_ext, "why_unavailable", {"cpu": "no compiler", "cuda": "no nvcc"}.get)
    assert main(reusing(trained, tone_corpus, tmp_path)) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.count("clustered runs without compiled kernels: times say nothing about the mechanism") == 1
    assert [x.head for x in findings(read_results(tmp_path))].count("No kernels") == 1


@pytest.mark.slow
@pytest.mark.usefixtures("fast")
def test_weights_are_tuned_per_mechanism_outside_the_run_folder(
    trained: Path, tone_corpus: Path, tmp_path: Path
) -> None:
    beam = ["decoder=beam", "beam.size=10", "tune=dev", "tune_utterances=4"]
    assert main(reusing(trained, tone_corpus, tmp_path, *beam)) == 0
    results = read_results(tmp_path)
    for evaluation in results.evaluations:
        assert evaluation.beam is not None
        record = read_record(tmp_path / evaluation.folder / "decode" / "tuned.json")
        (found,) = record.values()
        assert found["manifest"] == str(tone_corpus / "dev.cuts.jsonl.gz")
        assert found["attention"] == evaluation.variant
        assert evaluation.beam["word_score"] == found["word_score"]
    assert not (trained / "decode" / "tuned.json").exists()


@pytest.mark.slow
def test_losses_with_different_outputs_are_compared_and_reported(
    tone_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "run_cells", in_process)
    both = "candidates=[{attention: full}, {attention: full, label: lf_mmi, loss: lf_mmi, loss.order: 2}]"
    assert main(arguments(tone_corpus, tmp_path, both, "evaluate=[clustered-3]")) == 0
    results = read_results(tmp_path)
    for label in ("full", "lf_mmi"):
        assert results.error_rate(label, "test", "per") is not None
        assert results.error_rate(label, "test", "per", variant="clustered-3") is not None
    assert "lf_mmi" in (tmp_path / "report.html").read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("fast")
def test_a_failed_candidate_is_reported_and_the_others_run(
    tone_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The report said of what needs a failed training, "have not run yet; the report will change"."""
    bad = "{attention: full, label: bad, model.positions: rotary, model.head_dim: 15}, "
    bad += "{attention: clustered-2, init_from: bad, model.positions: rotary, model.head_dim: 15}"
    assert main(arguments(tone_corpus, tmp_path, "attentions=[full]", f"candidates=[{bad}]")) == 1
    assert "1 cell failed (trainings/bad/seed0)" in capsys.readouterr().err
    results = read_results(tmp_path)
    assert [x.status for x in results.trainings] == ["done", "failed", "missing"]
    needing = [results.trainings[2], *(x for x in results.evaluations if x.candidate != "full")]
    assert {x.error for x in needing} == {"trainings/bad/seed0 failed"}
    assert "Unfinished" not in {finding.head for finding in findings(results)}
    assert "even head_dim" in results.failures[0].error
    assert results.error_rate("full", "test", "per") is not None


@pytest.mark.slow
@pytest.mark.usefixtures("fast")
def test_an_interrupted_comparison_has_the_scores_of_its_finished_models(
    tone_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Evaluations once ran after all trainings."""

    def run_cells(folder: Path, cells: list[Cell], advance: Callable[[Cell, float], None]) -> None:
        if cells[0].name == "trainings/clustered-2/seed0":
            raise KeyboardInterrupt
        in_process(folder, cells, advance)

    monkeypatch.setattr(launch, "run_cells", run_cells)
    assert main(arguments(tone_corpus, tmp_path, "attentions=[full,clustered-2]")) == 130
    results = read_results(tmp_path)
    assert [x.status for x in results.trainings] == ["done", "missing"]
    assert results.error_rate("full", "test", "per") is not None
    assert write_report(results, tmp_path, ReportOptions(maps=False)).exists()


@pytest.mark.slow
@pytest.mark.usefixtures("fast")
def test_depths_seeds_and_finetuning(tone_corpus: Path, tmp_path: Path) -> None:
    candidates = (
        "candidates=[{attention: full, seeds: [0, 1]}, {attention: clustered-3, model.layers: 2}, "
        "{attention: i-clustered-3, init_from: full, seeds: [1], optimizer.learning_rate: 1e-4}]"
    )
    assert main(arguments(tone_corpus, tmp_path, candidates, "evaluate=[full]")) == 0
    results = read_results(tmp_path)
    tuned = "full → i-clustered-3, optimizer.learning_rate=0.0001"
    assert [x.label for x in results.candidates] == ["full", "2 layers, clustered-3", tuned]
    assert results.candidates[1].overrides == {"model.layers": 2}
    assert [(x.candidate, x.seed) for x in results.trainings] == [
        ("full", 0),
        ("full", 1),
        ("2 layers, clustered-3", 0),
        (tuned, 1),
    ]
    start = (tmp_path / results.trainings[3].run / "config.yaml").read_text()
    assert f"init_from: {tmp_path / results.trainings[1].run}" in start
    rate = results.error_rate("full", "test", "per")
    assert rate is not None
    assert (rate.count, rate.over) == (2, "seeds")
    timed = [(x.candidate, x.seed) for x in results.evaluations if x.forward_s is not None]
    assert ("full", 0) in timed
    assert ("full", 1) not in timed


def plan_of(corpus: Path, folder: Path, *more: str) -> Plan:
    return make_plan(parse(arguments(corpus, folder, *more)[1:]))


def test_a_candidate_whose_first_seed_failed_is_timed(tone_corpus: Path, tmp_path: Path) -> None:
    more = ["attentions=[full,clustered-3]", "evaluate=[own]", "seeds=[0,1]"]
    plan = plan_of(tone_corpus, tmp_path, *more)
    for (label, seed, *_), cell in plan.evaluations.items():
        cell.plan(plan.folder)
        put(plan.folder, cell, "failed" if (label, seed) == ("full", 0) else "done")
    (cell,) = timing_cells(plan)
    found = [(model["label"], model["training"]) for model in cell.settings["models"]]
    assert found == [("full", "trainings/full/seed1"), ("clustered-3", "trainings/clustered-3/seed0")]


def test_the_command_of_a_training_repeats_it(tone_corpus: Path, tmp_path: Path) -> None:
    """The command had a parent's label in place of its run, and None for an option without a value."""
    entries = "{attention: full}, {attention: clustered-3, init_from: full, trainer.stop_at: null}"
    plan = plan_of(tone_corpus, tmp_path, f"candidates=[{entries}]", "trainer.stop_at=0.5")
    options = train_options(shlex.split(collect(plan).trainings[1].command)[2:])
    assert Path(options.init_from).resolve() == tmp_path / "trainings" / "full" / "seed0"
    assert options.trainer.stop_at is None


def test_only_the_first_rank_writes_the_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks of a training wrote it, and a rank that ended early made the others' cell done."""
    cell = Cell("trainings/full/seed0", "training", {})
    cell.plan(tmp_path)
    monkeypatch.setattr(worker, "_train", lambda folder, cell: {})
    for rank, status in (("1", "missing"), ("0", "done")):
        monkeypatch.setenv("LOCAL_RANK", rank)
        worker.work(tmp_path, cell)
        assert read_state(tmp_path, cell.name).status == status


def test_a_worker_waits_for_that_of_a_killed_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A comparison that was killed and started again at once failed: its first worker still held the run."""
    cell = Cell("trainings/full/seed0", "training", {})
    cell.plan(tmp_path)
    held = locked(tmp_path / cell.name, "asr train")
    held.__enter__()

    def sleep(seconds: float) -> None:
        held.__exit__(None, None, None)

    def train(folder: Path, cell: Cell) -> dict[str, Any]:
        with locked(folder / cell.name, "asr train"):
            return {}

    monkeypatch.setattr(worker.time, "sleep", sleep)
    monkeypatch.setattr(worker, "_train", train)
    worker.work(tmp_path, cell)
    assert cell.is_done(tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("fast")
def test_models_without_recordings_are_exchanged_and_timed(tmp_path: Path) -> None:
    """They were trained and validated only, so that a comparison showed neither test errors nor times."""
    asked = ["compare", "recipe=copy", "recipe.length=5", "model.layers=1", "model.heads=1", "steps=2"]
    asked += ["trainer.validate_every=1", "trainer.accelerator=cpu", f"folder={tmp_path}", "reuse=none"]
    asked += ["attentions=[full,cast-3]", "evaluate=[clustered-3]", "timing_repeats=1"]
    assert main(asked) == 0
    results = read_results(tmp_path)
    assert [x.status for x in results.trainings] == ["done", "done"]
    assert all(x.dev_error_name == "dev_error" and x.dev_error is not None for x in results.trainings)
    found = [(x.candidate, x.variant, x.utterances) for x in results.evaluations]
    assert found == [("full", "full", 2016), ("full", "clustered-3", 2016), ("cast-3", "cast-3", 2016)]
    for evaluation in results.evaluations:
        model = str(tmp_path / "trainings" / evaluation.candidate / "seed0")
        expected = labelling.evaluate(*labelling.load_task(model, evaluation.variant), "test")
        assert evaluation.rates == {
            "error": {"rate": expected.value, "interval": list(expected.interval or ()), "length": 4032}
        }
        assert evaluation.forward_cpu_s
    assert shlex.split(evaluation.command)[:2] == ["asr", "evaluate"]
    assert shlex.split(evaluation.command)[3:] == ["split=test", "attention=cast-3"]
    page = write_report(results, tmp_path, ReportOptions(static=False)).read_text()
    assert "95 % interval over items (bootstrap)" in page
    assert "<h3>Data</h3>" not in page
    assert "search" not in page.partition("All settings")[0]


CIRCLE = "candidates=[{attention: full, label: a, init_from: b}, {attention: full, label: b, init_from: a}]"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["attentions=[]"], "nothing to compare"),
        (["attentions=[nonsense-3]"], "unknown attention"),
        (["attentions=[full]", "attention=full"], "attentions="),
        (["attentions=[full]", "trainer.max_steps=5"], "steps="),
        (["attentions=[full]", "epochs=2"], "only one of them"),
        (["attentions=[full,full]"], "appears twice"),
        (["attentions=[full]", "splits=[nowhere]"], r"nowhere\.cuts"),
        (["attentions=[full]", "model.layesr=3"], "did you mean 'model.layers'"),
        (["candidates=[{model.layers: 3}]"], "expected an attention"),
        (["attentions=[full]", "decoder=bean"], "decoder=bean: expected one of greedy"),
        (["attentions=[full]", "beam.size=20"], r"beam.size=20: has no effect with decoder=greedy"),
        (["attentions=[full]", "decoder=beam", "beam.lm=no.arpa"], r"beam\.lm=no\.arpa: expected a file"),
        (["attentions=[full]", "tune=dev"], "tune=dev: decoder=greedy has no weights to tune"),
        (["attentions=[full]", "metric=ter"], "metric=ter"),
        (["attentions=[full]", "beam.sise=20", "decoder=beam"], "did you mean 'beam.size'"),
        (
            ["candidates=[{attention: full, seeds: many}]"],
            "full: seeds=many: expected a list of whole",
        ),
        (["candidates=[{attention: full, seeds: [-1]}]"], "full: seeds=-1: expected a number ≥ 0"),
        (["candidates=[{attention: full, seeds: [3, 3]}]"], r"full: seeds=\[3, 3\]: expected distinct seeds"),
        (["attentions=[full]", "seeds=[3,3]"], r"seeds=\[3, 3\]: expected distinct seeds"),
        (["attentions=[full]", "budget_clock=cpu"], "budget_clock=cpu: has no effect without budget"),
        (["attentions=[full]", "launch=[mem_gb=8]"], r"launch=.*: has no effect without launcher"),
        (
            ["attentions=[full]", "launcher=ray", "launch=nonsense"],
            "launch=nonsense: expected <name>=<value>",
        ),
        (["candidates=['full seeds=[0']"], r"full: seeds=\[0: expected a list of whole numbers, e.g. 1,2"),
        (
            ["candidates=[{attention: full, label: a b}, {attention: full, label: a-b, model.dropout: 0.2}]"],
            "too similar for a folder",
        ),
        ([CIRCLE], "init_from is circular"),
        (["attentions=[full]", "evaluate=[cast-8]"], "evaluate=\\[cast-8\\]: no candidate"),
        # Before any training, not after it.
        (["attentions=[full]", "evaluate=['full frames=0']"], "evaluate=.full frames=0.: .*found '0'"),
        (["attentions=[full]", "evaluate=['full frames=2*9']"], "evaluate=.full frames=2.9.: no candidate"),
        (["attentions=[full]", "device=cpu", "precisions=fp16"], "precisions=fp16 needs a CUDA device"),
    ],
)
def test_invalid_requests_are_refused_in_one_line(
    given: list[str], message: str, tone_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(tone_corpus, tmp_path / "none", *given)) == 1
    error = capsys.readouterr().err
    assert re.search(message, error), error
    assert error.count("\n") == 1
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("metric=wer", "metric=wer: has no effect with recipe=copy, which has no recordings"),
        ("decoder=beam", "decoder=beam: has no effect with recipe=copy, which has no recordings"),
        ("splits=[train]", "splits=[train]: expected dev | test"),
        ("evaluate=[linear]", "evaluate=[linear]: no candidate's mechanism can be exchanged for it"),
    ],
)
def test_options_without_effect_on_items_are_refused(
    given: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With recipe=copy, search options had no effect, and nothing said so."""
    asked = ["compare", "recipe=copy", "attentions=[full]", f"folder={tmp_path / 'none'}", given]
    assert main(asked) == 1
    assert message in capsys.readouterr().err


def test_a_candidates_own_length_is_refused_with_measured_steps(
    tone_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The length was accepted, then replaced by the number of steps that fit in the budget."""
    asked = ["compare", *TINY, f"data.train=[{tone_corpus}]", f"folder={tmp_path / 'none'}", "budget=9s"]
    asked += ["budget_clock=steps", "candidates=[{attention: full, trainer.max_steps: 5}]"]
    assert main(asked) == 1
    assert "trainer.max_steps= has no effect with budget_clock=steps" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "expected"), [("steps=5", ("", 5)), ("epochs=2", ("", 0)), ("budget=9s", ("9s", 0))]
)
def test_the_length_of_training_replaces_the_recipes(given: str, expected: tuple[str, int]) -> None:
    """With recipe=stamps, which has a budget, steps= and epochs= left it as it was, and it ended training."""
    request = parse(["recipe=stamps", "attentions=[full]", given])
    trainer = train_options(request.shared).trainer
    assert (trainer.budget, trainer.max_steps) == expected
    if given == "epochs=2":
        assert trainer.max_epochs == 2


def test_several_budgets_are_a_training_each(tone_corpus: Path, tmp_path: Path) -> None:
    """Whether a gain survives longer training is one command, each training with a schedule of its own."""
    asked = [*TINY, f"data.train=[{tone_corpus}]", "evaluate=[own]", "reuse=none", f"folder={tmp_path}"]
    asked += ["budget=3min,45s", "budget_clock=cpu", "attentions=full", "candidates=[full model.layers=2]"]
    plan = make_plan(parse(asked))
    labels = ["full, 3min", "full, 45s", "2 layers, full, 3min", "2 layers, full, 45s"]
    assert [x.label for x in plan.candidates] == labels
    assert [(x.model, x.budget) for x in plan.candidates][2:] == [
        ("2 layers, full", "3min"),
        ("2 layers, full", "45s"),
    ]
    budgets = [flat(cell.settings["options"])["trainer.budget"] for cell in plan.trainings.values()]
    assert budgets == ["3min", "45s", "3min", "45s"]
    results = collect(plan)
    assert results.protocol["budget"] == "3min, 45s of training (CPU time)"
    assert "trainer.budget=3min" in results.trainings[0].command.split()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["attentions=full", "budget=60s,1min"], "expected distinct times"),
        (
            ["budget=1min,2min", "candidates=[{attention: full, trainer.max_steps: 5}]"],
            "trainer.max_steps= can't be combined with several budgets",
        ),
        (
            ["budget=1min,2min", "attentions=full", "candidates=[{attention: clustered-3, init_from: full}]"],
            "init_from=full has several budgets, expected one",
        ),
    ],
)
def test_budgets_that_cannot_be_combined(
    given: list[str], message: str, tone_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["compare", *TINY, f"data.train=[{tone_corpus}]", f"folder={tmp_path / 'none'}", *given]
    assert main(asked) == 1
    assert message in capsys.readouterr().err


def test_the_protocol_names_the_recipes_budget(tone_corpus: Path, tmp_path: Path) -> None:
    """Results of recipe=stamps, which trains for a CPU time, named its epochs and the wall clock."""
    asked = ["recipe=stamps", f"data.train=[{tone_corpus}]", "attentions=[full]", "evaluate=[own]"]
    plan = make_plan(parse([*asked, "reuse=none", f"folder={tmp_path}"]))
    trainer = plan.protocol.trainer
    assert (trainer.budget, trainer.budget_clock, plan.options.budget_clock) == ("60min", "cpu", "wall")
    protocol = collect(plan).protocol
    assert (protocol["budget"], protocol["clock"]) == ("60min of training (CPU time)", "cpu")


def test_a_split_and_a_manifest_of_the_same_name_are_refused(tone_corpus: Path, tmp_path: Path) -> None:
    """A split after a manifest of its name was left out silently; in the other order, it was an error."""
    other = str(tmp_path / "test.cuts.jsonl.gz")
    shutil.copy(tone_corpus / "test.cuts.jsonl.gz", other)
    protocol = train_options([*TINY, f"data.train=[{tone_corpus}]"])
    for splits in ([other, "test"], ["test", other]):
        with pytest.raises(UserError, match="another manifest is also called test"):
            find_manifests(protocol, splits)
    assert find_manifests(protocol, [other])["test"] == Path(other)


def test_a_launchers_machines_may_have_other_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without GPU could not submit a comparison to machines with GPUs."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    asked = ["recipe=demo", "attentions=[full]", "device=cuda"]
    with pytest.raises(UserError, match=r"device=cuda: .*CUDA device"):
        plan_decoding(parse(asked).options)
    options = plan_decoding(parse([*asked, "launcher=submitit_slurm"]).options).options
    assert options.device == "cuda"


@pytest.mark.slow
@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.exhaustive)])
def test_killed_at_random_points_gives_the_same_results(
    kills: int, tone_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The killed processes are forks of this one, which saves importing the libraries.

    Each is killed after some CPU time: by the wall clock, one once finished before it was killed, because the
    load on the machine had changed.
    """
    monkeypatch.setattr(launch, "run_cells", in_process)
    monkeypatch.setattr("asr.library.write_report", lambda results, folder: folder / "report.html")
    more = ["attentions=[full]", "evaluate=[clustered-3]", "seeds=[0,1]", "steps=12"]
    # The first run of a process imports libraries; its time would be longer than that of the others.
    assert main(arguments(tone_corpus, tmp_path / "first", *more[:-1], "steps=1")) == 0
    started = time.process_time()
    assert main(arguments(tone_corpus, tmp_path / "whole", *more)) == 0
    whole_s = time.process_time() - started
    draw = random.Random(0)
    killed = 0
    while killed < kills:
        cpu_s = draw.uniform(0.45, 1.35) * whole_s / kills
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGPROF, signal.SIG_DFL)  # ends the process at any point
            signal.setitimer(signal.ITIMER_PROF, cpu_s)
            os._exit(main(arguments(tone_corpus, tmp_path / "parts", *more)))
        _, status = os.waitpid(child, 0)
        killed += os.WIFSIGNALED(status)
        if not os.WIFSIGNALED(status):
            break  # it was faster than the first: nothing is left to kill
    assert killed > kills / 2
    assert main(arguments(tone_corpus, tmp_path / "parts", *more)) == 0
    assert untimed(tmp_path / "parts") == untimed(tmp_path / "whole")
    errors = [x.dev_error for x in read_results(tmp_path / "whole").trainings]
    assert len(set(errors)) > 1, "equal results prove nothing unless seeds differ"


@pytest.mark.slow
def test_a_worker_ends_with_its_parent(
    tone_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An orphaned worker would write to the same folder as the worker of the next start.

    It writes a resume point before it ends. A data loader once hung at its start, because the worker held the
    lock of its standard input while it forked.
    """
    asked = arguments(tone_corpus, tmp_path, "attentions=[full]", "steps=100000", "data.workers=1")
    asked += ["trainer.checkpoint_every=100000"]
    process = Asr(asked)
    cell = tmp_path / "trainings" / "full" / "seed0"
    while not any((cell / "checkpoints").glob("best-*.ckpt")) and process.poll() is None:
        time.sleep(0.05)
    last = cell / "checkpoints" / "last.ckpt"
    assert not last.exists()
    process.kill()
    assert process.wait() == -signal.SIGKILL
    # The parent is gone; the worker must stop writing checkpoints.
    deadline = time.monotonic() + 60
    before = -1.0
    while not last.exists() or (now := (cell / "metrics.csv").stat().st_mtime_ns) != before:
        before = now if last.exists() else -1.0
        assert time.monotonic() < deadline, "the worker is still running"
        time.sleep(1)
    assert read_state(tmp_path, "trainings/full/seed0").status == "running"


WORKER = """
import os, sys, pathlib
folder, names = pathlib.Path(sys.argv[1]), sys.argv[2:]
for name in names:
    journal = folder / name / "job.jsonl"
    journal.write_bytes((folder / "running" / name / "job.jsonl").read_bytes())
    if name.endswith("crash"):
        print("the last words", flush=True)
        os.kill(os.getpid(), 11)
    journal.write_bytes((folder / "done" / name / "job.jsonl").read_bytes())
"""


STUBBORN = """
import pathlib, signal, sys, time
folder, name = pathlib.Path(sys.argv[1]), sys.argv[2]
if name.endswith("training"):
    signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.2), (folder / "saved").touch(), sys.exit(143)))
(folder / name / "job.jsonl").write_bytes((folder / "running" / name / "job.jsonl").read_bytes())
time.sleep(60)
"""


@pytest.mark.parametrize("name", ["training", "evaluation"])
def test_an_interrupted_worker_ends_by_itself(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker was killed, and the steps since the last checkpoint were lost."""
    cell = Cell(f"cells/{name}", "training", {})
    cell.plan(tmp_path)
    put(tmp_path / "running", cell, "running")
    command = [sys.executable, "-S", "-c", STUBBORN, str(tmp_path), cell.name]
    monkeypatch.setattr(processes, "worker_command", lambda folder, cells: command)

    def interrupt(cell: Cell, fraction: float) -> None:
        raise KeyboardInterrupt

    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        processes.run_cells(tmp_path, [cell], interrupt)
    assert time.monotonic() - started < processes.GRACE_S
    assert (tmp_path / "saved").exists() == (name == "training")


def test_a_crash_fails_one_cell_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [Cell(f"evaluations/a/seed0/{name}", "evaluation", {"x": name}) for name in ("1", "crash", "2")]
    for cell in cells:
        cell.plan(tmp_path)
        for status in ("running", "done"):
            put(tmp_path / status, cell, status)

    def command(folder: Path, cells: list[Cell]) -> list[str]:
        return [sys.executable, "-S", "-c", WORKER, str(folder), *(cell.name for cell in cells)]

    monkeypatch.setattr(processes, "worker_command", command)
    updates = []
    processes.run_cells(tmp_path, cells, lambda cell, fraction: updates.append((cell.name, fraction)))
    states = [read_state(tmp_path, cell.name) for cell in cells]
    assert [state.status for state in states] == ["done", "failed", "done"]
    assert states[1].error == "worker killed by signal 11; last line of its log: the last words"
    assert {name for name, fraction in updates if fraction == 1.0} == {cell.name for cell in cells}
