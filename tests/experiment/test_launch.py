"""Jobs of a comparison under submitit and Ray: killed processes, machines without the data, another start."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from comparisons import put

from asr.cli import main
from asr.errors import UserError
from asr.experiment import launch
from asr.experiment.cell import Cell, read_state
from asr.experiment.launch import Submission
from asr.experiment.options import CompareConfig


def cells_in(folder: Path, *names: str) -> list[Cell]:
    cells = [Cell(f"timings/{name}", "timing", {"models": []}) for name in names]
    for cell in cells:
        cell.plan(folder)
    return cells


def test_a_job_runs_what_is_not_done_and_errors_name_its_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = cells_in(tmp_path, "first", "second")
    put(tmp_path, first, "done")
    ran = []

    def run_cells(folder: Path, cells: list[Cell]) -> None:
        ran.extend(cell.name for cell in cells)
        put(folder, second, "failed", error="train.cuts.jsonl.gz: no such file")

    monkeypatch.setattr(launch, "run_cells", run_cells)
    monkeypatch.setattr(launch.platform, "node", lambda: "node7")
    Submission(tmp_path, [first, second], host="login")()
    assert ran == [second.name]  # what SLURM queues again has done the first before
    assert read_state(tmp_path, second.name).error == "node7: train.cuts.jsonl.gz: no such file"
    with pytest.raises(UserError, match="expected the folder of the comparison, found none: do the machines"):
        Submission(tmp_path / "elsewhere", [first])()


class Lost:
    """A job that is killed, or refused by a machine."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error

    def done(self) -> bool:
        return True

    def exception(self) -> Exception | None:
        return self.error


def test_the_cells_of_a_lost_job_have_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = cells_in(tmp_path, "done", "running", "missing", "silent")
    put(tmp_path, cells[0], "done")
    put(tmp_path, cells[1], "running")
    submitted = []

    def start(launcher: str, folder: Path, values: dict[str, Any]) -> Any:
        submitted.append((launcher, values))
        return contextlib.nullcontext(
            lambda job: Lost(None if "silent" in job.cells[0].name else MemoryError())
        )

    monkeypatch.setattr(launch, "_ray", start)
    options = CompareConfig(launcher="ray", launch=["num_gpus=0.5", "address=auto"])
    advanced = []
    launch.launch(
        tmp_path, options, [cells[:3], cells[3:]], lambda cell, fraction: advanced.append(cell.name)
    )
    assert submitted == [("ray", {"num_gpus": 0.5, "address": "auto"})]
    states = [read_state(tmp_path, cell.name) for cell in cells]
    assert [state.status for state in states] == ["done", "failed", "failed", "failed"]
    assert [state.error for state in states[1:]] == ["job lost: out of memory"] * 2 + [
        "job lost: ended without a result"
    ]
    assert {cell.name for cell in cells} <= set(advanced)


def test_a_job_that_ends_between_two_looks_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that ended after the first of two calls of done() was forgotten, and its cells never failed."""

    class Ending(Lost):
        looks = 0

        def done(self) -> bool:
            self.looks += 1
            return self.looks > 1

    cells = cells_in(tmp_path, "running")
    put(tmp_path, cells[0], "running")
    monkeypatch.setattr(launch, "POLL_S", 0.0)
    monkeypatch.setattr(launch, "_ray", lambda *_: contextlib.nullcontext(lambda job: Ending(MemoryError())))
    launch.launch(tmp_path, CompareConfig(launcher="ray"), [cells], lambda cell, fraction: None)
    state = read_state(tmp_path, cells[0].name)
    assert (state.status, state.error) == ("failed", "job lost: out of memory")


def test_refused_options_are_one_line(tmp_path: Path) -> None:
    pytest.importorskip("submitit", reason="needs the extra clustered-asr[launchers]")
    cells = cells_in(tmp_path, "a")
    for launcher, override, message in [
        ("submitit_local", "colour=red", "colour"),
        ("submitit_slurm", "slurm_partition=gpu", "srun"),
    ]:
        with pytest.raises(UserError, match=f"launcher={launcher} launch=.*{message}"):
            launch.launch(tmp_path, CompareConfig(launcher=launcher, launch=[override]), [cells], print)


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Iterator[str]:
    """Yield the name of a launcher, with a Ray cluster where it needs one."""
    name = "ray" if request.param == "ray" else "submitit"
    module = pytest.importorskip(name, reason="needs the extra clustered-asr[launchers]")
    if request.param == "ray":
        module.init(num_cpus=2, include_dashboard=False, object_store_memory=int(1e8), log_to_driver=False)
    yield request.param
    if request.param == "ray":
        module.shutdown()


def processes(*parts: str) -> list[int]:
    """Return the processes whose command line has all parts."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if all(any(part in argument for argument in command) for part in parts):
            found.append(int(path.parent.name))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cluster", "victim", "reason"),
    [
        ("submitit_local", ["submitit.core._submit"], "job lost: "),
        ("ray", ["asr.experiment.worker", "trainings/full/seed0"], "worker killed by signal 9"),
    ],
    indirect=["cluster"],
)
def test_a_comparison_goes_on_after_a_kill(
    cluster: str,
    victim: list[str],
    reason: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The jobs of two models; a process of the first is killed as soon as the model trains.

    Evaluations and timing, which are left out, are jobs like trainings.
    """
    monkeypatch.setattr("asr.library.write_report", lambda results, folder: folder / "report.html")
    monkeypatch.setattr("asr.experiment.run._evaluations", lambda plan, trainings: [])
    monkeypatch.setattr("asr.experiment.run.timing_cells", lambda plan: [])
    arguments = ["compare", "recipe=copy", "recipe.length=5", "model.layers=1", "model.heads=1", "reuse=none"]
    arguments += ["attentions=[full,linear]", "steps=150", "trainer.accelerator=cpu", f"folder={tmp_path}"]
    arguments += [f"launcher={cluster}", "trainer.threads=1", "evaluate=[own]", "timing_repeats=1"]
    trained = "trainings/full/seed0"

    def kill() -> None:
        while read_state(tmp_path, trained).status != "running":
            time.sleep(0.02)
        first = [pid for pid in processes(*victim) if trained in Path(f"/proc/{pid}/cmdline").read_text()]
        # submitit's command line names the folder of jobs only; the first job has the lowest process id
        os.kill((first or sorted(processes(*victim, str(tmp_path))))[0], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    assert main(arguments) == 1
    killer.join()
    assert f"1 cell failed ({trained})" in capsys.readouterr().err
    state = read_state(tmp_path, trained)
    assert (state.error or "").startswith(reason)
    before = (tmp_path / "trainings" / "linear" / "seed0" / "job.jsonl").stat().st_mtime_ns
    assert main(arguments) == 0
    assert read_state(tmp_path, trained).status == "done"
    assert (tmp_path / "trainings" / "linear" / "seed0" / "job.jsonl").stat().st_mtime_ns == before
