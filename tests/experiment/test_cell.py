"""Cells on disk: journals of this program and states of earlier ones."""

from pathlib import Path

import pytest
from comparisons import put

from asr.errors import UserError
from asr.experiment.cell import Cell, TrainingResult, as_stored, read_state, stored_cell, trained_run
from asr.files import write_record

SETTINGS = {"options": {"seed": 0, "trainer.clip": 1.0}, "data": {"train": "ab"}, "start": ""}
CELL = Cell("trainings/full/seed0", "training", SETTINGS, unkeyed={"trainer.threads": 2})


def test_a_worker_reads_from_the_journal_what_was_planned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    CELL.plan(tmp_path)
    found = read_state(tmp_path, CELL.name)
    assert (found.status, stored_cell(CELL.name, found)) == ("missing", CELL)
    put(tmp_path, CELL, "running")
    assert CELL.state(tmp_path).status == "running"
    put(tmp_path, CELL, "failed", error="no disk", seconds=3.0)
    found = CELL.state(tmp_path)
    assert (found.status, found.error, found.seconds) == ("failed", "no disk", 3.0)
    CELL.plan(tmp_path)  # another start
    assert CELL.state(tmp_path).status == "missing"
    CELL.job(tmp_path).run(lambda: {"run": CELL.name})
    assert CELL.state(tmp_path).result(TrainingResult) == TrainingResult(CELL.name)
    other = Cell(CELL.name, "training", SETTINGS | {"start": "12"})
    assert (other.is_done(tmp_path), CELL.is_done(tmp_path)) == (False, True)
    other.plan(tmp_path)
    assert other.state(tmp_path).identity
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("status", ["missing", "running", "failed", "done"])
def test_what_an_earlier_version_finished_stays_finished(status: str, tmp_path: Path) -> None:
    """It stored a cell in state.json, under the same key."""
    state = {"key": CELL.key, "settings": SETTINGS, "status": status, "error": None, "seconds": 0.0}
    state |= {"error": "no disk"} if status == "failed" else {}
    state |= {"result": {"run": CELL.name, "reused": False}} if status == "done" else {"result": {}}
    path = tmp_path / CELL.name / "state.json"
    write_record(state, path)
    found = CELL.state(tmp_path)
    assert (found.status, found.error) == (status, state["error"])
    if status == "done":
        assert trained_run(tmp_path, CELL.name) == tmp_path / CELL.name
    CELL.plan(tmp_path)
    assert not path.exists()
    write_record(state, path)
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 1'))
    (tmp_path / CELL.name / "job.jsonl").unlink()
    with pytest.raises(UserError, match=r"state\.json: damaged"):
        read_state(tmp_path, CELL.name)


def test_a_damaged_journal_is_told_and_its_cell_runs_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path, CELL, "running")
    put(tmp_path, CELL, "done", result={"run": CELL.name})
    path = tmp_path / CELL.name / "job.jsonl"
    path.write_text(path.read_text().replace(f'"run": "{CELL.name}"', '"run": "elsewhere"'))
    assert CELL.state(tmp_path).status == "running"
    CELL.plan(tmp_path)
    assert capsys.readouterr().err == f"{path}: damaged after 1 item; what follows is done again\n"


def test_lost_and_gained_options_keep_the_stored_key(tmp_path: Path) -> None:
    put(tmp_path, CELL, "done", result={"run": CELL.name})

    def now(defaults: dict[str, float], data: str = "ab", **options: float) -> Cell:
        settings = {**SETTINGS, "options": options, "data": {"train": data}}
        return as_stored(tmp_path, Cell(CELL.name, "training", settings), defaults)

    assert now({}, seed=0).key == CELL.key  # the program has lost trainer.clip
    assert now({"model.drop": 0.0}, seed=0, **{"model.drop": 0.0}).key == CELL.key
    assert now({"model.drop": 0.0}, seed=0, **{"model.drop": 0.1}).key != CELL.key
    assert now({}, seed=0, **{"model.drop": 0.0}).key != CELL.key
    assert now({}, seed=1).key != CELL.key
    assert now({}, seed=0, data="cd").key != CELL.key
