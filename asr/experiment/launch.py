"""Executors of a comparison's jobs: worker processes here, submitit's jobs on SLURM or here, and Ray's tasks.

Each is a context manager that yields a function from `Job` to `Handle`.
"""

import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import yaml

from asr.config import by_key, user_code
from asr.config.values import read_value
from asr.errors import UserError, in_words
from asr.experiment.cell import Cell, is_done, read_cell, read_state, write_state
from asr.experiment.jobs import POLL_S, run_job, show_progress
from asr.experiment.options import CompareConfig
from asr.parallel import ray_cluster

FOREVER_MIN = 60 * 24 * 365  # submitit ends local jobs after five minutes unless it is told otherwise


@dataclass
class Job:
    """The work of a job, called on the machine that it was given to.

    Attributes:
        folder: folder of the comparison.
        names: cells of one model.
        host: machine that submitted the job; errors on other machines name these.
        code: files and modules of the user's own that the cells need.
    """

    folder: Path
    names: list[str]
    host: str = field(default_factory=platform.node)
    code: list[str] = field(default_factory=user_code.sources)

    def __call__(self) -> None:
        """Run the cells that are not done; their failures are recorded in their states."""
        if not self.folder.is_dir():
            raise UserError(
                f"{self.folder}: expected the folder of the comparison, found none: do the machines share it?"
            )
        user_code.load_all(self.code)
        cells = [
            cell for name in self.names if not is_done(self.folder, cell := read_cell(self.folder, name))
        ]
        run_job(self.folder, cells)
        for cell in cells:
            state = read_state(self.folder, cell.name)
            if state.status == "failed" and platform.node() != self.host:
                error = f"{platform.node()}: {state.error}"
                write_state(self.folder, cell, "failed", error=error, seconds=state.seconds)

    def checkpoint(self) -> Any:
        """Return what submitit runs when SLURM has interrupted the job and queues it again."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


class Handle(Protocol):
    """A submitted job: submitit's job, the future of Ray's task, or a job that has run here."""

    def done(self) -> bool:
        """Return whether it has ended."""

    def exception(self) -> BaseException | None:
        """Return why it failed, once it has ended."""


class Ended:
    """The handle of a job that has run here, in which the failures of cells are recorded."""

    def done(self) -> bool:
        """See `Handle`."""
        return True

    def exception(self) -> None:
        """See `Handle`."""


def launch(
    folder: Path, options: CompareConfig, jobs: list[list[Cell]], advance: Callable[[Cell, float], None]
) -> None:
    """Run jobs and wait for them; the cells of a lost job fail.

    Args:
        folder: folder of the comparison, shared by all machines.
        options: `launcher` and its options; without one, jobs run here, one after the other.
        jobs: cells of each job.
        advance: see `run_job`.

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
        running = [(submit(Job(folder.absolute(), [cell.name for cell in job])), job) for job in jobs]
        while running:
            show_progress(folder, [cell for _, job in running for cell in job], advance)
            # One call of done(): a job that ended between two would be forgotten, and its cells never fail.
            ended = [(handle, job) for handle, job in running if handle.done()]
            for handle, job in ended:
                _end(folder, job, handle.exception(), advance)
            running = [entry for entry in running if entry not in ended]
            if running:
                time.sleep(POLL_S)


@contextmanager
def _refusals(options: CompareConfig) -> Iterator[None]:
    """Name the launcher in errors of its library."""
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
    """Record the failure of a lost job in its cells that have not ended."""
    reason = in_words(getattr(error, "cause", None) or error) if error else "ended without a result"
    for cell in cells:
        if read_state(folder, cell.name).status not in ("done", "failed"):
            write_state(folder, cell, "failed", error=f"job lost: {reason}")
    show_progress(folder, cells, advance)


@contextmanager
def _here(
    folder: Path, advance: Callable[[Cell, float], None], launcher: str, jobs: Path, values: dict[str, Any]
) -> Iterator[Callable[[Job], Handle]]:
    """Yield a function that runs a job in worker processes and returns once it has ended."""

    def submit(job: Job) -> Handle:
        run_job(folder, [read_cell(folder, name) for name in job.names], advance)
        return Ended()

    yield submit


@contextmanager
def _submitit(launcher: str, folder: Path, values: dict[str, Any]) -> Iterator[Callable[[Job], Handle]]:
    """Yield a function that submits a job; `values` are the parameters of submitit's AutoExecutor."""
    import submitit

    executor = submitit.AutoExecutor(folder, cluster=launcher.removeprefix("submitit_"))
    defaults = {"timeout_min": FOREVER_MIN} if launcher == "submitit_local" else {}
    executor.update_parameters(**defaults | values)
    submitted: list[Any] = []

    def submit(job: Job) -> Handle:
        submitted.append(executor.submit(job))
        return submitted[-1]

    try:
        yield submit
    except BaseException:
        for job in submitted:
            job.cancel()
        raise


@contextmanager
def _ray(launcher: str, folder: Path, values: dict[str, Any]) -> Iterator[Callable[[Job], Handle]]:
    """Yield a function that submits a job; `values` are options of Ray's tasks, and its `address`."""
    import ray

    with ray_cluster(str(values.pop("address", None) or ""), values):
        run = ray.remote(_call).options(max_retries=0, **values)
        yield lambda job: run.remote(job).future()


def _call(job: Job) -> None:
    job()
