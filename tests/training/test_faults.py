"""Training that is disturbed and resumed ends with the same files as undisturbed training.

Jobs are forked from a server that has imported everything, because imports take longer than a job.
"""

import contextlib
import io
import multiprocessing
import os
import random
import resource
import signal
import sys
import time
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from processes import fork_server
from runs import metrics
from tone_corpora import TINY, make_corpus

import asr.files
from asr.cli import main
from asr.errors import UserError
from asr.model import checkpoint
from asr.training.config import train_options
from asr.training.recognition import RecognitionTask
from asr.training.run import _named_failures, train

STEPS = 12
OVERRIDES = [
    *TINY,
    "model.dropout=0.1",
    "augment.frequency_masks=2",
    "augment.speed_factors=[0.9,1.0,1.1]",
    "trainer.threads=1",
    f"trainer.max_steps={STEPS}",
    "trainer.validate_every=5",
    "trainer.checkpoint_every=3",
    "trainer.keep_best=2",
    "trainer.average_best=2",
    "resume=auto",
]


@dataclass(frozen=True)
class Fault:
    """A disturbance at the n-th event of a job: a step, or the opening, filling, linking … of a file.

    `number` is a signal to the job; `worker` and `disk` hit its data-loading process and its writers.
    """

    event: int
    number: int = 0
    worker: bool = False
    disk: bool = False


def disturb(folder: str, fault: Fault) -> list[int]:
    """Arm the fault in this process; return the list whose only item counts events."""
    process, count = os.getpid(), [0]

    def happen(name: str, arguments: tuple[Any, ...]) -> None:
        about = name.startswith("test.") or folder in str(arguments[:2])
        if not about or os.getpid() != process:
            return
        count[0] += 1
        if count[0] != fault.event:
            return
        if fault.worker:
            workers = multiprocessing.active_children()
            count[0] -= not workers  # none yet: at the next event
            for worker in workers:
                os.kill(worker.pid or 0, signal.SIGKILL)
        elif fault.disk:
            resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
        else:
            os.kill(process, fault.number)

    step, sync, write = RecognitionTask.training_step, os.fsync, torch.save

    def training_step(*arguments: Any) -> torch.Tensor:
        sys.audit("test.step")
        return step(*arguments)

    def fsync(file: int) -> None:
        sys.audit("test.fsync")
        sync(file)

    def save(content: Any, file: Any) -> None:
        memory = io.BytesIO()
        write(content, memory)
        half = len(memory.getvalue()) // 2
        file.write(memory.getvalue()[:half])
        file.flush()
        sys.audit("test.half")
        file.write(memory.getvalue()[half:])

    RecognitionTask.training_step = training_step  # type: ignore[method-assign,assignment]
    asr.files.os.fsync = fsync  # type: ignore[attr-defined]
    torch.save = save  # type: ignore[assignment]
    sys.addaudithook(happen)
    return count


def job(overrides: list[str], folder: str, fault: Fault | None, output: str) -> None:
    os.setsid()
    multiprocessing.set_start_method("fork", force=True)  # the default of a process started with asr train
    for stream in (1, 2):
        os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
    count = disturb(folder, fault) if fault else [0]
    status = main(["train", *overrides, f"run={folder}"])
    print("events", count[0], flush=True)
    sys.exit(status)


def living(group: int) -> list[str]:
    """Return the states of a process group's processes, except zombies."""
    states = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, its_group = path.read_text().rpartition(") ")[2].split()[:3]
            states += [state] if its_group == str(group) and state != "Z" else []
    return states


class Jobs:
    """Starts jobs on a run folder and looks at what they leave behind."""

    def __init__(self, corpus: Path, folder: Path, *overrides: str) -> None:
        self.overrides = [*OVERRIDES, f"data.train=[{corpus}]", *overrides]
        self.folder = folder
        self.output = folder.with_suffix(".txt")

    def start(self, fault: Fault | None = None) -> BaseProcess:
        context = fork_server()
        self.output.unlink(missing_ok=True)
        arguments = (self.overrides, str(self.folder), fault, str(self.output))
        process = context.Process(target=job, args=arguments)
        process.start()
        assert process.pid is not None
        return process

    def run(self, fault: Fault | None = None) -> int:
        """Run a job, wait until no process is left, and return its exit status."""
        process = self.start(fault)
        process.join()
        assert process.exitcode is not None
        while living(process.pid):  # a killed job's workers end by themselves, or the test times out
            time.sleep(0.01)
        return process.exitcode

    @property
    def events(self) -> int:
        return int(self.output.read_text().split()[-1])

    def error(self) -> str:
        """Return the one line of the error."""
        text = self.output.read_text()
        assert "Traceback" not in text, text
        lines = [line for line in text.splitlines() if line.startswith("asr: ")]
        assert len(lines) == 1, text
        return lines[0]

    def outcome(self) -> dict[str, Any]:
        """Return everything that must not depend on disturbances."""
        rows = metrics(self.folder)
        for row in rows:
            del row["frames_per_s"], row["train_s"], row["train_cpu_s"]
        names = {path.name for place in ("", "checkpoints") for path in (self.folder / place).iterdir()}
        states = {path.name: checkpoint.load(path) for path in self.folder.glob("checkpoints/*.ckpt")}
        kept = ("model", "run", "step", "optimizer_states", "lr_schedulers", "counts", "dev_error")
        contents = {name: {key: state.get(key) for key in kept} for name, state in states.items()}
        return {"rows": rows, "names": names} | contents | {"previous.ckpt": None}


def assert_equal(one: Any, other: Any, where: str = "") -> None:
    """Compare nested data with tensors, bit by bit."""
    if isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key in one:
            assert_equal(one[key], other[key], f"{where} {key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), where
        for i, (a, b) in enumerate(zip(one, other, strict=True)):
            assert_equal(a, b, f"{where} {i}")
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other), where
    else:
        assert one == other, where


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_corpus(tmp_path_factory.mktemp("data") / "tones", {"train": 30, "dev": 4})


@pytest.fixture(scope="module")
def undisturbed(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], int]:
    """The outcome of an undisturbed job and its number of events."""
    jobs = Jobs(corpus, tmp_path_factory.mktemp("exp") / "whole")
    assert jobs.run(Fault(event=0)) == 0, jobs.output.read_text()
    return jobs.outcome(), jobs.events


STATUS = {signal.SIGKILL: -signal.SIGKILL, signal.SIGTERM: 143, signal.SIGINT: 130}


def disturbed(jobs: Jobs, faults: list[Fault]) -> list[Fault]:
    """Run jobs until one ends undisturbed; return the faults that remain."""
    while faults:
        fault, *faults = faults
        status = jobs.run(fault)
        if status == 0:  # the job had fewer events
            return faults
        assert status == STATUS[signal.Signals(fault.number)], jobs.output.read_text()
        text = jobs.output.read_text()
        assert "Traceback" not in text, text
        assert fault.number == signal.SIGKILL or f"stopped by {signal.Signals(fault.number).name}" in text
    assert jobs.run() == 0, jobs.output.read_text()
    return []


@pytest.mark.slow
@pytest.mark.parametrize(("kills", "workers"), [(4, 0), pytest.param(20, 1, marks=pytest.mark.exhaustive)])
def test_jobs_killed_at_random_moments(
    kills: int, workers: int, corpus: Path, tmp_path: Path, undisturbed: tuple[dict[str, Any], int]
) -> None:
    """Only kills between steps were tested, not those while files are written."""
    outcome, events = undisturbed
    draw = random.Random(kills)
    faults = [Fault(draw.randrange(1, events), signal.SIGKILL) for _ in range(kills)]
    while faults:
        jobs = Jobs(corpus, tmp_path / f"run{len(faults)}", f"data.workers={workers}")
        faults = disturbed(jobs, faults)
        assert_equal(jobs.outcome(), outcome)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("count", [2, pytest.param(10, marks=pytest.mark.exhaustive)])
def test_jobs_stopped_at_random_moments(
    number: int, count: int, corpus: Path, tmp_path: Path, undisturbed: tuple[dict[str, Any], int]
) -> None:
    """SIGTERM and Ctrl-C ended training with status 0 and 1, lost the steps since the last resume point, and
    said nothing.
    """
    outcome, events = undisturbed
    draw = random.Random(number + count)
    faults = [Fault(draw.randrange(1, events), number) for _ in range(count)]
    while faults:
        jobs = Jobs(corpus, tmp_path / f"run{len(faults)}")
        faults = disturbed(jobs, faults)
        assert_equal(jobs.outcome(), outcome)


@pytest.mark.slow
def test_a_full_disk_ends_the_job(
    corpus: Path, tmp_path: Path, undisturbed: tuple[dict[str, Any], int]
) -> None:
    """Training went on without resume points, ended with status 0, and could not be completed later."""
    outcome, events = undisturbed
    jobs = Jobs(corpus, tmp_path / "run")
    assert jobs.run(Fault(events // 2, disk=True)) == 1
    assert "File too large" in jobs.error()
    assert not list(jobs.folder.rglob("*.partial"))
    assert jobs.run() == 0
    assert_equal(jobs.outcome(), outcome)


def test_a_dead_loading_process_is_named_wherever_its_error_is_raised(tmp_path: Path) -> None:
    """PyTorch's signal handler raised it in `inspect.getfullargspec`, which made a TypeError of it."""
    options = train_options(["recipe=folder", "data.workers=1"])
    wrapped = TypeError("unsupported callable")
    wrapped.__cause__ = RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed.")
    message = r"data-loading process died .*lower data\.workers=1"
    with pytest.raises(UserError, match=message), _named_failures(options, tmp_path):
        raise wrapped
    with pytest.raises(TypeError, match="another"), _named_failures(options, tmp_path):
        raise TypeError("another")
    with pytest.raises(BrokenPipeError), _named_failures(options, tmp_path):  # asr train | head
        raise BrokenPipeError


@pytest.mark.slow
def test_a_dead_loading_process_ends_the_job(
    corpus: Path, tmp_path: Path, undisturbed: tuple[dict[str, Any], int]
) -> None:
    """A dead data-loading process ended training with a traceback."""
    outcome, events = undisturbed
    jobs = Jobs(corpus, tmp_path / "run", "data.workers=1")
    assert jobs.run(Fault(events // 2, worker=True)) == 1
    assert "a data-loading process died (out of memory?): lower data.workers=1" in jobs.error()
    assert jobs.run() == 0
    assert_equal(jobs.outcome(), outcome)


def test_two_jobs_on_one_folder(
    corpus: Path, tmp_path: Path, undisturbed: tuple[dict[str, Any], int]
) -> None:
    """Two jobs on one folder wrote the same files."""
    outcome, events = undisturbed
    jobs = Jobs(corpus, tmp_path / "run")
    first = jobs.start(Fault(events // 2, signal.SIGSTOP))
    assert first.pid is not None
    while living(first.pid) != ["T"]:
        time.sleep(0.01)
    assert jobs.run() == 1
    assert f"{jobs.folder}: another asr train is running in this folder" in jobs.error()
    os.kill(first.pid, signal.SIGCONT)
    first.join()
    assert first.exitcode == 0
    assert_equal(jobs.outcome(), outcome)


@pytest.mark.slow
def test_data_that_changes_under_a_job(
    corpus: Path, tmp_path: Path, undisturbed: tuple[dict[str, Any], int]
) -> None:
    """A resumed run went on with other data, and its environment.json named only the new data."""
    outcome, events = undisturbed
    jobs = Jobs(corpus, tmp_path / "run")
    assert jobs.run(Fault(events // 2, signal.SIGKILL)) == -signal.SIGKILL
    records = {path: path.read_bytes() for path in jobs.folder.glob("*.*")}
    dev = corpus / "dev.cuts.jsonl.gz"
    original = dev.read_bytes()
    try:
        dev.write_bytes((corpus / "train.cuts.jsonl.gz").read_bytes())
        assert jobs.run() == 1
        assert f"inputs have changed since the run began: data.{dev} " in jobs.error()
        assert {path: path.read_bytes() for path in jobs.folder.glob("*.*")} == records
    finally:
        dev.write_bytes(original)
    assert jobs.run() == 0
    assert_equal(jobs.outcome(), outcome)


class Memory(lightning.Callback):
    """Records resident memory."""

    def __init__(self) -> None:
        self.mib: dict[int, float] = {}

    def on_train_batch_end(self, trainer: lightning.Trainer, *_: Any) -> None:
        if trainer.global_step % 500 == 0:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            self.mib[trainer.global_step] = pages * resource.getpagesize() / 2**20


@pytest.mark.exhaustive
def test_memory_stays_flat(corpus: Path, tmp_path: Path) -> None:
    """1,500 steps with validation and resume points need less than 20 MiB more."""
    memory = Memory()
    overrides = [*OVERRIDES, f"data.train=[{corpus}]", f"run={tmp_path}", "trainer.max_steps=2000"]
    train(train_options([*overrides, "trainer.validate_every=50", "trainer.checkpoint_every=50"]), [memory])
    print(memory.mib)
    assert memory.mib[2000] - memory.mib[500] < 20
