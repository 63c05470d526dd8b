"""What a comparison runs again after a change, what it keeps, and what it refuses."""

import dataclasses
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from comparisons import arguments, put, reusing
from runs import killed

from asr.cli import main
from asr.errors import UserError
from asr.experiment import reuse, worker
from asr.experiment.cell import read_state
from asr.experiment.collect import collect
from asr.experiment.plan import make_plan, settle_changes
from asr.experiment.request import parse
from asr.experiment.results import read_results
from asr.experiment.reuse import read_run, suits
from asr.files import file_digest, read_record, write_record
from asr.model import checkpoint


@pytest.mark.slow
@pytest.mark.usefixtures("fast_without_training")
def test_a_changed_language_model_repeats_only_the_evaluations(
    trained: Path, tone_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All models are decoded with the same search weights, whatever their run folders contain."""
    folder, bigram = tmp_path / "compare", tmp_path / "bigram.arpa"
    assert main(["lm", "train", f"text={tone_corpus}", "order=2", f"out={bigram}"]) == 0
    beam = ["decoder=beam", f"beam.lm={bigram}", "beam.size=20"]
    asked = reusing(trained, tone_corpus, folder, *beam)
    assert main(asked) == 0
    results = read_results(folder)
    assert results.protocol["beam"]["lm_weight"] == 2.0
    assert results.protocol["files"] == {"beam.lm": file_digest(bigram)}
    assert results.metrics()[:2] == ["per", "wer"]  # per: what training showed
    assert [x.folder.rpartition("/")[2] for x in results.evaluations] == [
        "full-beam-bigram",
        "clustered-3-beam-bigram",
    ]
    for evaluation in results.evaluations:
        assert evaluation.beam is not None
        assert (evaluation.beam["size"], evaluation.beam["lm"]) == (20, str(bigram))
        assert f"beam.lm={bigram}" in evaluation.command
        assert "beam.word_score=-1.0" in evaluation.command
    assert "PER %, test" in " ".join(capsys.readouterr().out.split())

    def states() -> dict[str, int]:
        return {str(x): x.stat().st_mtime_ns for x in folder.rglob("job.jsonl")}

    before = states()
    assert main([*asked, "jobs=2"]) == 0  # the number of search processes is immaterial
    assert states() == before
    bigram.write_text(bigram.read_text() + "\n")
    assert main(asked) == 1
    assert "files.beam.lm" in capsys.readouterr().err
    assert main([*asked, "changed=rerun"]) == 0
    changed = {
        name.split("/compare/")[1].split("/")[0] for name, at in states().items() if before[name] != at
    }
    assert changed == {"evaluations"}  # neither trainings nor timings


def test_a_training_is_identified_by_its_noises_and_search_files(tone_corpus: Path, tmp_path: Path) -> None:
    """Other noises under the same name were taken for those of the finished training."""
    noises, words = tmp_path / "noises", tmp_path / "words.arpa"
    noises.mkdir()

    def key(samples: int, word: str) -> str:
        soundfile.write(noises / "hum.wav", np.full(samples, 0.1), 16000)
        words.write_text(f"{word}\n")
        selected = ["select.metric=wer", f"select.lm={words}"]
        asked = arguments(tone_corpus, tmp_path / "compare", "attentions=[full]", f"augment.noise={noises}")
        plan = make_plan(parse([*asked[1:], *selected]))
        (cell,) = plan.trainings.values()
        assert list(cell.settings["data"])[-3:] == ["augment.noise", "select.lm", "lexicon"]
        return cell.key

    first = key(160, "one")
    assert first == key(160, "one")
    assert len({first, key(161, "one"), key(160, "two")}) == 3


def test_given_defaults_without_effect_are_refused(tmp_path: Path) -> None:
    """Other commands refused them."""
    with pytest.raises(UserError, match="budget_clock=wall: has no effect without budget"):
        parse(["recipe=demo", "attentions=[full]", "budget_clock=wall"])


@pytest.mark.usefixtures("fast")
def test_cells_with_other_settings_are_refused_or_run_again(
    compared: Path, tone_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(compared, tmp_path / "compare")
    other = arguments(tone_corpus, folder, "attentions=[full]", "optimizer.learning_rate=1e-3")
    assert main(other) == 1
    assert "optimizer.learning_rate: 0.005 → 0.001" in capsys.readouterr().err
    assert main([*other, "changed=rerun"]) == 0
    assert read_results(folder).protocol["training"]["optimizer.learning_rate"] == 0.001
    assert "running again" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.usefixtures("fast")
def test_a_run_with_the_same_settings_is_reused(trained: Path, tone_corpus: Path, tmp_path: Path) -> None:
    asked = reusing(trained, tone_corpus, tmp_path)
    assert main(asked) == 0
    results = read_results(tmp_path)
    assert (tmp_path / results.trainings[0].run).resolve() == trained.resolve()
    assert results.trainings[0].reused
    # Evaluating on the dev split as well adds cells.
    assert main([*asked, "splits=[dev,test]"]) == 0
    assert read_results(tmp_path).splits() == ["dev", "test"]
    # The run had another number of steps.
    assert main([*(x for x in asked if x != "steps=80"), "steps=2", f"folder={tmp_path / 'other'}"]) == 0
    assert not read_results(tmp_path / "other").trainings[0].reused


@pytest.mark.slow
@pytest.mark.usefixtures("fast")
def test_a_checkpoint_of_another_run_is_neither_reused_nor_reported(
    trained: Path, tone_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A best checkpoint that was copied from another run was evaluated as that of the finished run."""

    def swap(run: Path) -> Path:
        (best,) = (run / "checkpoints").glob("best-*.ckpt")
        checkpoint.save({**checkpoint.load(best), "run": "another"}, best)
        return best

    asked = arguments(tone_corpus, tmp_path / "own", "attentions=[full]", "splits=[dev]")
    assert main(asked) == 0
    best = swap(tmp_path / "own" / "trainings" / "full" / "seed0")
    assert main(asked) == 1
    assert f"{best}: expected a checkpoint of the run in" in capsys.readouterr().err

    run = shutil.copytree(trained, tmp_path / "runs" / "full")
    request = parse(reusing(run, tone_corpus, tmp_path / "reusing")[1:])
    assert list(make_plan(request).reused.values()) == [run]
    swap(run)
    assert not make_plan(request).reused


@pytest.mark.slow
def test_a_reused_run_is_kept_until_it_no_longer_matches(
    trained: Path, tone_corpus: Path, tmp_path: Path
) -> None:
    """The run was looked for under reuse= again: without the option, the model was trained again."""
    run = shutil.copytree(trained, tmp_path / "runs" / "full")
    asked = reusing(run, tone_corpus, tmp_path / "compare")[1:]
    plan = make_plan(parse(asked))
    (cell,) = plan.trainings.values()
    cell.plan(plan.folder)
    put(plan.folder, cell, "done", result={"run": "../runs/full", "reused": True})
    without = make_plan(parse([*asked, "reuse=none"]))
    assert [path.resolve() for path in without.reused.values()] == [run]
    assert settle_changes(without) == []
    other = run.rename(tmp_path / "runs" / "other")
    plan = make_plan(parse(asked))
    assert list(plan.reused.values()) == [other]
    message = f"{cell.name}: {os.path.relpath(run)} no longer matches"
    assert settle_changes(plan) == [message]
    assert read_state(plan.folder, cell.name).status == "missing"


def test_a_refused_change_discards_nothing(trained: Path, tone_corpus: Path, tmp_path: Path) -> None:
    """The state of the adopted training was removed before the evaluation was refused, and with the old
    settings, everything ran again.
    """
    run = shutil.copytree(trained, tmp_path / "runs" / "full")
    asked = [*reusing(run, tone_corpus, tmp_path / "compare")[1:], "evaluate=[own]"]
    plan = make_plan(parse(asked))
    (training,), (evaluation,) = plan.trainings.values(), plan.evaluations.values()
    put(plan.folder, training, "done", result={"run": "../runs/full", "reused": True})
    put(plan.folder, evaluation, "done")
    other = [x for x in asked if not x.startswith("steps=")]
    with pytest.raises(UserError, match="exists with other settings"):
        settle_changes(make_plan(parse([*other, "steps=2"])))
    assert settle_changes(make_plan(parse(asked))) == []
    assert evaluation.is_done(plan.folder)


def test_a_job_that_was_stopped_before_it_began_keeps_its_settings(tone_corpus: Path, tmp_path: Path) -> None:
    """Without them, a training went on from another one's checkpoint with changed settings."""
    asked = arguments(tone_corpus, tmp_path, "attentions=[full]")[1:]
    (cell,) = make_plan(parse(asked)).trainings.values()
    cell.plan(tmp_path)
    longer = make_plan(parse([*(x for x in asked if not x.startswith("steps=")), "steps=2"]))
    assert settle_changes(longer) == []  # nothing was trained
    (tmp_path / cell.name / "checkpoints").mkdir()
    with pytest.raises(UserError, match=r"exists with other settings \(trainer\.max_steps"):
        settle_changes(longer)
    assert settle_changes(make_plan(parse(asked))) == []


def test_a_run_is_reused_only_with_the_same_start_and_one_plan(
    trained: Path, tone_corpus: Path, tmp_path: Path
) -> None:
    """A run that had been extended counted as one of the larger plan, whose rates it had not had.

    A run from a published encoder was never reused, so that choosing a learning rate trained one twice.
    """
    plan = make_plan(parse(reusing(trained, tone_corpus, tmp_path)[1:]))
    (cell,) = plan.trainings.values()
    run = shutil.copytree(trained, tmp_path / "run")

    def suits_with(settings: dict[str, Any], **changes: Any) -> bool:
        write_record(read_record(trained / "environment.json") | changes, run / "environment.json")
        return suits(run, read_run(run), settings)

    assert suits_with(cell.settings)
    assert not suits_with(cell.settings, replanned=True)
    assert not suits_with(cell.settings, start="0123")
    assert suits_with(cell.settings | {"start": "0123"}, start="0123")


@pytest.mark.slow
def test_a_new_option_with_its_default_discards_no_cell(tone_corpus: Path, tmp_path: Path) -> None:
    """Each option that the program gained changed the key of every cell, and stopped a comparison halfway."""
    asked = arguments(tone_corpus, tmp_path, "attentions=[full]", "evaluate=[own]")[1:]
    plan = make_plan(parse(asked))
    (training,), (evaluation,) = plan.trainings.values(), plan.evaluations.values()
    # As the program stored them before it had these options.
    older = json.loads(json.dumps(training.settings))
    del older["options"]["trainer.clip"], older["options"]["model.layer_drop"]
    training = dataclasses.replace(training, settings=older)
    decoded = json.loads(json.dumps({**evaluation.settings, "training": training.key}))
    del decoded["options"]["g2p"]
    put(plan.folder, training, "done", result={"run": training.name})
    put(plan.folder, dataclasses.replace(evaluation, settings=decoded), "done")

    def changes(*overrides: str) -> list[str]:
        plan = make_plan(parse([*asked, *overrides]))
        cells = [cell for cell in plan.cells() if not cell.is_done(plan.folder)]
        return [cell.kind for cell in cells]

    assert changes() == []
    assert changes("model.layer_drop=0.3") == ["training", "evaluation"]
    assert changes("optimizer.weight_decay=0.5") == ["training", "evaluation"]  # which they had
    assert changes("decoder=prefix") == ["evaluation"]
    del older["options"]["features.floor"]  # a constant at the time, of another value
    put(plan.folder, dataclasses.replace(training, settings=older), "done", result={"run": "run"})
    assert "training" in changes()
    assert "training" not in changes(f"features.floor={2.0**-23}")
    older["options"]["optimizer.weight_decay"] = 0.25  # the default at the time
    put(plan.folder, dataclasses.replace(training, settings=older), "done", result={"run": "run"})
    assert "training" in changes()


def test_folders_under_reuse_are_read_once_and_may_hold_anything(
    trained: Path, tone_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty config.yaml, or one of another program, was an AttributeError."""
    read = []
    monkeypatch.setattr(reuse, "read_run", lambda folder: read.append(folder) or read_run(folder))
    for number, content in enumerate(("", "[1]", "1: {2: 3}", "recipe: [", "recipe: {name: demo}")):
        foreign = shutil.copytree(trained, tmp_path / "runs" / str(number))
        (foreign / "config.yaml").write_text(content)
    shutil.copytree(trained, tmp_path / "runs" / "5")
    (tmp_path / "runs" / "5" / "environment.json").write_text("{}")
    run = shutil.copytree(trained, tmp_path / "runs" / "6")
    plan = make_plan(parse(reusing(run, tone_corpus, tmp_path / "compare", "seeds=[0,1]")[1:]))
    assert plan.reused == {"trainings/full/seed0": run}
    assert len(read) == 7


def test_a_candidates_own_data_are_part_of_its_key(corpus_maker: Callable[..., Path], tmp_path: Path) -> None:
    """Its trainings had the digests of the common data, so that they stayed done when its own changed."""
    shared, own = corpus_maker("shared"), corpus_maker("own", train=5)
    entries = f"candidates=[{{attention: full}}, {{attention: full, label: own, data.train: [{own}]}}]"
    asked = arguments(shared, tmp_path / "compare", entries)[1:]

    def keys() -> list[str]:
        return [cell.key for cell in make_plan(parse(asked)).trainings.values()]

    before = keys()
    shutil.copy(shared / "train.cuts.jsonl.gz", own / "train.cuts.jsonl.gz")
    now = keys()
    assert now[0] == before[0]
    assert now[1] != before[1]


def test_results_name_the_data_as_planned(corpus_maker: Callable[..., Path], tmp_path: Path) -> None:
    """The digest was that of the manifest at the end, whatever the models were trained on."""
    corpus = corpus_maker()
    plan = make_plan(parse(arguments(corpus, tmp_path / "compare", "attentions=[full]")[1:]))
    (cell,) = plan.trainings.values()
    shutil.copy(corpus / "dev.cuts.jsonl.gz", corpus / "train.cuts.jsonl.gz")
    assert collect(plan).data["train"].hash == cell.settings["data"]["train"]


@pytest.mark.slow
def test_a_finetuned_model_resumes_under_another_spelling_of_the_folder(
    tone_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launcher names the folder by its absolute path; without one, the training could not be resumed."""
    monkeypatch.chdir(tmp_path)
    entries = "candidates=[{attention: full}, {attention: clustered-3, init_from: full}]"
    plan = make_plan(parse(arguments(tone_corpus, Path("compare"), entries, "steps=2")[1:]))
    parent, child = plan.trainings.values()
    for cell in (parent, child):
        cell.plan(plan.folder)
    worker.work(plan.folder.absolute(), parent)
    with killed(1):
        worker._train(plan.folder.absolute(), child)
    worker.work(plan.folder, child)
    state = read_state(plan.folder, child.name)
    assert (state.status, state.error) == ("done", None)


def test_lora_starts_from_the_parents_run(
    tone_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker checked the options without the initial weights."""
    starts: list[str] = []
    monkeypatch.setattr(worker, "train", lambda options, callbacks: starts.append(options.init_from))
    entries = "candidates=[{attention: full}, {attention: full, init_from: full, model.lora.rank: 2}]"
    parent, child = make_plan(parse(arguments(tone_corpus, tmp_path, entries)[1:])).trainings.values()
    put(tmp_path, parent, "done", result={"run": parent.name})
    worker._train(tmp_path, child)
    assert starts == [str(tmp_path / parent.name)]


def test_an_evaluation_of_a_training_that_runs_again_is_discarded(tone_corpus: Path, tmp_path: Path) -> None:
    """The evaluation kept the rates of the old weights while its training ran again."""
    asked = arguments(tone_corpus, tmp_path, "attentions=[full]", "evaluate=[own]")
    plan = make_plan(parse(asked[1:]))
    (training,), (evaluation,) = plan.trainings.values(), plan.evaluations.values()
    for cell, status in ((training, "failed"), (evaluation, "done")):
        cell.plan(tmp_path)
        put(tmp_path, cell, status)
    assert settle_changes(plan) == [f"{evaluation.name}: running again, because {training.name} will be"]
    assert read_state(tmp_path, evaluation.name).status == "missing"
    assert settle_changes(plan) == []


@pytest.mark.slow
@pytest.mark.usefixtures("fast_without_training")
def test_changed_scoring_rules_and_references_repeat_only_the_evaluations(
    trained: Path, tone_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rates by the old rules stayed in the results."""
    corpus = shutil.copytree(tone_corpus, tmp_path / "corpus")
    asked = reusing(trained, tone_corpus, tmp_path / "compare", f"splits=[{corpus}/test.cuts.jsonl.gz]")
    assert main(asked) == 0
    (corpus / "scoring.json").write_text('{"drop": ["GO"]}')
    (corpus / "test.stm").write_text(";; reference\n")
    (corpus / "dev.stm").write_text(";; of another split\n")
    assert main(asked) == 1
    error = capsys.readouterr().err
    assert "reference.scoring.json: None → " in error
    assert "reference.test.stm: None → " in error
    assert "dev.stm" not in error
    assert "hub5.glm" not in error
    (corpus / "test.stm").unlink()
    assert main([*asked, "changed=rerun"]) == 0
    found = read_results(tmp_path / "compare").evaluations
    assert len(found) == 2
    for evaluation in found:
        score = json.loads((tmp_path / "compare" / evaluation.folder / "score.json").read_text())
        assert score["word_filter"]["drop"] == ["GO"]


@pytest.mark.usefixtures("fast")
def test_a_score_with_other_options_is_refused(
    compared: Path, tone_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rates after `asr score text=none` were taken for those of the comparison."""
    compare = shutil.copytree(compared, tmp_path / "compare")
    asked = arguments(tone_corpus, compare, "attentions=[full]")
    folder = str(compare / read_results(compare).evaluations[0].folder)
    before = (compare / "results.json").read_text()
    assert main(["score", folder, "text=none", "samples=10"]) == 0
    assert main(asked) == 1
    message = f"found one with samples=10 text=none: run asr score {folder}"
    assert message in capsys.readouterr().err.replace("\n", " ")
    assert (compare / "results.json").read_text() == before
    assert main(["score", folder]) == 0
    assert main(asked) == 0


def test_a_changed_text_of_a_recipe_is_noticed(tmp_path: Path) -> None:
    """A comparison of language models on another text of the same name kept the old results."""
    text = tmp_path / "text.txt"
    text.write_text("a small text about nothing " * 400)
    asked = ["recipe=language", f"recipe.text={text}", "recipe.length=16", "reuse=none"]
    asked += ["attentions=['full:causal=true','linear:causal=true']", f"folder={tmp_path / 'compare'}"]

    def keys() -> list[str]:
        return [cell.key for cell in make_plan(parse(asked)).trainings.values()]

    before = keys()
    assert keys() == before
    text.write_text("a small text about another " * 400)
    assert not set(keys()) & set(before)
