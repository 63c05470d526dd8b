"""Time and memory of attention mechanisms, measured side by side.

Each round runs every mechanism once, so that other load on the machine affects all of them alike. Results are
medians and quartiles over the rounds.
"""

import gc
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor

from asr.attention import build_mechanism
from asr.benchmark.peers import Attend, build_peer
from asr.errors import UserError
from asr.parallel import in_new_process

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
PASSES = ("forward", "forward+backward")


@dataclass(frozen=True)
class Setup:
    """What all measurements of a benchmark share."""

    batch: int
    heads: int
    head_dim: int
    dtype: str
    device: str
    seed: int


@dataclass(frozen=True, kw_only=True)
class Problem(Setup):
    """Shapes and seed of the random normal input of one measurement."""

    length: int

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return q, k, v and the gradient of the output, [B, H, N, D] each."""
        generator = torch.Generator().manual_seed(self.seed)
        shape = (4, self.batch, self.heads, self.length, self.head_dim)
        x = torch.randn(shape, generator=generator).to(self.device, DTYPES[self.dtype])
        return x[0], x[1], x[2], x[3]


@dataclass(frozen=True)
class Timing:
    """Time of one mechanism at one length.

    Attributes:
        name: name as given to `build`.
        length: N.
        passes: `forward` or `forward+backward`.
        clock: `cpu` or `wall`.
        median_s, quartiles_s: seconds per call, over the rounds.
        per_element_us: median divided by all positions of the batch, in microseconds.
        ratio: median of the baseline divided by this median; None without a baseline.
    """

    name: str
    length: int
    passes: str
    clock: str
    median_s: float
    quartiles_s: tuple[float, float]
    per_element_us: float
    ratio: float | None


def build(name: str, problem: Problem) -> Attend:
    """Return the attention function of q, k, v for a name.

    Args:
        name: a mechanism (`i-clustered-100`), a mechanism with a backend (`i-clustered-100@reference`), or
            `peer:` and a name that `build_peer` takes. A trailing number of threads (`@2`) is ignored.
        problem: shapes.

    Raises:
        UserError: an unknown name or backend, or a library that isn't installed.
    """
    name, _ = split_threads(name)
    if name.startswith("peer:"):
        return build_peer(
            name.removeprefix("peer:"), length=problem.length, batch=problem.batch, device=problem.device
        )
    mechanism_name, _, backend = name.partition("@")
    mechanism = build_mechanism(mechanism_name, backend=backend or "auto").eval().to(problem.device)
    if not mechanism.needs_shared_keys:
        return mechanism
    root = problem.head_dim**0.5
    return lambda q, k, v: mechanism(q, torch.nn.functional.normalize(q, dim=-1) * root, v)


def split_threads(name: str) -> tuple[str, int | None]:
    """Split a trailing number of threads off a name; None without one.

    Example:
        >>> split_threads("clustered-100@2"), split_threads("clustered-100@native")
        (('clustered-100', 2), ('clustered-100@native', None))
    """
    head, _, tail = name.rpartition("@")
    return (head, int(tail)) if head and tail.isdecimal() else (name, None)


def measure(
    names: list[str],
    problem: Problem,
    baseline: str,
    clock: str,
    threads: int,
    rounds: int,
    seconds: float,
    passes: Sequence[str] = PASSES,
) -> list[Timing]:
    """Time every mechanism, forward only and forward with backward.

    Args:
        names: names as taken by `build`; `full@2` runs with two threads.
        problem: shapes.
        baseline: name that `ratio` compares the others with.
        clock: `cpu` (CPU time of this process) or `wall`.
        threads: CPU threads for names that don't end in a number of threads.
        rounds: maximum number of rounds, after one warm-up round.
        seconds: time after which no further round starts; at least three rounds run.
        passes: passes to time, from `PASSES`.
    """
    before, collects = torch.get_num_threads(), gc.isenabled()
    torch.set_num_threads(threads)
    gc.disable()  # as timeit does; each round begins with a collection instead
    try:
        attends = {name: build(name, problem) for name in names}
        return [
            timing
            for name in passes
            for timing in _measure_pass(attends, problem, name, baseline, clock, threads, rounds, seconds)
        ]
    finally:
        torch.set_num_threads(before)
        if collects:
            gc.enable()


def _measure_pass(
    attends: dict[str, Attend],
    problem: Problem,
    passes: str,
    baseline: str,
    clock: str,
    threads: int,
    rounds: int,
    seconds: float,
) -> list[Timing]:
    q, k, v, grad = problem.tensors()
    times: dict[str, list[float]] = {name: [] for name in attends}
    start = time.perf_counter()
    for index in range(rounds + 1):
        gc.collect()
        for name, attend in attends.items():
            once = partial(run_once, attend, q, k, v, grad, passes)
            wanted = split_threads(name)[1] or threads
            if torch.get_num_threads() != wanted:
                torch.set_num_threads(wanted)
                once()  # wakes the threads, which would slow the timed call
            taken = _time(once, clock, problem.device)
            if index:
                times[name].append(taken)
        if index >= 3 and time.perf_counter() - start > seconds:
            break
    quartiles = {name: np.quantile(values, (0.25, 0.5, 0.75)).tolist() for name, values in times.items()}
    return [
        Timing(
            name,
            problem.length,
            passes,
            clock,
            median,
            (low, high),
            1e6 * median / (problem.batch * problem.length),
            quartiles[baseline][1] / median if baseline in quartiles else None,
        )
        for name, (low, median, high) in quartiles.items()
    ]


def run_once(attend: Attend, q: Tensor, k: Tensor, v: Tensor, grad: Tensor, passes: str) -> None:
    """Run a forward pass, followed by a backward pass with `passes="forward+backward"`."""
    if passes == "forward":
        with torch.no_grad():
            attend(q, k, v)
        return
    inputs = [x.detach().requires_grad_() for x in (q, k, v)]
    attend(*inputs).backward(grad)


def can_measure_memory(device: str) -> bool:
    """Return whether `peak_memory_bytes` works on a device: on any GPU, and on the CPU under Linux."""
    return device != "cpu" or Path("/proc/self/clear_refs").exists()


def peak_memory_bytes(name: str, problem: Problem, passes: str = "forward+backward") -> int:
    """Return the peak memory of one call, less the memory held before it.

    Measured on the CPU as the resident set of a fresh process (Linux only), on a GPU by PyTorch's allocator.
    """
    if problem.device != "cpu":
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        run_once(build(name, problem), *problem.tensors(), passes)
        return torch.cuda.max_memory_allocated() - held
    try:
        return cast(int, in_new_process(_peak_resident_bytes, name, problem, passes))
    except UserError as error:
        raise UserError(f"memory of {name} at length {problem.length}: {error}") from None


def _peak_resident_bytes(name: str, problem: Problem, passes: str) -> int:
    torch.set_num_threads(1)
    attend = build(name, problem)
    small = replace(problem, length=512, batch=1, heads=1)
    run_once(build(name, small), *small.tensors(), passes)
    tensors = problem.tensors()
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak to the present resident set
    held = _status_bytes("VmRSS")
    run_once(attend, *tensors, passes)
    return _status_bytes("VmHWM") - held


def _status_bytes(key: str) -> int:
    found = re.search(rf"{key}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    if found is None:
        raise RuntimeError(f"/proc/self/status has no {key}")
    return 1024 * int(found[1])


def _time(run: Callable[[], None], clock: str, device: str) -> float:
    read = time.process_time if clock == "cpu" else time.perf_counter
    if device != "cpu":
        torch.cuda.synchronize()
    start = read()
    run()
    if device != "cpu":
        torch.cuda.synchronize()
    return read() - start
