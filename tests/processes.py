"""Processes forked from a server that has imported `asr`, because imports take longer than most commands."""

import contextlib
import fcntl
import importlib.util
import multiprocessing
import multiprocessing.forkserver
import os
import resource
import signal
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest

from asr.cli import main

IMPORTED = ["asr.commands.train", "asr.commands.decode", "asr.commands.compare", "asr.training.run"]
# Which trainings and comparisons import late.
IMPORTED += ["tensorboard.summary", "torch.utils.tensorboard"]
IMPORTED += ["asr.experiment.worker", "asr.report.page"]
IMPORTED += [__name__, "fork_server_state"]
_server: int | None = None


def fork_server() -> ForkServerContext:
    """Return the context of processes that begin with everything imported.

    A server that a command has started in this process has imported less, and is replaced.
    """
    global _server
    context = multiprocessing.get_context("forkserver")
    running = multiprocessing.forkserver._forkserver
    if _server is None or running._forkserver_pid != _server:
        running._stop()  # type: ignore[attr-defined]
        context.set_forkserver_preload(IMPORTED)
        with pytest.MonkeyPatch.context() as patch:  # before Python 3.13, the server ignores sys.path
            paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
            patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
            multiprocessing.forkserver.ensure_running()
        _server = running._forkserver_pid
    return context


def in_a_fork(function: Callable[..., object], *arguments: object) -> int:
    """Call a function in a process of its own; return the exit status, negative for a signal."""
    process = fork_server().Process(target=function, args=arguments)
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def result_of_a_fork(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a call in a process of its own; replaces `asr.parallel.in_new_process`."""
    with ProcessPoolExecutor(1, fork_server()) as pool:
        return pool.submit(function, *arguments).result()


class Asr:
    """A running command, in a session of its own.

    Attributes:
        pid: process, and leader of the session.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        stdin: int = 0,
        stderr: int | None = None,
        limit_bytes: int | None = None,
        **environment: str,
    ) -> None:
        """Start a command.

        Args:
            arguments: arguments of `asr`.
            stdin: file descriptor.
            stderr: file descriptor; None: a pipe, as for standard output, which holds 64 KiB.
            limit_bytes: size that no file may exceed.
            environment: variables to set.
        """
        (self._out, out), (self._err, err) = os.pipe(), os.pipe()
        if stderr is not None:
            os.dup2(stderr, err)
        # As connections, which multiprocessing can send.
        streams = [Connection(number) for number in (os.dup(stdin), out, err)]
        options = (list(arguments), streams, limit_bytes, environment)
        self._process = fork_server().Process(target=_run, args=options)
        self._process.start()
        for stream in streams:
            stream.close()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    def poll(self) -> int | None:
        """Return the exit status, or None while the process runs."""
        return self._process.exitcode

    def wait(self) -> int:
        """Wait for the end; return the exit status, negative for a signal."""
        self._process.join()
        assert self._process.exitcode is not None
        return self._process.exitcode

    def communicate(self) -> tuple[str, str]:
        """Return standard output and standard error when no process of the command has them open."""
        with open(self._out) as out, open(self._err) as err:
            texts = out.read(), err.read()
        self.wait()
        return texts

    def kill(self) -> None:
        """Send SIGKILL."""
        self._send(signal.SIGKILL)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._send(signal.SIGTERM)

    def _send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):  # it may have ended
            os.kill(self.pid, number)


def _run(
    arguments: list[str], streams: list[Connection], limit_bytes: int | None, environment: dict[str, str]
) -> None:
    os.setsid()
    os.environ |= environment
    # Copies above the standard numbers, which the server has closed and the streams may have been given.
    copies = [fcntl.fcntl(stream.fileno(), fcntl.F_DUPFD, 10) for stream in streams]
    for stream in streams:
        stream.close()
    for number, copy in enumerate(copies):
        os.dup2(copy, number)
        os.close(copy)
    sys.stdin = open(0)  # noqa: SIM115
    # As in a process that was started with `asr`: its own processes are neither forked from this server nor
    # started by it, so that they belong to this session.
    multiprocessing.set_start_method("fork", force=True)
    multiprocessing.forkserver._forkserver.__init__()  # type: ignore[misc]
    sys.argv = ["asr", *arguments]
    sys.modules["__main__"].__spec__ = importlib.util.find_spec("asr.__main__")  # by which ranks are started
    if limit_bytes is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))
    sys.exit(main(arguments))
