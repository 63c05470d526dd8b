"""Time of mechanisms, layers and models, measured in turns.

Results are medians and quartiles over the rounds, which a single disturbed round doesn't change.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from asr.attention import build_mechanism, build_self_attention, parse_name
from asr.attention.clustered import ClusteredAttention
from asr.benchmark.models import PARTS, MeasuredModel, StepSeconds
from asr.benchmark.options import GROUPING, PASSES
from asr.benchmark.peers import Attend, build_peer
from asr.benchmark.problem import BenchProblem
from asr.config.names import split_name
from asr.measure import Seconds, in_turns, time_of, torch_threads
from asr.model.blocks import Block
from asr.model.options import BlockConfig


@dataclass(frozen=True)
class Timing:
    """Time of one mechanism at one length.

    Attributes:
        name: name as given to `build_operation`.
        length, batch: N and B.
        passes: `forward`, `forward+backward` or `grouping`.
        clock: `cpu` or `wall`.
        median_s, quartiles_s: seconds per call, over the rounds.
        per_element_us: median divided by all positions of the batch, in microseconds.
        ratio: the baseline's `per_element_us` divided by this one; None without a baseline.
        parts_s: medians of the `PARTS` of a model's training step; otherwise empty.
    """

    name: str
    length: int
    batch: int
    passes: str
    clock: str
    median_s: float
    quartiles_s: tuple[float, float]
    per_element_us: float
    ratio: float | None
    parts_s: dict[str, float] = field(default_factory=dict)


def build_operation(name: str, problem: BenchProblem) -> Attend:
    """Return the function of a problem's inputs that a name stands for.

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
    if problem.unit == "model":
        return MeasuredModel(mechanism_name, backend or "auto", problem)
    if problem.unit == "layer":
        return Layer(mechanism_name, backend or "auto", problem)
    mechanism = build_mechanism(mechanism_name, backend=backend or "auto").eval().to(problem.device)
    if not mechanism.needs_shared_keys:
        return mechanism
    root = problem.head_dim**0.5
    # Keys are made here from the queries, so that the time includes their normalisation.
    return lambda q, k, v: mechanism(q, torch.nn.functional.normalize(q, dim=-1) * root, v)


class Layer(nn.Module):
    """A transformer layer, or its self-attention alone, of whose input all positions are valid.

    Args:
        name: mechanism.
        backend: `auto`, `reference` or `native`.
        problem: sizes and seed; without dropout.
    """

    def __init__(self, name: str, backend: str, problem: BenchProblem) -> None:
        super().__init__()
        heads, head_dim, hidden = problem.heads, problem.head_dim, problem.feedforward
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(problem.seed)
            if hidden:
                config = BlockConfig(heads=heads, head_dim=head_dim, feedforward=hidden)
                self.layer: nn.Module = Block(config, name, backend)
            else:
                self.layer = build_self_attention(name, heads * head_dim, heads, head_dim, backend=backend)
        self.eval().to(problem.device, problem.dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, N, M] to [B, N, M]."""
        return self.layer(x, torch.full(x.shape[:1], x.shape[1], device=x.device))


def causal_form(name: str) -> str | None:
    """Return the causal form of a name; None for mechanisms without one, and for names that are causal.

    Example:
        >>> causal_form("full@reference"), causal_form("agglomerative-8:tie=true"), causal_form("lsh-4")
        ('full:causal=true@reference', 'agglomerative-8:causal=true,tie=true', None)
    """
    head, at, tail = name.partition("@")
    if head.startswith("peer:") or parse_name(head).arguments.get("causal") is not False:
        return None
    separator = "," if split_name(head)[2] else ":"
    return parse_name(f"{head}{separator}causal=true").name + at + tail


def rival(name: str, baseline: str, names: Sequence[str]) -> str:
    """Return what a mechanism is compared with: the baseline, or its causal form if both are causal."""
    causal = causal_form(baseline) if baseline in names else None
    is_causal = not name.startswith("peer:") and parse_name(name.partition("@")[0]).arguments.get("causal")
    return causal if causal and is_causal and causal in names else baseline


def split_threads(name: str) -> tuple[str, int | None]:
    """Split a trailing number of threads off a name; None without one.

    Example:
        >>> split_threads("clustered-100@2"), split_threads("clustered-100@native")
        (('clustered-100', 2), ('clustered-100@native', None))
    """
    head, _, tail = name.rpartition("@")
    return (head, int(tail)) if head and tail.isdecimal() else (name, None)


def measure(
    problems: Mapping[str, BenchProblem],
    baseline: str,
    clock: str,
    threads: int,
    rounds: int,
    seconds: float,
    passes: Sequence[str] = PASSES,
) -> list[Timing]:
    """Time every mechanism, layer or model.

    Args:
        problems: shapes by name, as taken by `build_operation`; `full@2` runs with two threads.
        baseline: name that `ratio` compares the others with.
        clock: `cpu` (CPU time of this process) or `wall`.
        threads: CPU threads for names that don't end in a number of threads.
        rounds: maximum number of rounds, after one warm-up round.
        seconds: time after which no further round starts; at least five rounds run.
        passes: passes to time, from `PASSES`.
    """
    with torch_threads(threads):
        attends = {name: build_operation(name, problem) for name, problem in problems.items()}
        return [
            timing
            for name in passes
            for timing in _measure_pass(attends, problems, name, baseline, clock, threads, rounds, seconds)
        ]


def _measure_pass(
    attends: Mapping[str, Attend],
    problems: Mapping[str, BenchProblem],
    passes: str,
    baseline: str,
    clock: str,
    threads: int,
    rounds: int,
    seconds: float,
) -> list[Timing]:
    given = {problem: problem.tensors() for problem in problems.values()}  # equal problems share their input

    def turn(name: str) -> Seconds:
        once = partial(run_once, attends[name], *given[problems[name]], passes)
        wanted = split_threads(name)[1] or threads
        if torch.get_num_threads() != wanted:
            torch.set_num_threads(wanted)
            once()  # wakes the threads, which would slow the timed call
        return once()

    turns = {name: partial(turn, name) for name in attends}
    taken = in_turns(turns, rounds, limit_s=seconds, collect=True)
    times = {name: [x.by(clock) for x in found] for name, found in taken.items()}
    timings = []
    positions = {name: problem.batch * problem.length for name, problem in problems.items()}
    medians_us = {name: 1e6 * float(np.median(spent)) / positions[name] for name, spent in times.items()}
    for name, spent in times.items():
        low, median, high = np.quantile(spent, (0.25, 0.5, 0.75)).tolist()
        base_us = medians_us.get(rival(name, baseline, list(times)))
        ratio = None if base_us is None else base_us / medians_us[name]
        shape = problems[name].length, problems[name].batch
        per_call_s = median, (low, high)
        parts_s = _medians_of_parts(taken[name], clock)
        timings.append(Timing(name, *shape, passes, clock, *per_call_s, medians_us[name], ratio, parts_s))
    return timings


def _medians_of_parts(taken: Sequence[Seconds], clock: str) -> dict[str, float]:
    steps = [[part.by(clock) for part in step.parts] for step in taken if isinstance(step, StepSeconds)]
    return {name: float(np.median(x)) for name, x in zip(PARTS, zip(*steps, strict=True), strict=False)}


def run_once(attend: Attend, inputs: Sequence[Tensor], target: Tensor, passes: str) -> Seconds:
    """Run a pass and return its time.

    Args:
        attend: what `build_operation` returns.
        inputs, target: what `BenchProblem.tensors` returns.
        passes: `forward`; `grouping`: the groups of clustered attention alone; or `forward+backward`, which
            computes the gradients of the inputs and of a layer's parameters, and trains a model.
    """
    device = str(target.device)
    if passes == GROUPING:
        assert isinstance(attend, ClusteredAttention)
        return time_of(partial(attend.clusters, inputs[0], k=inputs[1]), device)
    if passes == "forward":
        with torch.no_grad():
            return time_of(partial(attend, *inputs), device)
    if isinstance(attend, MeasuredModel):
        (features,) = inputs
        return attend.step(features, target)
    parameters = list(attend.parameters()) if isinstance(attend, nn.Module) else []

    def both() -> None:
        leaves = [x.detach().requires_grad_() for x in inputs]
        torch.autograd.grad(attend(*leaves), [*leaves, *parameters], target, allow_unused=True)

    return time_of(both, device)
