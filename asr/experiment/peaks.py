"""Peak memory of operations on random input, and the largest batch that fits."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import cast

import torch

from asr.errors import UserError
from asr.experiment.operations import build_operation, run_once
from asr.experiment.random_input import Problem
from asr.measure import peak_allocated_bytes, peak_resident_bytes, status_bytes
from asr.parallel import ProcessKilled, in_new_process

STEEPEST = 16  # attempts exceed the size that the last one's memory suggests at most by this factor
FULL = 0.95  # fraction of the memory above which no larger batch is tried


class TooLarge(UserError):
    """A call needs more memory than its limit."""


def peak_memory_bytes(
    name: str, problem: Problem, passes: str = "forward+backward", limit: int | None = None
) -> int:
    """Return the peak memory of one call, minus the memory in use before it: parameters and input.

    On the CPU, it is measured as the resident set of a new process (Linux only); on a GPU, by PyTorch's
    allocator.

    Args:
        name: a name for `build_operation`.
        problem: shapes.
        passes: as in `run_once`.
        limit: maximum number of bytes for the call; None: no limit.

    Raises:
        TooLarge: the call needs more than the limit.
    """
    what = f"memory of {name} at length {problem.length}"
    if problem.device != "cpu":
        peak = _allocated(name, problem, passes, limit)
    else:
        try:
            peak = cast("int | None", in_new_process(_resident, name, problem, passes, limit))
        except ProcessKilled as error:
            if limit is None:
                raise UserError(f"{what}: {error}") from None
            peak = None
    if peak is None or (limit is not None and peak > limit):
        raise TooLarge(f"{what}: more than {limit} bytes")
    return peak


def _allocated(name: str, problem: Problem, passes: str, limit: int | None) -> int | None:
    """Return the peak of a GPU's memory; None if it ran out and there is a limit."""
    attend = build_operation(name, problem)
    try:
        inputs, grad = problem.tensors()
        if problem.unit == "model":
            run_once(attend, inputs, grad, passes)  # the optimiser allocates its state in the first step
        return peak_allocated_bytes(partial(run_once, attend, inputs, grad, passes), problem.device)
    except torch.OutOfMemoryError:
        if limit is None:
            raise
        return None


def _resident(name: str, problem: Problem, passes: str, limit: int | None) -> int | None:
    """Return the peak of this process's memory; None if an allocation failed because of the limit."""
    torch.set_num_threads(1)
    attend = build_operation(name, problem)
    # A small call first, because code and libraries are loaded on first use, and a model's optimiser
    # allocates its state. A peer takes no other length than the one it was built for.
    small = replace(problem, length=64, batch=1)
    first = attend if problem.unit == "model" else build_operation(name, small)
    run_once(first, *small.tensors(), passes)
    inputs, grad = problem.tensors()
    if limit is not None:
        import resource  # Windows has none, and no /proc to measure with

        # Virtual memory is limited to twice as much, because not all of it becomes resident: a call that
        # needs far more fails here instead of exhausting the machine.
        ceiling = status_bytes("VmData") + 2 * limit
        resource.setrlimit(resource.RLIMIT_DATA, (ceiling, ceiling))
    try:
        return peak_resident_bytes(partial(run_once, attend, inputs, grad, passes))
    except (MemoryError, RuntimeError) as error:
        if limit is None or not re.search("alloc|memory", str(error)):
            raise
        return None


def largest_batch(
    peak_bytes: Callable[[int], int | None], limit: int, first: int = 1
) -> tuple[int, int] | None:
    """Return the largest batch that fits into memory, and its peak in bytes.

    Memory is almost linear in the batch, so each attempt extrapolates from the last two that fitted. A batch
    that takes more than 95 % of the limit counts as the largest.

    Args:
        peak_bytes: peak memory of a batch; None if it doesn't fit.
        limit: memory in bytes.
        first: batch to try first.

    Returns:
        Batch and bytes, or None if not even one sequence fits.

    Example:
        >>> largest_batch(lambda batch: 100 + 10 * batch, 1000)
        (90, 1000)
        >>> largest_batch(lambda batch: 2000 * batch, 1000) is None
        True
    """
    before, fits, refused, batch = (0, 0), (0, 0), 0, first
    while True:
        peak = peak_bytes(batch)
        if peak is None or peak > limit:
            refused = batch
        else:
            before, fits = fits, (batch, peak)
        most, size = fits
        if refused == most + 1 or size > FULL * limit:
            return fits if most else None
        # Allocations are rounded, so two close batches may need the same memory.
        slope = max((size - before[1]) / (most - before[0]), size / most / STEEPEST) if most else limit
        # Memory that fits into pages of the process isn't noticed.
        guess = most + int((limit - size) / max(slope, 1)) if size or not most else STEEPEST * most
        if refused and guess >= refused:
            guess = (most + refused) // 2
        batch = max(most + 1, guess)
