"""Recommends a mechanism for given data and a machine: from the map, or from training steps timed there."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asr import config
from asr.attention.softmax import SoftmaxMechanism
from asr.attention.table import class_named
from asr.config import CONFIGS, Given
from asr.console import counted, hours
from asr.data.concatenate import Concatenation
from asr.data.manifest import read_cuts
from asr.data.places import manifest_path
from asr.environment import bf16_support, describe_environment, pick_device
from asr.errors import UserError
from asr.experiment.bench import preset_named, time_in_turns
from asr.experiment.options import PASSES, AdviceConfig
from asr.experiment.paying import MATTERS, Spot, machine, spots
from asr.experiment.random_input import Problem
from asr.experiment.records import Evaluation
from asr.experiment.results import Results, read_results
from asr.experiment.variant import Variant, check_precisions, given_variants, mechanism_of
from asr.measure import LEAST_ROUNDS, usual_clock
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
WORTH = 0.9  # an approximation must take less than this share of the time of precision or frames alone
EXACT = "full"
TYPICAL = 0.95  # quantile of the lengths that decides
ALIKE = 1.25  # factor up to which lengths are measured as one
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
        yield (
            f"{counted(self.utterances, 'utterance')}{joined}, {hours(float(self.durations_s.sum()))}; "
            f"frames (and positions after subsampling by {factor}): {', '.join(parts)}"
        )
        over = int((self.durations_s > data.max_duration_s).sum())
        if over and not data.concatenate_s:
            yield (
                f"{counted(over, 'utterance is', 'utterances are')} longer than data.max_duration_s="
                f"{data.max_duration_s:g}: training leaves out such audio; this estimate includes it"
            )
        if over := int((self.frames > data.frames_per_batch).sum()):
            limit = f"data.frames_per_batch={data.frames_per_batch:,}"
            yield f"{counted(over, 'utterance is', 'utterances are')} longer than a batch, {limit}"


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
    check_precisions(map(Variant.read, options.attentions), options.device)
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
    if training.model.encoder:
        raise UserError(
            f"model.encoder={training.model.encoder}: asr advise times models of this project; "
            "asr compare model=… data=… times others"
        )
    for key, value in given.items():
        if not any(key == name or key.startswith(f"{name}.") for name in used):
            hint = ", attentions names what to measure" if key == "attention" else ""
            raise UserError(f"{key}={value}: has no effect in asr advise{hint}")


def usual_variants(device: str = "cpu", frames: str = "1") -> list[str]:
    """Return what the map measures at any number of layers, and bfloat16 where `device` has it.

    A model with a schedule of `frames` isn't measured at half of all frames.
    """
    bf16 = [f"{EXACT} precision=bf16"] if bf16_support(device)[0] else []
    rivals = ("near-25", "near-25 frames=2", "i-clustered-100:grouping=keys", "local-128")
    named = [f"{EXACT} frames=2", *bf16, *rivals]
    return [x for x in named if frames == "1" or not Variant.read(x).frames]


def on_the_map(options: AdviceConfig, lengths: Lengths) -> tuple[Path, Spot] | None:
    """Return the row of the map that is nearest to the data, with its file; None without one.

    It is a training step of a model of the same sizes, on such a processor, at a length within a factor of
    two of the data's 95th percentile.
    """
    if options.attentions or options.measure:
        return None
    here = machine(describe_environment() | {"device": options.device})
    audio_s = float(np.quantile(lengths.durations_s, TYPICAL))
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


def measured_at(options: AdviceConfig, lengths: Lengths) -> dict[float, int]:
    """Return the lengths that are measured, in feature frames, by quantile of the data's lengths.

    Median and maximum are measured as the 95th percentile if they are nearly as long.
    """
    longest = options.longest * lengths.training.model.subsampling
    found = {q: min(lengths.at(q), longest) for q in (0.5, TYPICAL, 1.0)}
    typical = found[TYPICAL]
    return {q: x if max(x, typical) > ALIKE * min(x, typical) else typical for q, x in found.items()}


def reason(spot: Spot, taken: str) -> str:
    """Return why a row of the map recommends this variant."""
    ratio = next((x.ratio for x in spot.rivals.values() if x.variant == taken), None)
    if ratio is None:
        return f"No other is shown to save {100 * (1 - MATTERS):.0f} % of a training step."
    return f"A training step takes {ratio.text('{:.2f}'.format)} of the time that it takes with {EXACT}."


def measure(
    options: AdviceConfig, lengths: Lengths, advance: Callable[[str, float], None]
) -> dict[int, Spot]:
    """Time training steps at the median, 95th percentile and maximum of the lengths.

    Args:
        options: variants, and how to measure them.
        lengths: the data; lengths above `longest` are measured there.
        advance: called with a description of the measurement, and the fraction of all that is done.

    Returns:
        What pays, by length in feature frames, shortest first.
    """
    training, clock = lengths.training, usual_clock(options.device)
    limits = options.threads, options.rounds, options.seconds
    at = sorted(set(measured_at(options, lengths).values()))
    variants = dict.fromkeys([EXACT, *options.attentions])
    least = (1 + min(LEAST_ROUNDS, options.rounds)) * len(variants)  # turns; more may fit in the time limit

    def timed(number: int, frames: int) -> list[Evaluation]:
        turns = itertools.count(1)

        def advanced() -> None:
            done = number + min(1.0, next(turns) / least)
            advance(f"{lengths.positions(frames)} positions", done / len(at))

        same = dict.fromkeys(variants, _problem(frames, training, options.device))
        return time_in_turns(same, PASSES[-1], clock, *limits, advance=advanced)

    rows = [row for number, frames in enumerate(at) for row in timed(number, frames)]
    model = f"recipe={training.recipe.name}, batches of {training.data.frames_per_batch:,} frames"
    bench = {"unit": "model", "model": model, "threads": options.threads}
    bench |= {"device": options.device, "frame_shift_ms": training.features.frame_shift_ms}
    protocol = {"clock": clock, "baseline": EXACT, "bench": bench}
    found = spots(Results([], protocol=protocol, environment=describe_environment(), evaluations=rows))
    return dict(zip(at, found, strict=True))


def _problem(frames: int, training: TrainConfig, device: str) -> Problem:
    """Return a batch of this length that fills the frame budget."""
    batch, model = max(1, training.data.frames_per_batch // frames), training.model
    return Problem(
        model.heads, model.head_dim, "fp32", device, 0, "model", batch=batch, length=frames, preset=model
    )


def training_options(name: str) -> str:
    """Return a variant as options of `asr train`.

    Example:
        >>> training_options("near-25 frames=2 precision=bf16")
        'attention=near-25 model.frames=2 trainer.precision=bf16'
    """
    keys = {"attention": "attention", "frames": "model.frames", "precision": "trainer.precision"}
    return " ".join(f"{keys[key]}={value}" for key, value in Variant.read(name).options().items())
