"""Applies a function to many items in parallel: results in order, worker processes, Ray clusters."""

import importlib.machinery
import importlib.util
import logging
import multiprocessing
import multiprocessing.forkserver
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from asr.config import user_code
from asr.errors import UserError, in_words, uninterrupted

# Starting processes takes seconds, so fewer items than this are processed here.
WORTH_A_POOL = 200
# Windows can't fork processes.
WORKERS = getattr(multiprocessing.context, "ForkServerProcess", multiprocessing.context.SpawnProcess)
CONNECT_S = 10.0  # time to reach a Ray cluster
CLIENT_PORT = "10001"  # Ray's default
_packages: dict[str, Path] = {}  # folders registered as packages by `import_folder`


class ProcessKilled(UserError):
    """A worker process ended without a result, usually because memory ran out."""


def available_cores() -> int:
    """Return the number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def attempts(
    function: Callable[[Any], Any], items: Sequence[Any], *, workers: int, threads: bool
) -> Generator[Any, None, None]:
    """Yield the result of each item in order, or the `UserError` that the function raised.

    Args:
        function: function of one item, defined at module level unless `threads` is set.
        items: arguments, one per call.
        workers: number of processes or threads.
        threads: whether to use threads, for functions that wait for a subprocess or the network.

    Raises:
        UserError: a worker process was killed, usually because memory ran out.
    """
    attempt = partial(_attempt, function)
    if workers <= 1 or (not threads and len(items) < WORTH_A_POOL):
        yield from map(attempt, items)
        return
    pool: Executor
    if threads:
        pool, chunk = ThreadPoolExecutor(workers), 1
    else:
        # A partial's module is functools; the worker needs the module of its function.
        context = worker_context(getattr(function, "func", function).__module__)
        pool = ProcessPoolExecutor(workers, context, initializer=_begin_process, initargs=(dict(_packages),))
        # Eight chunks per worker balance uneven items; results arrive, and are stored, chunk by chunk.
        chunk = max(1, min(256, len(items) // (workers * 8)))
    try:
        with uninterrupted():
            results = pool.map(attempt, items, chunksize=chunk)
        yield from results
    except BrokenProcessPool:
        raise UserError(
            f"one of {workers} processes was killed (out of memory?): try fewer, workers={workers // 2}"
        ) from None
    except BaseException:
        kill_workers()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def ray_cluster(address: str, needed: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Hold a connection to a Ray cluster; an existing connection stays open afterwards.

    Args:
        address: address of the cluster; empty: start one on this machine, which ends with the block.
        needed: resources of a task, named as Ray's options.

    Raises:
        UserError: no Ray cluster answers at the address within ten seconds, or this machine lacks resources
            that a task needs, for which the task would wait forever.
    """
    import ray

    if ray.is_initialized():
        yield
        return
    # Ray itself would wait for minutes.
    client = address.startswith("ray://")
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if client and not host:
        host, port = port, CLIENT_PORT
    handler = signal.getsignal(signal.SIGTERM)
    try:
        if host and port.isdecimal():
            with socket.create_connection((host.strip("[]"), int(port)), CONNECT_S):
                pass  # raises an error with the reason if nobody listens
        ray.init(
            address=address
            or "local",  # None would be the last cluster on this machine, even if it was killed
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,  # at lower levels, Ray prints banners
        )
    except (OSError, OverflowError, ValueError, RuntimeError) as error:
        raise UserError(f"address={address}: no connection to a Ray cluster: {in_words(error)}") from None
    if handler and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)  # Ray's handler prints the stack, and doesn't clean up
    try:
        if not address:  # other clusters may grow
            _check_resources(needed or {}, ray.cluster_resources())
        yield
    finally:
        ray.shutdown()


def _check_resources(needed: Mapping[str, Any], there: Mapping[str, float]) -> None:
    for name, resource in (("num_cpus", "CPU"), ("num_gpus", "GPU")):
        wanted, most = needed.get(name), there.get(resource, 0)
        if isinstance(wanted, int | float) and wanted > most:
            raise UserError(f"{name}={wanted:g}: expected at most {most:g}, as many as this machine has")


def in_new_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a call in a new process, which starts with little memory in use.

    Raises:
        ProcessKilled: the process was killed, usually because memory ran out.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, initializer=_begin_alike, initargs=(user_code.sources(),)) as pool:
        try:
            return pool.submit(function, *arguments).result()
        except BrokenProcessPool:
            raise ProcessKilled("the process was killed (out of memory?)") from None


def _begin_alike(sources: list[str]) -> None:
    end_with_parent()
    user_code.load_all(sources)


def _attempt(function: Callable[[Any], Any], item: Any) -> Any:
    try:
        return function(item)
    except UserError as error:
        return error


def worker_context(module: str) -> multiprocessing.context.BaseContext:
    """Return the context for worker processes that run functions of a module, imported once for all workers.

    The main process isn't forked: a copy would lack the threads of PyTorch, CUDA and the progress bar.
    Workers ignore Ctrl-C, which a terminal sends to them, too; the main process stops them. On systems that
    can't fork, each worker imports the module itself.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([module])
    if threading.current_thread() is threading.main_thread():
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            multiprocessing.forkserver.ensure_running()
        finally:
            signal.signal(signal.SIGINT, before)
    return context


def kill_workers() -> None:
    """Kill the worker processes, because after an error, an executor would wait for their work."""
    for child in multiprocessing.active_children():
        if isinstance(child, WORKERS):
            child.kill()


def import_folder(name: str, folder: Path) -> None:
    """Register a folder as a package, here and in worker processes, which import functions by name."""
    init, places = folder / "__init__.py", [str(folder)]
    if init.is_file():
        spec = importlib.util.spec_from_file_location(name, init, submodule_search_locations=places)
    else:
        spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = places
    assert spec is not None
    package = sys.modules[name] = importlib.util.module_from_spec(spec)
    _packages[name] = folder
    if init.is_file() and spec.loader:
        spec.loader.exec_module(package)


def _begin_process(packages: dict[str, Path]) -> None:
    end_with_parent()
    for name, folder in packages.items():
        import_folder(name, folder)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)  # the workers together use all cores


def end_with_parent() -> None:
    """End this multiprocessing worker when its parent ends.

    If the parent is killed, it can't stop its workers, and they would wait for work forever.
    """
    if multiprocessing.parent_process():
        threading.Thread(target=_exit_after_parent, daemon=True).start()


def _exit_after_parent() -> None:
    if parent := multiprocessing.parent_process():
        parent.join()
        os._exit(1)  # sys.exit would end this thread only
