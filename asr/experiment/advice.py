"""Recommends a mechanism for given data and a machine: from the map, or from training steps timed there."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asr import config
from asr.attention import parse_name
from asr.attention.softmax import SoftmaxMechanism
from asr.attention.table import class_named, default_names, exchange
from asr.config import CONFIGS, Given
from asr.console import Column, Table, duration
from asr.data.concatenate import Concatenation
from asr.data.manifest import read_cuts
from asr.data.places import manifest_path
from asr.environment import bf16_support, describe_environment, pick_device
from asr.errors import UserError
from asr.experiment.bench import preset_named, time_in_turns
from asr.experiment.options import PASSES, AdviceConfig
from asr.experiment.paying import MATTERS, Spot, machine, spots
from asr.experiment.peaks import peak_memory_bytes
from asr.experiment.random_input import Problem
from asr.experiment.records import Evaluation
from asr.experiment.results import read_results
from asr.experiment.variant import Variant, given_variants, mechanism_of
from asr.measure import LEAST_ROUNDS, quartiles, usual_clock
from asr.preparation.recipes import folder_of_recipes
from asr.preparation.record import read_prepared
from asr.training.config import chosen_recipe, train_options
from asr.training.options import TrainConfig, train_schema
from asr.training.sizes import settled

# Options of training that the estimate depends on: always, to size batches by the data, and to concatenate
# utterances at random.
USED = (
    *("recipe", "model", "features.mel_bins", "features.frame_shift_ms"),
    *("data.frames_per_batch", "data.max_duration_s", "data.concatenate_s", CONFIGS),
)
SIZING = ("augment.speed_factors", "augment.tempo_factors")
RANDOM = ("seed",)
WORTH = 0.9  # a coarser approximation must take less than this share of a closer one's time
EXACT = "full"
# From closest to full attention to coarsest: tables 1 and 4 of *Fast Transformers with Clustered Attention*;
# `near` by the exchange tables of Whisper and of generated questions (docs/attention.md); local attention
# sees no distant key. Mechanisms that none of them compares count as coarser than these.
NEARNESS = ("full", "shared-full", "near", "oracle-top", "i-clustered", "lsh", "clustered", "local")
NEARBY = 2.0  # highest factor between the data's length and that of a row of the map


@dataclass(frozen=True)
class Lengths:
    """Lengths of the utterances that a training sees.

    Attributes:
        utterances: number of them before they are concatenated.
        durations_s, frames: duration of each, and its number of feature frames.
        training: options of the training.
    """

    utterances: int
    durations_s: NDArray[np.float64]
    frames: NDArray[np.int64]
    training: TrainConfig

    @classmethod
    def read(cls, path: Path, training: TrainConfig) -> "Lengths":
        """Read the lengths of a manifest or of a folder's training data."""
        manifest = manifest_path(str(path), "train")
        training = settled(replace(training, data=replace(training.data, train=[str(manifest)])))
        cuts, data = read_cuts(manifest, require_text=False), training.data
        joined_s = Concatenation(cuts.durations_s, data.concatenate_s, training.seed).durations(0)
        frames = np.maximum(1, np.round(joined_s * 1000 / training.features.frame_shift_ms))
        return cls(len(cuts), joined_s, frames.astype(np.int64), training)

    def at(self, q: float) -> int:
        """Return a quantile of the frames."""
        return round(float(np.quantile(self.frames, q)))

    def positions(self, frames: int) -> int:
        """Convert feature frames to encoder positions, rounded up."""
        return max(1, -(-frames // self.training.model.subsampling))

    def words(self) -> Iterator[str]:
        """Yield the distribution, and what training would leave out or can't put into a batch."""
        parts = [
            f"{name} {self.at(q):,} ({self.positions(self.at(q)):,})"
            for name, q in (("5 %", 0.05), ("median", 0.5), ("95 %", 0.95), ("longest", 1.0))
        ]
        data, factor = self.training.data, self.training.model.subsampling
        joined = (
            f", concatenated to {len(self.frames):,} of up to {data.concatenate_s:g} s"
            if data.concatenate_s
            else ""
        )
        hours = float(self.durations_s.sum()) / 3600
        yield (
            f"{self.utterances:,} utterances{joined}, {hours:.2f} h; frames, and positions after subsampling "
            f"by {factor}: {', '.join(parts)}"
        )
        over = int((self.durations_s > data.max_duration_s).sum())
        if over and not data.concatenate_s:
            yield (
                f"{over:,} utterances are longer than data.max_duration_s={data.max_duration_s:g}: training "
                "leaves them out; this estimate includes them"
            )
        if over := int((self.frames > data.frames_per_batch).sum()):
            limit = f"data.frames_per_batch={data.frames_per_batch:,}"
            yield f"{over:,} utterances are longer than a batch, {limit}"


@dataclass(frozen=True)
class Cost:
    """Expected training cost of a variant.

    Attributes:
        name: text of the variant.
        step_s: seconds per training step by length in feature frames.
        epoch_s: seconds per epoch, summed over all utterances at their own lengths.
        memory_mib: peak memory of a step at the 95th percentile of lengths; None if not measured.
        rounds: number of rounds of the measurement, where they are fewest.
        noise_s: quartiles of `epoch_s` over the rounds.
    """

    name: str
    step_s: dict[int, float]
    epoch_s: float
    memory_mib: float | None
    rounds: int
    noise_s: tuple[float, float]

    def faster_than(self, other: "Cost", share: float) -> bool:
        """Return whether it is shown to take at most this share of the other's time.

        That takes enough rounds for quartiles, and an upper quartile within this share of the other's lower
        one: a saving near the limit would be there in one measurement and gone in the next.
        """
        enough = min(self.rounds, other.rounds) >= LEAST_ROUNDS
        return enough and self.noise_s[1] <= share * other.noise_s[0]


def advice_options(given: Given) -> tuple[AdviceConfig, TrainConfig]:
    """Split the options of `asr advise` into its own and those of training.

    Raises:
        UserError: an option of training without effect, or a mechanism of another family.
    """
    own, others = config.divide(given, AdviceConfig, train_schema(chosen_recipe(given)))
    options, training = config.parse(AdviceConfig, own), train_options(others)
    _check_used(others, training)
    options.attentions = given_variants(options.attentions)
    for name in options.attentions:
        if not issubclass(class_named(mechanism_of(name)), SoftmaxMechanism):
            raise UserError(
                f"attention {name!r} is not of the softmax family: time it in a model with asr compare"
            )
    options.device = pick_device(options.device)
    return options, training


def with_recipe(path: Path, overrides: list[str]) -> list[str]:
    """Return options with the recipe that prepared the folder, unless they name another."""
    record = None if chosen_recipe(overrides) else read_prepared(path)
    known = record is not None and record.recipe in config.configurations("recipe")
    return [f"recipe={record.recipe}", *overrides] if record and known else overrides


def _check_used(given: dict[str, Any], training: TrainConfig) -> None:
    """Raise UserError for options of training that don't affect the estimate."""
    used = USED + (() if training.data.frames_per_batch else SIZING)
    used += RANDOM if training.data.concatenate_s else ()
    for key, value in given.items():
        if not any(key == name or key.startswith(f"{name}.") for name in used):
            hint = ", attentions names what to measure" if key == "attention" else ""
            raise UserError(f"{key}={value}: has no effect in asr advise{hint}")


def usual_variants(positions_95: int, device: str = "cpu") -> list[str]:
    """Return what is worth measuring: cheap rivals, then every exchangeable mechanism in the table's order.

    Args:
        positions_95: 95th percentile of lengths in encoder positions, which the number of clusters follows,
            except that of `near`: Whisper's results hardly change between `near-25` and `near-100`.
        device: `cpu` or `cuda`; bfloat16 is a rival where it has instructions for it.
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
    rivals = [f"{EXACT} frames=2", *([f"{EXACT} precision=bf16"] if bf16_support(device)[0] else [])]
    return [names[0], *rivals, *names[1:]]


def on_the_map(options: AdviceConfig, lengths: Lengths) -> tuple[Path, Spot] | None:
    """Return the row of the map that is nearest to the data, with its file; None without one.

    It is a training step of a model of the same sizes, on such a processor, at a length within a factor of
    two of the data's 95th percentile.
    """
    if options.attentions or options.measure:
        return None
    here = machine(describe_environment() | {"device": options.device})
    audio_s = float(np.quantile(lengths.durations_s, 0.95))
    found: list[tuple[float, Path, Spot]] = []
    for path in [*files(Path("exp/map")), *files(folder_of_recipes() / "map/results")]:
        for spot in spots(read_results(path)):
            same = (spot.passes, spot.processor, spot.threads) == (PASSES[-1], here, options.threads)
            if same and spot.baseline == EXACT and preset_named(spot.model) == lengths.training.model:
                factor = max(spot.audio_s, audio_s) / min(spot.audio_s, audio_s)
                found.append((factor, path, spot))
    nearest = min(found, key=lambda x: x[0], default=None)
    return nearest[1:] if nearest and nearest[0] <= NEARBY else None


def files(folder: Path) -> list[Path]:
    """Return the results in a folder of the map."""
    return sorted([*folder.glob("*.json"), *folder.glob("*.json.gz")])


def of_the_map(spot: Spot) -> str:
    """Return the variant that a row of the map recommends.

    It is full attention unless another is shown to save 5 % of the time; mechanisms and combinations must
    save a tenth more than precision or frames alone.
    """
    taken, share = EXACT, 1.0
    for axis in ("precision", "frames", "attention", "together"):
        rival = spot.rivals.get(axis)
        if rival and rival.shown and rival.ratio and (taken == EXACT or rival.ratio.value < WORTH * share):
            taken, share = rival.variant, rival.ratio.value
    return taken


def measure(options: AdviceConfig, lengths: Lengths, advance: Callable[[str], None]) -> list[Evaluation]:
    """Return the rows of training steps at the median, 95th percentile and maximum of the lengths.

    Args:
        options: variants, and how to measure them.
        lengths: the data; lengths above `longest` are measured there.
        advance: called with a description of the next measurement.
    """
    device, names = options.device, options.attentions
    limits = options.threads, options.rounds, options.seconds
    rows = []
    for frames in measured_at(options, lengths):
        advance(f"{lengths.positions(frames)} positions")
        same = dict.fromkeys(names, _problem(frames, lengths.training, device))
        rows += time_in_turns(same, PASSES[-1], usual_clock(device), *limits)
    at_95 = min(lengths.at(0.95), options.longest * lengths.training.model.subsampling)
    for row in rows if options.memory else ():
        if row.length == at_95:
            advance(f"memory of {row.variant}")
            problem = _problem(row.length, lengths.training, device)
            row.peak_mib = peak_memory_bytes(row.variant, problem) / 2**20
    return rows


def measured_at(options: AdviceConfig, lengths: Lengths) -> list[int]:
    """Return the lengths that are measured, in feature frames."""
    longest = options.longest * lengths.training.model.subsampling
    return sorted({min(lengths.at(q), longest) for q in (0.5, 0.95, 1.0)})


def expect(rows: Sequence[Evaluation], lengths: Lengths, clock: str) -> list[Cost]:
    """Return the cost of an epoch by variant, interpolated between the lengths of rows.

    Beyond the longest row the cost per frame is taken to be constant, the least that it can be.

    Args:
        rows: what `measure` returns.
        lengths: the data.
        clock: `cpu` or `wall`.
    """
    at = sorted({lengths.at(q) for q in (0.5, 0.95, 1.0)})
    expected = []
    for name in dict.fromkeys(row.variant for row in rows):
        own = sorted((row for row in rows if row.variant == name), key=lambda row: row.length)
        # Quartiles of seconds per frame, [lengths, 3].
        costs = np.array([np.array(quartiles(row.repeats_s(clock))) / row.positions for row in own])
        measured = [row.length for row in own]
        low_s, epoch_s, high_s = (
            float((np.interp(lengths.frames, measured, costs[:, x]) * lengths.frames).sum()) for x in range(3)
        )
        step_s = {n: float(np.interp(n, measured, costs[:, 1])) * n * _batch(n, lengths.training) for n in at}
        memory = next((row.peak_mib for row in own if row.peak_mib is not None), None)
        rounds = min(len(row.repeats_s(clock)) for row in own)
        expected.append(Cost(name, step_s, epoch_s, memory, rounds, (low_s, high_s)))
    return expected


def _problem(frames: int, training: TrainConfig, device: str) -> Problem:
    """Return a batch of this length that fills the frame budget."""
    batch, model = _batch(frames, training), training.model
    return Problem(
        model.heads, model.head_dim, "fp32", device, 0, "model", batch=batch, length=frames, preset=model
    )


def _batch(frames: int, training: TrainConfig) -> int:
    return max(1, training.data.frames_per_batch // frames)


def recommend(expected: Sequence[Cost]) -> Cost:
    """Return the recommended variant.

    It is full attention unless another is shown to save at least 5 % of an epoch; a coarser approximation
    replaces a closer one if it saves more than a tenth. Another precision or frame rate counts as closer than
    another mechanism.
    """

    def rank(entry: Cost) -> tuple[int, bool, bool, float]:
        spec = parse_name(mechanism_of(entry.name))
        place = NEARNESS.index(spec.mechanism) if spec.mechanism in NEARNESS else len(NEARNESS)
        by_hashes = spec.arguments.get("grouping") == "hash"  # with as many clusters, coarser than by keys
        return place, entry.name != Variant.read(entry.name).attention, by_hashes, entry.epoch_s

    ordered = sorted(expected, key=rank)
    taken = ordered[0]
    for entry in ordered[1:]:
        if entry.faster_than(taken, MATTERS if taken.name == EXACT else WORTH):
            taken = entry
    return taken


def training_options(name: str) -> str:
    """Return a variant as options of `asr train`.

    Example:
        >>> training_options("near-25 frames=2 precision=bf16")
        'attention=near-25 model.frames=2 trainer.precision=bf16'
    """
    keys = {"attention": "attention", "frames": "model.frames", "precision": "trainer.precision"}
    return " ".join(f"{keys[key]}={value}" for key, value in Variant.read(name).options().items())


def reason(expected: Sequence[Cost], taken: Cost, lengths: Lengths, device: str) -> str:
    """Return the reason for a recommendation.

    Args:
        expected: all variants.
        taken: the recommended one.
        lengths: the data.
        device: `cpu` or `cuda`.
    """
    frames = lengths.at(0.95)
    head = f"Your 95th percentile is {frames:,} frames ({lengths.positions(frames):,} positions): "
    where = "this GPU" if device != "cpu" else "this machine's CPU"
    others = [entry for entry in expected if entry.name != taken.name]
    if not others:
        return f"{head}{taken.name} is the only one measured."
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
            text += _not_shown(best, taken)
    if exact and exact is not best:
        text += f"; {EXACT} takes {exact.epoch_s / taken.epoch_s:.1f} times as long"
    errors = "" if taken.name == EXACT else " Time alone: asr compare measures what it costs in errors."
    return f"{head}{text}.{errors}"


def _not_shown(best: Cost, exact: Cost) -> str:
    """Return why the fastest isn't taken in place of full attention."""
    if best.epoch_s > MATTERS * exact.epoch_s:
        return f": an approximation must save {100 * (1 - MATTERS):.0f} % of the time"
    if exact.rounds < LEAST_ROUNDS:
        return f", and rounds={exact.rounds} show no difference: at least {LEAST_ROUNDS} do"
    if best.noise_s[1] >= exact.noise_s[0]:
        return ", and the quartiles of their times overlap: no difference is shown"
    return f", and the quartiles of their times show no {100 * (1 - MATTERS):.0f} % less"


def table(expected: list[Cost], options: AdviceConfig, lengths: Lengths) -> Table:
    """Return the expected costs of steps and of an epoch."""
    training, longest = lengths.training, options.longest * lengths.training.model.subsampling
    model, threads = training.model, "1 thread" if options.threads == 1 else f"{options.threads} threads"
    what = "CPU time" if options.device == "cpu" else "time"
    at = list(expected[0].step_s)
    caption = "forward and backward pass, CTC loss and optimiser, without loading and features"
    if at[-1] > longest:
        caption += f"\n≥ at least: not measured beyond {options.longest:,} positions"
    names = [f"{'≥ ' if n > longest else ''}{what} at {lengths.positions(n):,}" for n in at]
    names.append("per epoch")
    if options.memory:
        names.append(f"memory at {min(lengths.positions(lengths.at(0.95)), options.longest):,} (MiB)")
    rows = []
    for entry in expected:
        memory = [] if entry.memory_mib is None else [f"{entry.memory_mib:.0f}"]
        rows.append((entry.name, *map(duration, entry.step_s.values()), duration(entry.epoch_s), *memory))
    title = (
        f"expected training step with recipe={training.recipe.name}: {training.data.frames_per_batch:,} "
        f"frames, {model.layers} layers, {model.heads} heads of {model.head_dim}; {options.device}, {threads}"
    )
    return Table.of(title, [Column("attention", number=False, wrap=False), *names], rows, caption=caption)
