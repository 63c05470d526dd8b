"""The ranks of a training run: their processes start together, and end together if one fails."""

import os
import platform
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightning.fabric.plugins import ClusterEnvironment
from lightning.fabric.utilities.distributed import _set_num_threads_if_needed
from lightning.pytorch.plugins.environments import (
    LightningEnvironment,
    SLURMEnvironment,
    TorchElasticEnvironment,
)
from lightning.pytorch.strategies.launchers.subprocess_script import _SubprocessScriptLauncher
from lightning.pytorch.utilities import rank_zero_only
from torch import distributed

from asr.console import counted, duration
from asr.environment import pick_device
from asr.errors import UserError
from asr.parallel import available_cores
from asr.training.options import TrainerConfig

# Launchers' variables that Lightning reads as numbers; it reads SLURM's in SLURM jobs only.
VARIABLES = ("NODE_RANK", "GROUP_RANK", "LOCAL_RANK", "MASTER_PORT")
SLURM = ("SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID")
POLL_S = 0.2
GRACE_S = 10.0  # time in which this process may notice by itself that another has failed


class Launcher(_SubprocessScriptLauncher):
    """Starts the other ranks of this machine, and ends this process if one of them fails.

    Lightning's launcher kills this process, which leaves neither a message nor an exit status.
    """

    def launch(self, function: Callable[..., Any], *args: Any, trainer: Any = None, **kwargs: Any) -> Any:
        """Start the processes, then call `function`."""
        self.cluster_environment.validate_settings(num_devices=self.num_processes, num_nodes=self.num_nodes)
        if not self.cluster_environment.creates_processes_externally:
            self._call_children_scripts()
            threading.Thread(target=self._watch, daemon=True).start()
        _set_num_threads_if_needed(num_processes=self.num_processes)
        return function(*args, **kwargs)

    def _watch(self) -> None:
        while not any(process.poll() for process in self.procs):
            time.sleep(POLL_S)
        time.sleep(GRACE_S)  # this process would wait for the failed one for ever
        for process in self.procs:
            process.kill()
        print(f"asr: one of {len(self.procs) + 1} processes failed to start", file=sys.stderr)
        os._exit(1)


@contextmanager
def ended_by_signals(started: Sequence[subprocess.Popen[Any]]) -> Iterator[None]:
    """End this process and those it started at once on SIGINT and SIGTERM, while the ranks connect.

    PyTorch waits in C++, where Python's handlers don't run, so a thread reads the pipe that signals write to.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(os, "set_blocking"):
        yield  # before Python 3.12, Windows has no pipe that a signal can write to without blocking
        return
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    before = signal.set_wakeup_fd(theirs, warn_on_full_buffer=False)
    threading.Thread(target=_end, args=(ours, started), daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(theirs)  # ends the thread


def _end(pipe: int, started: Sequence[subprocess.Popen[Any]]) -> None:
    with open(pipe, "rb", buffering=0) as signals:
        while number := signals.read(1):
            if number[0] in (signal.SIGINT, signal.SIGTERM):
                for process in started:
                    process.kill()
                name = signal.Signals(number[0]).name
                print(f"asr: stopped by {name} before the first step", file=sys.stderr, flush=True)
                os._exit(128 + number[0])


def check_processes(options: TrainerConfig) -> None:
    """Raise UserError if this process can't start the others, or a launcher's variables are wrong.

    It can't in a notebook, or if there are too few cores. Variables are wrong if they aren't numbers, or
    contradict `trainer.nodes` and `trainer.devices`.
    """
    places = (SLURMEnvironment, TorchElasticEnvironment)
    slurm = SLURMEnvironment.detect()
    counts = {
        name: os.environ[name] for name in (*VARIABLES, *(SLURM if slurm else ())) if name in os.environ
    }
    for name, value in counts.items():
        if not re.fullmatch(r"\d{1,9}", value):
            raise UserError(f"environment variable {name}={value}: expected a whole number")
    expected = {
        "NODE_RANK": options.nodes,
        "GROUP_RANK": options.nodes,
        "LOCAL_RANK": options.devices,
        "SLURM_NODEID": options.nodes,
        "SLURM_LOCALID": options.devices,
    }
    for name, count in expected.items():
        if int(counts.get(name, 0)) >= count:
            raise UserError(
                f"environment variable {name}={counts[name]}: expected a number below {count}, with "
                f"trainer.nodes={options.nodes} and trainer.devices={options.devices}"
            )
    whole = {"SLURM_NTASKS": options.nodes * options.devices, "SLURM_NTASKS_PER_NODE": options.devices}
    for name, count in whole.items():
        if int(counts.get(name, count)) != count:
            raise UserError(
                f"environment variable {name}={counts[name]}: expected {count}, with "
                f"trainer.nodes={options.nodes} and trainer.devices={options.devices}"
            )
    started = LightningEnvironment().creates_processes_externally or any(x.detect() for x in places)
    cores = available_cores()
    if not started and options.devices > 1 and hasattr(sys, "ps1"):
        raise UserError(
            f"trainer.devices={options.devices}: expected 1 in an interactive session, which can't start "
            "others like itself: use a script, or asr train"
        )
    if not started and options.devices > cores and pick_device(options.accelerator) == "cpu":
        raise UserError(
            f"trainer.devices={options.devices}: expected at most {counted(cores, 'process', 'processes')}, "
            "as many as this machine has cores, or GPUs"
        )


def waiting(place: ClusterEnvironment, nodes: int, devices: int, seconds: float) -> str:
    """Return a line that tells which processes training waits for, where, and for how long."""
    return (
        f"waiting for {counted(nodes, 'machine')} with {counted(devices, 'process', 'processes')} each, "
        f"which a launcher starts, at {place.main_address}:{place.main_port} for up to {duration(seconds)}"
    )


def global_rank(devices: int) -> int:
    """Return the rank of this process among all processes; each machine has `devices` of them.

    Lightning sets the trainer's rank only when training begins.
    """
    place = LightningEnvironment()
    started: int = rank_zero_only.rank or 0  # type: ignore[attr-defined]
    return max(started, place.node_rank() * devices + place.local_rank())


@contextmanager
def rank_failures(options: TrainerConfig, folder: Path) -> Iterator[None]:
    """Raise UserError if the connection to another rank is lost; ranks above 0 name themselves in it."""
    try:
        yield
    except (RuntimeError, UserError) as error:
        count, rank = options.devices * options.nodes, global_rank(options.devices)
        if isinstance(error, RuntimeError):
            if count == 1 or not (isinstance(error, distributed.DistError) or "gloo" in str(error)):
                raise
            text = f"{folder}: another of {count} processes ended; resume=auto continues this run"
        else:
            text = error.line
        raise UserError(f"rank {rank} on {platform.node()}: {text}" if rank else text) from error


def environment_plugins() -> list[SLURMEnvironment]:
    """Return Lightning's SLURM environment in a SLURM job, without requeueing: see docs/machines.md."""
    return [SLURMEnvironment(auto_requeue=False)] if SLURMEnvironment.detect() else []
