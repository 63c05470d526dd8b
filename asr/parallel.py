"""A function over many items in processes: in order, with a progress bar, resumable."""

import json
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console

from asr.console import progress
from asr.errors import UserError
from asr.files import atomic_text

# A process costs seconds to start: fewer items than this are done here, one after the other.
WORTH_A_POOL = 200


class Failed(str):
    """The message of a UserError that an item met."""


def available_cores() -> int:
    """Return the number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def attempts(
    function: Callable[[Any], Any], items: Sequence[Any], *, workers: int, threads: bool
) -> Iterator[Any]:
    """Yield the result of each item in order, or `Failed` where the function raised a `UserError`.

    Args:
        function: a module's own function where processes are used; threads take any.
        items: what it is called with.
        workers: how many at once.
        threads: use threads, for functions that wait for a subprocess or the network.

    Raises:
        UserError: a process was killed, by lack of memory as a rule.
    """
    attempt = partial(_attempt, function)
    if workers <= 1 or (not threads and len(items) < WORTH_A_POOL):
        yield from map(attempt, items)
        return
    pool: Executor
    if threads:
        pool, chunk = ThreadPoolExecutor(workers), 1
    else:
        # Not fork: this process has threads (progress bar, numerical libraries), which a copy would lack.
        methods = multiprocessing.get_all_start_methods()
        context = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
        if "forkserver" in methods:  # which imports what the processes need once for all of them
            context.set_forkserver_preload([_module(function)])
        pool = ProcessPoolExecutor(workers, context, initializer=_begin_process)
        chunk = max(1, min(256, len(items) // (workers * 8)))
    try:
        yield from pool.map(attempt, items, chunksize=chunk)
    except BrokenProcessPool:
        raise UserError(
            f"a process of {workers} was killed (out of memory?): try fewer, workers={workers // 2}"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def progress_bar(label: str, total: int, console: Console) -> Iterator[Callable[[], None]]:
    """Show a bar while the block runs; what is yielded moves it by one."""
    with progress(console=console, transient=False) as bars:
        task = bars.add_task(label, total=total)
        yield lambda: bars.advance(task)


class Journal:
    """Results by key in a file of JSON lines, so that an interrupted run goes on where it was.

    Args:
        path: the file; lines of another `version` are forgotten, a torn last line as well.
        version: what the results depend on besides their keys.
    """

    def __init__(self, path: Path, version: str) -> None:
        self.path = path
        self.version = version
        self.known = dict(self._read())
        self._file: TextIO | None = None

    def _read(self) -> Iterator[tuple[str, Any]]:
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            return
        if not lines or lines[0] != json.dumps(self.version):
            return
        for line in lines[1:]:
            try:
                key, result = json.loads(line)
            except ValueError:
                return
            yield key, result

    def add(self, key: str, result: Any) -> Any:
        """Keep a result (plain data) and return it as it will be read again: tuples become lists."""
        line = json.dumps([key, result], ensure_ascii=False)
        if self._file is None:
            self._open()
        assert self._file is not None
        self._file.write(line + "\n")
        return json.loads(line)[1]

    def _open(self) -> None:
        # Written anew rather than appended to: the last line may be torn.
        with atomic_text(self.path) as file:
            file.write(json.dumps(self.version) + "\n")
            file.writelines(json.dumps([k, r], ensure_ascii=False) + "\n" for k, r in self.known.items())
        self._file = open(self.path, "a", encoding="utf-8", buffering=1)  # noqa: SIM115

    def close(self) -> None:
        """Flush to disk."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _module(function: Callable[..., Any]) -> str:
    return function.func.__module__ if isinstance(function, partial) else function.__module__


def _attempt(function: Callable[[Any], Any], item: Any) -> Any:
    try:
        return function(item)
    except UserError as error:
        return Failed(error)


def _begin_process() -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


def _end_with_parent() -> None:
    # A parent that was killed can't end its processes: they would wait for work for ever.
    if parent := multiprocessing.parent_process():
        parent.join()
        os._exit(1)
