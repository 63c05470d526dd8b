"""Batch size, number of epochs and precision where the options leave them open."""

from dataclasses import replace

import numpy as np

from asr.data.lines import manifest_entries
from asr.data.options import MIN_DURATION_S
from asr.data.places import manifest_path
from asr.data.sampler import plan_by_length
from asr.environment import Precision, pick_device, pick_precision
from asr.training.options import TrainConfig

BATCHES_PER_EPOCH = 100  # within the limits of FRAMES_PER_BATCH
FRAMES_PER_BATCH = (1_000, 20_000)  # 10 to 200 s with the usual frame shift
EPOCHS = 40
STEPS = 500  # with fewer, random weights hardly learn anything
VALIDATIONS = 40


def settled(options: TrainConfig) -> TrainConfig:
    """Return the options with values for frames_per_batch=0, max_epochs=0 and precision=auto.

    The numbers depend on the training manifests and the other options only, so a resumed run gets the same.
    The precision depends on the machine, and a machine that would choose another refuses to resume.

    Raises:
        UserError: a manifest is missing or broken.
    """
    if options.trainer.precision == "auto":
        options = replace(options, trainer=replace(options.trainer, precision=precision(options).name))
    data, trainer = options.data, options.trainer
    if data.frames_per_batch and trainer.max_epochs:
        return options
    frames = _training_frames(options)
    size = data.frames_per_batch or int(np.clip(frames.sum() // BATCHES_PER_EPOCH, *FRAMES_PER_BATCH))
    options = replace(options, data=replace(data, frames_per_batch=size))
    if trainer.max_epochs:
        return options
    order = np.argsort(frames, kind="stable")
    batches = len(plan_by_length(frames, size, order, data.utterances_per_batch)) if len(frames) else 1
    steps = max(1, batches // (trainer.devices * trainer.nodes * trainer.accumulate))  # per epoch
    epochs = max(EPOCHS, -(-STEPS // steps))
    every = trainer.validate_every or steps * -(-epochs // VALIDATIONS)
    return replace(options, trainer=replace(trainer, max_epochs=epochs, validate_every=every))


def precision(options: TrainConfig) -> Precision:
    """Return the precision of a training and its reason; see `pick_precision`."""
    accelerator = pick_device(options.trainer.accelerator, "trainer.accelerator")
    return pick_precision(options.trainer.precision, accelerator, "trainer.precision")


def reasons(asked: TrainConfig, chosen: TrainConfig) -> list[str]:
    """Return a line for each option that `settled` has chosen."""
    lines = []
    if asked.trainer.precision == "auto":
        lines.append(f"trainer.precision={chosen.trainer.precision}, because {precision(asked).reason}")
    if not asked.data.frames_per_batch:
        low, high = FRAMES_PER_BATCH
        lines.append(
            f"data.frames_per_batch={chosen.data.frames_per_batch}, for about {BATCHES_PER_EPOCH} batches "
            f"per epoch, but at least {low:,} and at most {high:,} frames each"
        )
    if not asked.trainer.max_epochs and not (asked.trainer.max_steps or asked.trainer.budget):
        lines.append(
            f"trainer.max_epochs={chosen.trainer.max_epochs} trainer.validate_every="
            f"{chosen.trainer.validate_every}, for at least {EPOCHS} epochs and {STEPS} steps"
        )
    return lines


def _training_frames(options: TrainConfig) -> np.ndarray:
    """Return the number of frames of each training utterance within the duration limits, [utterances]."""
    data = options.data
    entries = (entry for place in data.train for entry in manifest_entries(manifest_path(place, "train")))
    durations = (entry.get("duration") for entry in entries)
    durations_s = np.array([x for x in durations if isinstance(x, int | float)], dtype=np.float64)
    chosen_s = durations_s[(durations_s >= MIN_DURATION_S) & (durations_s <= data.max_duration_s)]
    frames = np.rint(chosen_s / options.augment.slowest * 1000 / options.features.frame_shift_ms)
    return np.maximum(1, frames).astype(np.int64)
