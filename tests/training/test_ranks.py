"""Training on several processes takes the same steps as on one, also when it resumes on another number.

The processes are forked from a server that has imported everything, with the variables that torchrun sets;
both "machines" are this one.
"""

import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TextIO

import pytest
import torch
from lightning.pytorch.plugins.environments import LightningEnvironment
from lightning.pytorch.utilities import rank_zero_only
from processes import Asr, fork_server, in_a_fork
from runs import metrics, weights
from tone_corpora import TINY, make_corpus

import asr.training.optimizer
from asr.cli import main
from asr.errors import UserError
from asr.model import checkpoint
from asr.training import ranks
from asr.training.optimizer import build_optimizer
from asr.training.options import OptimizerConfig, TrainerConfig
from asr.training.recognition import RecognitionTask

EPOCHS = 4
OVERRIDES = [
    *TINY,
    "model.head_dim=8",
    "model.feedforward=32",
    "data.frames_per_batch=450",
    "optimizer.schedule=constant",
    "optimizer.warmup_steps=0",
    f"trainer.max_epochs={EPOCHS}",
    "trainer.validate_every=3",
    "trainer.checkpoint_every=2",
    "trainer.threads=1",
    "resume=auto",
]
STEP = 4  # batches of a step, on any number of processes


def gentle(parameters: dict[str, torch.nn.Parameter], config: OptimizerConfig) -> torch.optim.Optimizer:
    """Return AdamW that does not magnify the rounding of small gradients."""
    optimizer = build_optimizer(parameters, config)
    for group in optimizer.param_groups:
        group["eps"] = 0.1
    return optimizer


@dataclass(frozen=True)
class Trouble:
    """What happens to a rank before its step: SIGKILL, or the signal that announces the end of its job."""

    rank: int
    step: int
    number: signal.Signals


def job(
    overrides: list[str],
    optimizer: Callable[..., torch.optim.Optimizer],
    rank: int,
    place: dict[str, str],
    output: Path,
    trouble: Trouble | None,
) -> None:
    """Train as one of several processes."""
    os.environ |= place
    with (
        output.open("a") as file,
        output.with_suffix(".seen").open("a") as seen,
        contextlib.redirect_stderr(file),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        try:
            status = disturbed_train(overrides, optimizer, rank, trouble, seen)
        except SystemExit as stop:
            status = int(stop.code or 0)
    os._exit(status)  # without waiting for the other ranks


def disturbed_train(
    overrides: list[str],
    optimizer: Callable[..., torch.optim.Optimizer],
    rank: int,
    trouble: Trouble | None,
    seen: TextIO,
) -> int:
    """Train, and write step, epoch and utterances of every batch; return the exit status."""
    rank_zero_only.rank = rank  # type: ignore[attr-defined]  # set by an import, before the fork
    asr.training.optimizer.build_optimizer = optimizer
    step = RecognitionTask.training_step

    def training_step(task: RecognitionTask, batch: Any, index: int) -> torch.Tensor:
        first = index % task.trainer.accumulate_grad_batches == 0  # a second signal is not deferred
        if trouble and first and (rank, task.global_step) == (trouble.rank, trouble.step):
            os.kill(os.getpid(), trouble.number)
        print(json.dumps([task.global_step, batch.plan.epoch, batch.ids]), file=seen, flush=True)
        return step(task, batch, index)

    RecognitionTask.training_step = training_step  # type: ignore[assignment, method-assign]
    return main(["train", *overrides])


def torchrun_place(rank: int, nodes: int, devices: int, port: int) -> dict[str, str]:
    """Return the variables that torchrun sets."""
    variables = {"RANK": rank, "GROUP_RANK": rank // devices, "LOCAL_RANK": rank % devices}
    variables |= {"WORLD_SIZE": nodes * devices, "LOCAL_WORLD_SIZE": devices, "MASTER_PORT": port}
    text = {name: str(value) for name, value in variables.items()}
    return text | {"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RUN_ID": "tests"}


def slurm_place(rank: int, nodes: int, devices: int, port: int) -> dict[str, str]:
    """Return the variables that srun sets."""
    variables = {"PROCID": rank, "NODEID": rank // devices, "LOCALID": rank % devices}
    variables |= {"NTASKS": nodes * devices, "NTASKS_PER_NODE": devices, "JOB_ID": 7}
    text = {f"SLURM_{name}": str(value) for name, value in variables.items()}
    text |= {"SLURM_JOB_NAME": "tests", "SLURM_NODELIST": "127.0.0.1"}
    return text | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def free_port() -> int:
    with socket.socket() as open_socket:
        open_socket.bind(("127.0.0.1", 0))
        return int(open_socket.getsockname()[1])


class Ranks:
    """Trains in a run folder on any number of processes.

    Attributes:
        folder: run folder.
        optimizer: replaces `build_optimizer`.
    """

    def __init__(
        self,
        corpus: Path,
        folder: Path,
        *overrides: str,
        optimizer: Callable[..., torch.optim.Optimizer] = gentle,
    ) -> None:
        self.overrides = [*OVERRIDES, f"data.train=[{corpus}]", f"run={folder}", *overrides]
        self.folder = folder
        self.optimizer = optimizer

    def output(self, rank: int) -> Path:
        return self.folder.with_name(f"{self.folder.name}-{rank}.txt")

    def run(
        self,
        nodes: int,
        devices: int,
        *overrides: str,
        place: Callable[[int, int, int, int], dict[str, str]] = torchrun_place,
        trouble: Trouble | None = None,
    ) -> dict[int, int | None]:
        """Train on nodes × devices processes; return the exit status of each rank."""
        context = fork_server()
        count, port = nodes * devices, free_port()
        own = [*self.overrides, f"trainer.nodes={nodes}", f"trainer.devices={devices}"]
        own += [f"trainer.accumulate={STEP // count}", *overrides]
        processes: list[BaseProcess] = []
        for rank in range(count):
            variables = place(rank, nodes, devices, port) if count > 1 else {}
            arguments = (own, self.optimizer, rank, variables, self.output(rank), trouble)
            process = context.Process(target=job, args=arguments)
            process.start()
            processes.append(process)
        for process in processes:
            process.join()
        return {rank: process.exitcode for rank, process in enumerate(processes)}

    def said(self) -> list[str]:
        """Return what the ranks wrote to standard error."""
        return [self.output(rank).read_text() for rank in range(4) if self.output(rank).exists()]

    def seen(self) -> Counter[tuple[int, str]]:
        """Return how often training saw each utterance in each epoch, repeated steps counted once."""
        steps: dict[tuple[int, int, int], list[Any]] = {}
        for rank in range(4):
            path = self.output(rank).with_suffix(".seen")
            for line in path.read_text().splitlines() if path.exists() else []:
                step, epoch, ids = json.loads(line)
                steps[step, epoch, ids[0]] = ids
        return Counter((epoch, name) for (_, epoch, _), ids in steps.items() for name in ids)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With five batches in an epoch, turns of ranks and steps cross the borders of epochs."""
    return make_corpus(tmp_path_factory.mktemp("data") / "tones", {"train": 23, "dev": 5})


@pytest.fixture(scope="module")
def alone(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    """A run on one process."""
    run = Ranks(corpus, tmp_path_factory.mktemp("exp") / "alone")
    assert run.run(1, 1) == {0: 0}, run.said()
    assert set(run.seen().values()) == {1}
    return run


def assert_same_run(found: Ranks, expected: Ranks) -> None:
    """Weights differ by rounding only: ranks sum gradients in another order."""
    one, other = weights(found.folder), weights(expected.folder)
    assert max(float((one[name].double() - other[name]).abs().max()) for name in other) < 1e-4
    assert found.seen() == expected.seen()
    rows, wanted = metrics(found.folder), metrics(expected.folder)
    assert [row["step"] for row in rows] == [row["step"] for row in wanted]
    for row, expectation in zip(rows, wanted, strict=True):
        # The loss was the first process's, and its last batch's.
        assert float(row["loss"]) == pytest.approx(float(expectation["loss"]), rel=1e-3)
        if expectation["dev_loss"]:  # a run that is to be extended validates at its end, too
            assert float(row["dev_loss"]) == pytest.approx(float(expectation["dev_loss"]), rel=1e-4)
    summaries = [json.loads((run.folder / "training.json").read_text()) for run in (found, expected)]
    for key in ("steps", "epochs", "dev_error_rate"):
        assert summaries[0][key] == summaries[1][key], key


@pytest.mark.slow
@pytest.mark.parametrize("places", [[(2, 2), (1, 2), (1, 1)], [(1, 1), (1, 4)]], ids=str)
def test_any_number_of_processes_takes_the_same_steps(
    places: list[tuple[int, int]], corpus: Path, tmp_path: Path, alone: Ranks
) -> None:
    """Batches of an epoch were repeated where the ranks did not divide their number, and a run could resume
    only on as many processes as before.
    """
    run = Ranks(corpus, tmp_path / "run")
    for steps, (nodes, devices) in enumerate(places, start=2):
        length = [f"trainer.max_steps={steps}"] if (nodes, devices) != places[-1] else []
        assert set(run.run(nodes, devices, *length).values()) == {0}, run.said()
    assert_same_run(run, alone)


@pytest.mark.slow
def test_two_ranks_share_the_sparse_matrices_of_a_loss(corpus: Path, tmp_path: Path) -> None:
    """`loss=mmi` with n-grams longer than bigrams ended with a traceback: DDP broadcast sparse matrices."""
    run = Ranks(corpus, tmp_path / "run", "loss=mmi", "loss.order=3", "trainer.max_epochs=1")
    assert set(run.run(1, 2).values()) == {0}, run.said()


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_killed_ends_all(rank: int, corpus: Path, tmp_path: Path, alone: Ranks) -> None:
    """The others ended with a traceback."""
    run = Ranks(corpus, tmp_path / "run")
    status = run.run(1, 2, trouble=Trouble(rank, 3, signal.SIGKILL))
    assert status == {rank: -signal.SIGKILL, 1 - rank: 1}
    text = run.said()[1 - rank]
    assert "Traceback" not in text
    named = "asr: " if rank else "asr: rank 1 on "
    (line,) = [line for line in text.splitlines() if line.startswith("asr: ")]
    assert line.startswith(named)
    assert line.endswith(f"{run.folder}: another of 2 processes ended; resume=auto continues this run")
    assert set(run.run(1, 2).values()) == {0}
    assert_same_run(run, alone)


def start_three(errors: Path) -> None:
    """Start two other ranks, of which one ends at once; write standard error to a file."""
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT), 2)
    ranks.GRACE_S = 0
    launcher = ranks.Launcher(LightningEnvironment(), 3, 1)
    programs = ("raise SystemExit(3)", "import time; time.sleep(600)")
    launcher._call_children_scripts = lambda: launcher.procs.extend(  # type: ignore[method-assign]
        subprocess.Popen([sys.executable, "-S", "-c", program]) for program in programs
    )
    launcher.launch(lambda: time.sleep(600))


def test_a_rank_that_fails_to_start_ends_the_first(tmp_path: Path) -> None:
    """Lightning killed the first process, without a message."""
    errors = tmp_path / "errors.txt"
    assert in_a_fork(start_three, errors) == 1
    assert errors.read_text() == "asr: one of 3 processes failed to start\n"


@pytest.mark.slow
def test_a_slurm_job_is_told_to_end_and_continues(corpus: Path, tmp_path: Path, alone: Ranks) -> None:
    """Lightning put the job into the queue with a checkpoint of its own, which took the place of ours."""
    run = Ranks(corpus, tmp_path / "run")
    told = Trouble(1, 2, signal.SIGUSR1)  # SLURM tells all, but not at the same time
    assert run.run(1, 2, place=slurm_place, trouble=told) == {0: 128 + signal.SIGUSR1, 1: 0}
    assert checkpoint.load(run.folder / "checkpoints" / "last.ckpt")["global_step"] == 3
    assert not list(run.folder.rglob("hpc_ckpt*"))
    assert run.run(1, 2, place=slurm_place) == {0: 0, 1: 0}
    assert_same_run(run, alone)


def test_more_processes_than_cores_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """trainer.devices=1000 started a thousand processes on the CPU."""
    monkeypatch.setattr("asr.training.ranks.available_cores", lambda: 4)
    ranks.check_processes(TrainerConfig(devices=4, accelerator="cpu"))
    with pytest.raises(UserError, match=r"^trainer\.devices=1000: expected at most 4 processes, as many as"):
        ranks.check_processes(TrainerConfig(devices=1000, accelerator="cpu"))
    monkeypatch.setenv("LOCAL_RANK", "0")  # a launcher's processes
    ranks.check_processes(TrainerConfig(devices=1000, accelerator="cpu"))


def test_training_says_what_it_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_PORT", "29500")
    assert ranks.waiting(LightningEnvironment(), 2, 4, 1800.0) == (
        "waiting for 2 machines with 4 processes each, which a launcher starts, at 127.0.0.1:29500 for up to "
        "30 min 00 s"
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_wait_for_other_machines(
    number: signal.Signals, corpus: Path, tmp_path: Path
) -> None:
    """PyTorch waits in C++ for up to half an hour, where Python's handlers don't run."""
    options = [*OVERRIDES, f"data.train=[{corpus}]", f"run={tmp_path / 'run'}", "trainer.nodes=2"]
    with open(tmp_path / "said", "w+") as said:
        asr = Asr(["train", *options], stderr=said.fileno(), MASTER_PORT=str(free_port()))
        while "waiting for 2 machines" not in (tmp_path / "said").read_text():
            assert asr.poll() is None, (tmp_path / "said").read_text()
            time.sleep(0.05)
        os.kill(asr.pid, number)
        assert asr.wait() == 128 + number
    assert f"asr: stopped by {number.name} before the first step" in (tmp_path / "said").read_text()


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"NODE_RANK": "x"}, "NODE_RANK=x: expected a whole number"),
        ({"NODE_RANK": "3"}, "NODE_RANK=3: expected a number below 1, with trainer.nodes=1"),
        ({"MASTER_PORT": "x"}, "MASTER_PORT=x: expected a whole number"),
        ({"SLURM_NTASKS": "4"}, "SLURM_NTASKS=4: expected 1, with trainer.nodes=1"),
        ({"SLURM_NTASKS": "1", "SLURM_LOCALID": "2"}, "SLURM_LOCALID=2: expected a number below 1"),
    ],
)
def test_variables_of_a_launcher_that_do_not_fit_are_named(
    variables: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lightning ended with a ValueError of int(), or a machine of a number that isn't there trained alone."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=f"^environment variable {message}"):
        ranks.check_processes(TrainerConfig(accelerator="cpu"))
