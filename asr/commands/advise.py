"""`asr advise`: recommend an attention mechanism for your data and machine."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asr import config
from asr.attention.softmax import SoftmaxMechanism
from asr.attention.table import canonical, class_named, missing_kernels
from asr.config import CONFIGS, Given
from asr.console import Column, Table, duration, open_console, progress
from asr.data.concatenate import Concatenation
from asr.data.manifest import read_cuts
from asr.data.places import manifest_path
from asr.environment import pick_device
from asr.errors import UserError
from asr.experiment.advice import (
    MechanismCost,
    expect,
    measure,
    positions,
    reason,
    recommend,
    usual_mechanisms,
)
from asr.experiment.options import AdviceConfig
from asr.measure import usual_clock
from asr.preparation.record import read_prepared
from asr.training.config import chosen_recipe, train_options
from asr.training.options import TrainConfig, train_schema
from asr.training.sizes import settled

# Options of training that the estimate depends on: always, to size batches by the data, and to concatenate
# utterances at random.
USED = (
    "recipe",
    "model",
    "features.mel_bins",
    "features.frame_shift_ms",
    "data.frames_per_batch",
    "data.max_duration_s",
    "data.concatenate_s",
    CONFIGS,
)
SIZING = ("augment.speed_factors", "augment.tempo_factors")
RANDOM = ("seed",)


def main(paths: list[str], overrides: list[str]) -> None:
    """Advise on training with the recipe that prepared the folder, unless the overrides name another."""
    if len(paths) == 1 and not chosen_recipe(overrides):
        record = read_prepared(Path(paths[0]))
        name = record.recipe if record else ""
        if name in config.configurations("recipe"):
            overrides = [f"recipe={name}", *overrides]
    run([Path(path) for path in paths], parse(overrides))


def parse(given: Given) -> tuple[AdviceConfig, TrainConfig]:
    """Split the options into those of the benchmark and those of training."""
    own, others = config.divide(given, AdviceConfig, train_schema(chosen_recipe(given)))
    options = config.parse(AdviceConfig, own)
    training = train_options(others)
    _check_used(others, training)
    options.attentions = canonical(options.attentions)
    for name in options.attentions:
        if not issubclass(class_named(name), SoftmaxMechanism):
            raise UserError(
                f"attention {name!r} is not of the softmax family: time it in a model with asr compare"
            )
    options.device = pick_device(options.device)
    return options, training


def _check_used(given: dict[str, Any], training: TrainConfig) -> None:
    """Raise UserError for options of training that don't affect the estimate."""
    used = USED + (() if training.data.frames_per_batch else SIZING)
    used += RANDOM if training.data.concatenate_s else ()
    for key, value in given.items():
        if not any(key == name or key.startswith(f"{name}.") for name in used):
            hint = ", attentions names what to measure" if key == "attention" else ""
            raise UserError(f"{key}={value}: has no effect in asr advise{hint}")


def run(paths: list[Path], asked: tuple[AdviceConfig, TrainConfig]) -> None:
    """Measure at the data's lengths; print lengths, expected costs and a recommendation."""
    options, training = asked
    if len(paths) != 1:
        raise UserError(f"asr advise takes one manifest or prepared folder, found {len(paths)}")
    manifest = manifest_path(str(paths[0]), "train")
    training = settled(replace(training, data=replace(training.data, train=[str(manifest)])))
    cuts = read_cuts(manifest, require_text=False)
    data = training.data
    durations_s = Concatenation(cuts.durations_s, data.concatenate_s, training.seed).durations(0)
    frames = np.maximum(1, np.round(durations_s * 1000 / training.features.frame_shift_ms)).astype(np.int64)
    lengths = positions(frames, training.model.subsampling)
    quantiles = {q: round(float(np.quantile(lengths, q))) for q in (0.5, 0.95, 1.0)}
    at = sorted(set(quantiles.values()))
    options.attentions = options.attentions or usual_mechanisms(quantiles[0.95])
    console = open_console()
    console.print(_lengths(len(cuts), frames, training), highlight=False)
    for line in _warnings(durations_s, frames, training):
        console.print(line, style="yellow", highlight=False)
    if notice := missing_kernels(options.attentions, options.device):
        console.print(notice, style="yellow", markup=False, soft_wrap=True)
    with progress() as bars:
        steps = len({min(n, options.longest) for n in at}) + (
            len(options.attentions) if options.memory else 0
        )
        task = bars.add_task("measuring", total=steps)

        def advance(what: str) -> None:
            bars.update(task, description=f"measuring {what}", advance=1)

        rows = measure(options, training, at, quantiles[0.95], advance)
    expected = expect(rows, training, lengths, at, usual_clock(options.device))
    console.print(_table(expected, at, quantiles[0.95], options, training))
    taken = recommend(expected)
    frames_95 = round(float(np.quantile(frames, 0.95)))
    why = reason(expected, taken, frames_95, quantiles[0.95], options.device)
    console.print(f"attention={taken.name}", style="bold", highlight=False)
    console.print(why, highlight=False)


def _lengths(utterances: int, frames: NDArray[np.int64], training: TrainConfig) -> str:
    """Return the distribution of the utterance lengths in words."""
    factor = training.model.subsampling
    parts = []
    for name, q in (("5 %", 0.05), ("median", 0.5), ("95 %", 0.95), ("longest", 1.0)):
        n = round(float(np.quantile(frames, q)))
        parts.append(f"{name} {n:,} ({-(-n // factor):,})")
    seconds = float(frames.sum()) * training.features.frame_shift_ms / 1000
    joined = ""
    if training.data.concatenate_s:
        joined = f", concatenated to {len(frames):,} of up to {training.data.concatenate_s:g} s"
    return (
        f"{utterances:,} utterances{joined}, {seconds / 3600:.2f} h; frames, and positions after subsampling "
        f"by {factor}: {', '.join(parts)}"
    )


def _warnings(
    durations_s: NDArray[np.float64], frames: NDArray[np.int64], training: TrainConfig
) -> Iterator[str]:
    """Yield warnings about utterances that training would leave out or that exceed a batch."""
    data = training.data
    if not data.concatenate_s and (over := int((durations_s > data.max_duration_s).sum())):
        yield (
            f"{over:,} utterances are longer than data.max_duration_s={data.max_duration_s:g}: training "
            "leaves them out; this estimate includes them"
        )
    if over := int((frames > data.frames_per_batch).sum()):
        yield f"{over:,} utterances are longer than a batch, data.frames_per_batch={data.frames_per_batch:,}"


def _table(
    expected: list[MechanismCost],
    at: list[int],
    positions_95: int,
    options: AdviceConfig,
    training: TrainConfig,
) -> Table:
    model = training.model
    what = "CPU time" if options.device == "cpu" else "time"
    title = (
        f"expected training step with recipe={training.recipe.name}: {training.data.frames_per_batch:,} "
        f"frames, {model.layers} layers, {model.heads} heads of {model.head_dim}; "
        f"{options.device}, {options.threads} thread" + ("s" if options.threads > 1 else "")
    )
    caption = "forward and backward pass of the encoder, without loading, features, CTC loss and optimiser"
    if at[-1] > options.longest:
        caption += f"\n≈ extrapolated from {options.longest:,} positions, quadratically for full attention"
    names = [f"{'≈ ' if length > options.longest else ''}{what} at {length:,}" for length in at]
    names.append("per epoch")
    if options.memory:
        names.append(f"attention memory per layer at {min(positions_95, options.longest):,} (MiB)")
    rows = []
    for entry in expected:
        steps = [duration(entry.step_s[length]) for length in at]
        memory = [] if entry.memory_mib is None else [f"{entry.memory_mib:.0f}"]
        rows.append((entry.name, *steps, duration(entry.epoch_s), *memory))
    return Table.of(title, [Column("attention", number=False, wrap=False), *names], rows, caption=caption)
