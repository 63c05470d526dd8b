"""Executors of a comparison: worker processes here, submitit's jobs on SLURM or here, and Ray's tasks.

Each is a context manager that yields `Submit`.
"""

import platform
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import yaml

from asr.config import by_key, user_code
from asr.config.values import read_value
from asr.errors import UserError, in_words
from asr.experiment.cell import Cell
from asr.experiment.options import CompareConfig
from asr.experiment.processes import POLL_S, run_cells, show_progress
from asr.parallel import ray_cluster

FOREVER_MIN = 60 * 24 * 365  # submitit's default ends local jobs after five minutes


@dataclass
class Submission:
    """Cells for one process; called on the machine that runs them.

    Attributes:
        folder: folder of the comparison.
        cells: cells of one model.
        host: machine that submitted them; on other machines, errors name the machine.
        code: the user's files and modules that the cells need.
    """

    folder: Path
    cells: list[Cell]
    host: str = field(default_factory=platform.node)
    code: list[str] = field(default_factory=user_code.sources)

    def __call__(self) -> None:
        """Run the cells that are not done; their journals record failures."""
        if not self.folder.is_dir():
            raise UserError(
                f"{self.folder}: expected the folder of the comparison, found none: do the machines share it?"
            )
        user_code.load_all(self.code)
        cells = [cell for cell in self.cells if not cell.is_done(self.folder)]
        run_cells(self.folder, cells)
        for cell in cells:
            state = cell.state(self.folder)
            if state.status == "failed" and platform.node() != self.host:
                cell.job(self.folder).end(error=f"{platform.node()}: {state.error}", seconds=state.seconds)

    def checkpoint(self) -> Any:
        """Return the work that submitit queues again after SLURM has interrupted it."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


class Handle(Protocol):
    """A submission: submitit's job, the future of a Ray task, or cells that have run here."""

    def done(self) -> bool:
        """Return whether it has ended."""

    def exception(self) -> BaseException | None:
        """Return the exception with which it failed, once it has ended."""


Submit = Callable[[Submission], Handle]


def launch(
    folder: Path, options: CompareConfig, groups: list[list[Cell]], advance: Callable[[Cell, float], None]
) -> None:
    """Run groups of cells and wait for them; the cells of a lost group fail.

    Args:
        folder: folder of the comparison, shared by all machines.
        options: `launcher` and its options; without a launcher, groups run here, one after another.
        groups: groups of cells, each for one process.
        advance: see `run_cells`.

    Raises:
        UserError: the launcher is not installed, or refuses the options.
    """
    try:
        values = {key: read_value(value, "Any") for key, value in by_key(options.launch).items()}
    except yaml.YAMLError:
        raise UserError(f"launch={options.launch}: expected values in YAML, such as mem_gb=8") from None
    executors = {"ray": _ray, "submitit_local": _submitit, "submitit_slurm": _submitit}
    start = executors.get(options.launcher, partial(_here, folder, advance))
    with (
        _refusals(options) if options.launcher else nullcontext(),
        start(options.launcher, folder / "jobs", values) as submit,
    ):
        running = [(submit(Submission(folder.absolute(), cells)), cells) for cells in groups]
        while running:
            show_progress(folder, [cell for _, cells in running for cell in cells], advance)
            # done() is asked once per round: a job that ended between two calls would be lost.
            ended = [(handle, cells) for handle, cells in running if handle.done()]
            for handle, cells in ended:
                _end(folder, cells, handle.exception(), advance)
            running = [entry for entry in running if entry not in ended]
            if running:
                time.sleep(POLL_S)


@contextmanager
def _refusals(options: CompareConfig) -> Iterator[None]:
    """Add the launcher's name to errors of its library."""
    try:
        yield
    except ImportError as error:
        raise UserError(
            f"launcher={options.launcher}: needs {error.name}: pip install 'clustered-asr[launchers]'"
        ) from None
    except (NameError, TypeError, ValueError, RuntimeError, ConnectionError) as error:
        raise UserError(f"launcher={options.launcher} launch={options.launch}: {in_words(error)}") from error


def _end(
    folder: Path, cells: list[Cell], error: BaseException | None, advance: Callable[[Cell, float], None]
) -> None:
    """Record the failure of a lost group in its cells that have not ended."""
    reason = in_words(getattr(error, "cause", None) or error) if error else "ended without a result"
    for cell in cells:
        if cell.state(folder).record is None:
            cell.job(folder).end(error=f"job lost: {reason}")
    show_progress(folder, cells, advance)


@contextmanager
def _here(
    folder: Path, advance: Callable[[Cell, float], None], launcher: str, jobs: Path, values: dict[str, Any]
) -> Iterator[Submit]:
    """Yield a function that runs cells in worker processes and returns once they have ended."""

    def submit(submission: Submission) -> Handle:
        run_cells(folder, submission.cells, advance)
        ended: Future[None] = Future()
        ended.set_result(None)  # journals record failures
        return ended

    yield submit


@contextmanager
def _submitit(launcher: str, folder: Path, values: dict[str, Any]) -> Iterator[Submit]:
    """Yield a function that submits cells; `values` are the parameters of submitit's AutoExecutor."""
    import submitit

    executor = submitit.AutoExecutor(folder, cluster=launcher.removeprefix("submitit_"))
    defaults = {"timeout_min": FOREVER_MIN} if launcher == "submitit_local" else {}
    executor.update_parameters(**defaults | values)
    submitted: list[Any] = []

    def submit(submission: Submission) -> Handle:
        submitted.append(executor.submit(submission))
        return submitted[-1]

    try:
        yield submit
    except BaseException:
        for job in submitted:
            job.cancel()
        raise


@contextmanager
def _ray(launcher: str, folder: Path, values: dict[str, Any]) -> Iterator[Submit]:
    """Yield a function that submits cells; `values` are options of Ray's tasks, and its `address`."""
    import ray

    with ray_cluster(str(values.pop("address", None) or ""), values):
        run = ray.remote(_call).options(max_retries=0, **values)
        yield lambda submission: run.remote(submission).future()


def _call(submission: Submission) -> None:
    submission()
