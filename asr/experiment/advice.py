"""Recommends a mechanism for given data and a machine, from utterance lengths and a benchmark."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from asr.attention import parse_name
from asr.attention.multihead import SelfAttention
from asr.attention.table import class_named, default_names, exchange
from asr.experiment.bench import row_of, time_in_turns
from asr.experiment.options import PASSES, AdviceConfig
from asr.experiment.peaks import peak_memory_bytes
from asr.experiment.random_input import Problem
from asr.experiment.records import Evaluation
from asr.measure import LEAST_ROUNDS, in_turns, quartiles, time_of, torch_threads, usual_clock
from asr.model.encoder import Encoder
from asr.training.options import TrainConfig

MATTERS = 0.95  # maximum time of a recommended approximation relative to full attention, beyond the noise
WORTH = 0.9  # maximum time of a coarser approximation relative to a closer one
EXACT = "full"
REST = "rest"  # an encoder step without the mixing of attention
QUADRATIC = "N²"  # the table's entry for mechanisms with quadratic time; all others are linear
# From closest to full attention to coarsest: by tables 1 and 4 of *Fast Transformers with Clustered
# Attention*; `near` by the exchange tables of Whisper and of generated questions (docs/attention.md); local
# attention sees no distant keys. Other mechanisms count as coarser than these.
NEARNESS = ("full", "shared-full", "near", "oracle-top", "i-clustered", "lsh", "clustered", "local")


@dataclass(frozen=True)
class MechanismCost:
    """Expected training cost of a mechanism.

    Attributes:
        name: name of the mechanism.
        step_s: seconds per training step by length (encoder positions): attention in all layers and the rest
            of the encoder, which is the same for all mechanisms. Extrapolated beyond the longest measurement.
        attention_share: attention's fraction of the step at the longest of these lengths.
        epoch_s: seconds per epoch, summed over all utterances at their lengths.
        memory_mib: peak memory of attention in one layer, forward and backward; None if not measured.
        rounds: smallest number of rounds of a measurement.
        noise_s: quartiles of `epoch_s` over the rounds.
    """

    name: str
    step_s: dict[int, float]
    attention_share: float
    epoch_s: float
    memory_mib: float | None
    rounds: int
    noise_s: tuple[float, float]

    def faster_than(self, other: "MechanismCost", share: float) -> bool:
        """Return whether this mechanism demonstrably takes at most `share` of the other's time.

        This needs enough rounds for quartiles, and an upper quartile of at most `share` of the other's lower
        quartile: a saving near the limit would appear in one measurement and vanish in the next.
        """
        enough = min(self.rounds, other.rounds) >= LEAST_ROUNDS
        return enough and self.noise_s[1] <= share * other.noise_s[0]


def usual_mechanisms(positions_95: int) -> list[str]:
    """Return the mechanisms worth measuring: every exchangeable one, in the order of the table.

    Args:
        positions_95: 95th percentile of lengths in encoder positions; determines the number of clusters,
            except for `near`: Whisper's results hardly change between `near-25` and `near-100`.
    """
    clusters = 100 if positions_95 > 400 else 25
    numbers = {
        "lsh": ("1", "4"),
        "clustered": (f"{clusters}",),
        "i-clustered": (f"{clusters}", f"{clusters}:grouping=keys"),
        "near": ("25",),
    }
    names = []
    for default in default_names():
        mechanism = parse_name(default).mechanism
        if exchange(mechanism) != "no":
            names += [f"{mechanism}-{number}" for number in numbers.get(mechanism, ())] or [default]
    return names


def positions(frames: NDArray[np.int64], subsampling: int) -> NDArray[np.int64]:
    """Convert feature frames per utterance to encoder positions, rounded up."""
    return np.maximum(1, -(-frames // subsampling))


def measure(
    options: AdviceConfig,
    training: TrainConfig,
    at: Iterable[int],
    memory_at: int,
    advance: Callable[[str], None],
) -> list[Evaluation]:
    """Return the rows of mechanisms, forward and backward, and of the rest (`REST`) of an encoder step.

    Args:
        options: mechanisms and how to measure them.
        training: model sizes and frame budget.
        at: lengths in encoder positions, each in a batch that fills the frame budget; `longest` replaces
            longer ones.
        memory_at: one of these lengths, at which memory is measured, if at all.
        advance: called with a description of the next measurement.
    """
    names, longest, device = options.attentions, options.longest, options.device
    limits = options.threads, options.rounds, options.seconds
    rows = []
    for length in sorted({min(length, longest) for length in at}):
        advance(f"{length} positions")
        problem = _problem(length, training, device)
        same = dict.fromkeys(names, problem)
        rows += time_in_turns(same, PASSES[-1], usual_clock(device), *limits)
        rows.append(rest_row(problem, training, options.threads))
    for row in rows:
        if options.memory and row.length == min(memory_at, longest) and row.variant != REST:
            advance(f"memory of {row.variant}")
            row.peak_mib = peak_memory_bytes(row.variant, _problem(row.length, training, device)) / 2**20
    return rows


def expect(
    rows: Sequence[Evaluation],
    training: TrainConfig,
    lengths: NDArray[np.int64],
    at: Sequence[int],
    clock: str,
) -> list[MechanismCost]:
    """Extrapolate from lengths to an epoch.

    Beyond the longest row, the cost per position is constant, except for quadratic attention, where it grows
    with the length.

    Args:
        rows: result of `measure`.
        training: model sizes and frame budget.
        lengths: [utterances] encoder positions of each utterance.
        at: lengths to report, ascending.
        clock: `cpu` or `wall`.
    """
    # Lower quartile, median and upper quartile of seconds per position, by mechanism and length.
    costs: dict[str, dict[int, NDArray[np.float64]]] = {}
    for row in rows:
        each = np.array(quartiles(row.repeats_s(clock))) / row.positions
        costs.setdefault(row.variant, {})[row.length] = each
    rest = costs.pop(REST)
    measured = sorted(rest)
    memory = {row.variant: row.peak_mib for row in rows if row.peak_mib is not None}
    rounds = {name: min(len(x.repeats_s(clock)) for x in rows if x.variant == name) for name in costs}

    def others(n: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.asarray(np.interp(n, measured, [rest[length][1] for length in measured]))

    def attention(name: str, n: NDArray[np.int64], which: int = 1) -> NDArray[np.float64]:
        grows = class_named(name).time == QUADRATIC
        growth = np.maximum(n / measured[-1], 1.0) if grows else 1.0
        each = [training.model.layers * costs[name][length][which] for length in measured]
        return np.asarray(np.interp(n, measured, each) * growth)

    expected = []
    shown = np.array(at)
    sizes = [n * _batch(n, training) for n in at]
    for name in costs:
        low_s, epoch_s, high_s = (
            float(((attention(name, lengths, x) + others(lengths)) * lengths).sum()) for x in range(3)
        )
        step = attention(name, shown) + others(shown)
        step_s = {n: float(cost * size) for n, cost, size in zip(at, step, sizes, strict=True)}
        share = float(attention(name, shown)[-1] / step[-1])
        noise_s = low_s, high_s
        expected.append(MechanismCost(name, step_s, share, epoch_s, memory.get(name), rounds[name], noise_s))
    return expected


def rest_row(problem: Problem, training: TrainConfig, threads: int) -> Evaluation:
    """Return the row of an encoder step, forward and backward, without the mixing of attention."""
    model = training.model
    with torch_threads(threads):
        encoder = Encoder(model, training.features.mel_bins, EXACT).to(problem.device).train()
        for layer in encoder.modules():
            if isinstance(layer, SelfAttention):
                layer.mechanism = NoMixing()  # type: ignore[assignment]
        generator = torch.Generator().manual_seed(problem.seed)
        shape = (problem.batch, problem.length * model.subsampling, training.features.mel_bins)
        features = torch.randn(shape, generator=generator).to(problem.device)
        lengths = torch.full((problem.batch,), shape[1], device=problem.device)

        def step() -> None:
            encoder(features, lengths)[0].sum().backward()

        taken = in_turns({REST: partial(time_of, step, problem.device)}, LEAST_ROUNDS)[REST]
    return row_of(REST, problem, PASSES[-1], taken)


class NoMixing(nn.Module):
    """Replaces a mechanism: values aren't mixed, but gradients still reach queries and keys."""

    def forward(self, q_BHND: Tensor, k_BHND: Tensor, v_BHND: Tensor, *_: object, **others: object) -> Tensor:
        """Return the sum of queries, keys and values."""
        return q_BHND + k_BHND + v_BHND


def _problem(length: int, training: TrainConfig, device: str) -> Problem:
    """Return a batch of this length that fills the frame budget."""
    model = training.model
    batch = _batch(length, training)
    return Problem(model.heads, model.head_dim, "fp32", device, 0, batch=batch, length=length)


def _batch(length: int, training: TrainConfig) -> int:
    return max(1, training.data.frames_per_batch // (length * training.model.subsampling))


def recommend(expected: Sequence[MechanismCost]) -> MechanismCost:
    """Return the recommended mechanism.

    It is full attention unless an approximation is shown to save at least 5 % of an epoch; a coarser
    approximation replaces a closer one if it saves more than a tenth.
    """

    def rank(entry: MechanismCost) -> tuple[int, bool, float]:
        spec = parse_name(entry.name)
        place = NEARNESS.index(spec.mechanism) if spec.mechanism in NEARNESS else len(NEARNESS)
        by_hashes = spec.arguments.get("grouping") == "hash"  # coarser than by keys with as many clusters
        return place, by_hashes, entry.epoch_s

    ordered = sorted(expected, key=rank)
    taken = ordered[0]
    for entry in ordered[1:]:
        if entry.faster_than(taken, MATTERS if taken.name == EXACT else WORTH):
            taken = entry
    return taken


def reason(
    expected: Sequence[MechanismCost], taken: MechanismCost, frames_95: int, positions_95: int, device: str
) -> str:
    """Return the reason for a recommendation.

    Args:
        expected: all mechanisms.
        taken: the recommended mechanism.
        frames_95, positions_95: 95th percentile of lengths in feature frames and in encoder positions.
        device: `cpu` or `cuda`.
    """
    longest = max(taken.step_s)
    head = f"Your 95th percentile is {frames_95:,} frames ({positions_95:,} positions): "
    where = "this GPU" if device != "cpu" else "this machine's CPU"
    others = [entry for entry in expected if entry.name != taken.name]
    if not others:
        return f"{head}{taken.name} is the only mechanism measured."
    best = min(others, key=lambda entry: entry.epoch_s)
    exact = next((entry for entry in others if entry.name == EXACT), None)
    if exact and taken.epoch_s < best.epoch_s:
        best = exact
    longer = round(100 * (taken.epoch_s / best.epoch_s - 1))
    if longer == 0:
        text = f"{taken.name} is level with {best.name} on {where}, within 1 % of an epoch"
    elif longer < 0:
        saved = 100 * (1 - taken.epoch_s / best.epoch_s)
        text = f"{taken.name} is the fastest on {where}: {saved:.0f} % less time per epoch than {best.name}"
    else:
        closer = "which is exact" if taken.name == EXACT else "which is closer to full attention"
        text = (
            f"{best.name} is the fastest on {where}, but {taken.name}, {closer}, takes only {longer} % longer"
        )
        if taken.name == EXACT:
            if best.epoch_s > MATTERS * taken.epoch_s:
                text += f": an approximation must save {100 * (1 - MATTERS):.0f} % of the time"
            elif taken.rounds < LEAST_ROUNDS:
                text += f", and rounds={taken.rounds} show no difference: at least {LEAST_ROUNDS} do"
            elif best.noise_s[1] >= taken.noise_s[0]:
                text += ", and the quartiles of their times overlap: no difference is shown"
            else:
                text += f", and the quartiles of their times show no {100 * (1 - MATTERS):.0f} % less"
    if exact and exact is not best:
        text += f"; {EXACT} takes {exact.epoch_s / taken.epoch_s:.1f} times as long"
    share = f"attention is {100 * taken.attention_share:.0f} % of its step at {longest:,} positions"
    errors = "" if taken.name == EXACT else " Time alone: asr compare measures what it costs in errors."
    return f"{head}{text}; {share}.{errors}"
