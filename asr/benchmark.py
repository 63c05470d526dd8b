"""Time and memory of attention mechanisms, measured side by side.

Runs of all mechanisms are interleaved, so that what disturbs the machine disturbs them alike; figures are
medians and quartiles over the rounds.
"""

import gc
import json
import multiprocessing
import re
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from asr.attention import build_mechanism
from asr.errors import UserError
from asr.files import write_text

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
PASSES = ("forward", "forward+backward")

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
Memory = dict[str, dict[str, dict[int, int]]]  # bytes by pass, name and length


@dataclass(frozen=True)
class Problem:
    """Shapes of one measurement: random normal input."""

    length: int
    batch: int
    heads: int
    head_dim: int
    dtype: str
    device: str
    seed: int

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return q, k, v and a gradient of the output, [B, H, N, D] each."""
        generator = torch.Generator().manual_seed(self.seed)
        shape = (4, self.batch, self.heads, self.length, self.head_dim)
        x = torch.randn(shape, generator=generator).to(self.device, DTYPES[self.dtype])
        return x[0], x[1], x[2], x[3]


@dataclass(frozen=True)
class Timing:
    """Seconds of one mechanism at one length: median and quartiles over the rounds."""

    name: str
    length: int
    passes: str
    clock: str
    median_s: float
    quartiles_s: tuple[float, float]
    per_element_us: float
    ratio: float | None


def build(name: str, problem: Problem) -> Attend:
    """Return a function of q, k, v for a name.

    A name is a mechanism's (`i-clustered-100`), one with a backend (`i-clustered-100@reference`), or `peer:`
    and a name for another library where that is installed: `pytorch-fast-transformers` for the clustered
    ones, `reformer-pytorch` for `lsh-R`. A number of threads is not looked at.
    """
    name, _ = split_threads(name)
    if name.startswith("peer:lsh-"):
        return _build_lsh_peer(name.removeprefix("peer:"), problem)
    if name.startswith("peer:"):
        return _build_clustered_peer(name.removeprefix("peer:"), problem)
    mechanism_name, _, backend = name.partition("@")
    mechanism = build_mechanism(mechanism_name, backend=backend or "auto").eval().to(problem.device)
    if not mechanism.needs_shared_keys:
        return lambda q, k, v: mechanism(q, k, v)
    root = problem.head_dim**0.5
    return lambda q, k, v: mechanism(q, torch.nn.functional.normalize(q, dim=-1) * root, v)


def split_threads(name: str) -> tuple[str, int | None]:
    """Return a name without the number of threads that may end it, and that number.

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
    """Time forward, and forward with backward, of every mechanism.

    Args:
        names: see `build`; one that ends in `@2` runs with two threads.
        problem: the shapes.
        baseline: name whose median is divided by the others' to give `ratio`.
        clock: `cpu` (CPU time of this process) or `wall`.
        threads: threads of PyTorch on the CPU for the names that don't say.
        rounds: at most so many rounds after one that is not counted …
        seconds: … and no further round after so many seconds, but at least three.
        passes: which of them.
    """
    before, collects = torch.get_num_threads(), gc.isenabled()
    torch.set_num_threads(threads)
    gc.disable()  # as timeit does: a collection would fall on anyone; rounds begin with one
    try:
        attends = {name: build(name, problem) for name in names}
        threads_of = {name: split_threads(name)[1] or threads for name in names}
        return [
            timing
            for name in passes
            for timing in _measure_pass(attends, threads_of, problem, name, baseline, clock, rounds, seconds)
        ]
    finally:
        torch.set_num_threads(before)
        if collects:
            gc.enable()


def _measure_pass(
    attends: dict[str, Attend],
    threads_of: dict[str, int],
    problem: Problem,
    passes: str,
    baseline: str,
    clock: str,
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
            if torch.get_num_threads() != threads_of[name]:
                torch.set_num_threads(threads_of[name])
                once()  # threads that have slept take a while to come
            taken = _time(once, clock, problem.device)
            if index:
                times[name].append(taken)
        if index >= 3 and time.perf_counter() - start > seconds:
            break
    medians = {name: statistics.median(values) for name, values in times.items()}
    elements = problem.batch * problem.length
    return [
        Timing(
            name,
            problem.length,
            passes,
            clock,
            medians[name],
            _quartiles(values),
            1e6 * medians[name] / elements,
            medians[baseline] / medians[name] if baseline in medians else None,
        )
        for name, values in times.items()
    ]


def run_once(attend: Attend, q: Tensor, k: Tensor, v: Tensor, grad: Tensor, passes: str) -> None:
    """Run a forward pass, with the backward pass after it if asked for."""
    if passes == "forward":
        with torch.no_grad():
            attend(q, k, v)
        return
    inputs = [x.detach().requires_grad_() for x in (q, k, v)]
    attend(*inputs).backward(grad)


def can_measure_memory(device: str) -> bool:
    """Tell whether `peak_memory_bytes` works here."""
    return device != "cpu" or Path("/proc/self/clear_refs").exists()


def peak_memory_bytes(name: str, problem: Problem, passes: str = "forward+backward") -> int:
    """Return how far one mechanism raises the memory above that of the inputs.

    On the CPU the resident set of a process of its own (Linux), on a GPU what PyTorch's allocator reports.
    """
    if problem.device != "cpu":
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        run_once(build(name, problem), *problem.tensors(), passes)
        return torch.cuda.max_memory_allocated() - held
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(_peak_resident_bytes, (name, problem, passes))


def _peak_resident_bytes(name: str, problem: Problem, passes: str) -> int:
    torch.set_num_threads(1)
    attend = build(name, problem)
    small = Problem(512, 1, 1, problem.head_dim, problem.dtype, problem.device, problem.seed)
    run_once(build(name, small), *small.tensors(), passes)
    tensors = problem.tensors()
    Path("/proc/self/clear_refs").write_text("5")  # the peak becomes what is resident now
    held = _status_bytes("VmRSS")
    run_once(attend, *tensors, passes)
    return _status_bytes("VmHWM") - held


def _status_bytes(key: str) -> int:
    found = re.search(rf"{key}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    if found is None:
        raise RuntimeError(f"/proc/self/status has no {key}")
    return 1024 * int(found[1])


def write_json(path: Path, timings: list[Timing], memory: Memory, about: dict) -> None:
    """Write all figures: `timings`, `memory_bytes` by pass, name and length, and what they depend on."""
    record = {**about, "timings": [asdict(timing) for timing in timings], "memory_bytes": memory}
    write_text(json.dumps(record, indent=1) + "\n", path)


def _time(run: Callable[[], None], clock: str, device: str) -> float:
    read = time.process_time if clock == "cpu" else time.perf_counter
    if device != "cpu":
        torch.cuda.synchronize()
    start = read()
    run()
    if device != "cpu":
        torch.cuda.synchronize()
    return read() - start


def _quartiles(values: list[float]) -> tuple[float, float]:
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def _build_clustered_peer(name: str, problem: Problem) -> Attend:
    try:
        from fast_transformers.attention import ClusteredAttention, ImprovedClusteredAttention
        from fast_transformers.masking import FullMask, LengthMask
    except ImportError as error:
        raise UserError(f"peer:{name} needs pytorch-fast-transformers: {error}") from None
    found = re.fullmatch(r"(i-)?clustered-(\d+)", name)
    if found is None:
        raise UserError(f"peer:{name}: expected peer:clustered-C, peer:i-clustered-C or peer:lsh-R")
    options = {"clusters": int(found[2]), "iterations": 10, "bits": 63, "attention_dropout": 0.0}
    module = ImprovedClusteredAttention(**options, topk=32) if found[1] else ClusteredAttention(**options)
    module = module.eval().to(problem.device)
    full = FullMask(problem.length, device=problem.device)
    lengths = LengthMask(torch.full((problem.batch,), problem.length), device=problem.device)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rows = (x.transpose(1, 2) for x in (q, k, v))  # it takes [B, N, H, D] and turns that back: no copy
        return module(*rows, full, lengths, lengths).transpose(1, 2)

    return attend


def _build_lsh_peer(name: str, problem: Problem) -> Attend:
    try:
        from reformer_pytorch import LSHAttention
    except ImportError as error:
        raise UserError(f"peer:{name} needs reformer-pytorch: {error}") from None
    found = re.fullmatch(r"lsh-([1-9]\d*)", name)
    if found is None:
        raise UserError(f"peer:{name}: expected peer:lsh-R")
    chunk = 32
    if problem.length % (2 * chunk):
        raise UserError(f"peer:{name}: length {problem.length} is no multiple of {2 * chunk}")
    module = LSHAttention(bucket_size=chunk, n_hashes=int(found[1]), dropout=0.0).eval().to(problem.device)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return module(q.flatten(0, 1), v.flatten(0, 1))[0].view_as(v)  # it makes its keys from the queries

    return attend
