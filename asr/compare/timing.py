"""Time of a full forward pass over a split, all models and mechanisms side by side.

For every batch each model runs in turn, and again for every repeat, so that what disturbs the machine
disturbs them alike. Loading, filter banks and search are not in it.
"""

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asr.config import to_dict
from asr.data.batch import Batch, Utterances
from asr.data.manifest import load_cuts
from asr.data.sampler import BatchPlan, plan_by_length
from asr.model.acoustic_model import AcousticModel
from asr.recognizer import Recognizer


@dataclass
class Runner:
    """A model with a mechanism, and what its passes took.

    Attributes:
        model: model in evaluation mode, on its device.
        wall_s, cpu_s: of each repeat, all batches together.
        error: why it can't run; it is left out from then on.
    """

    model: AcousticModel
    wall_s: list[float]
    cpu_s: list[float]
    error: str = ""


def forward_times(
    models: list[tuple[Path, str]],
    manifest: Path,
    *,
    repeats: int,
    frames_per_batch: int,
    device: str,
    advance: Callable[[float], None],
) -> list[dict[str, Any]]:
    """Time every model on every utterance of a manifest.

    Args:
        models: run folder and mechanism of each.
        manifest: of the split.
        repeats: passes of each model over each batch.
        frames_per_batch: padded frames in a batch.
        device: `cpu` or `cuda`.
        advance: told the share that is done.

    Returns:
        For each model `forward_s` and `forward_cpu_s` (medians over the repeats), `forward_repeats_s`, and
        `error`, which is empty where all went well.
    """
    runners = [
        Runner(_load(run, attention, device), [0.0] * repeats, [0.0] * repeats) for run, attention in models
    ]
    batches = _batches(manifest, frames_per_batch, runners[0].model)
    for number, batch in enumerate(batches):
        inputs: dict[str, tuple[Tensor, Tensor]] = {}
        for runner in runners:
            key = json.dumps(to_dict(runner.model.config.features))
            if key not in inputs:
                inputs[key] = _features(runner.model, batch.to(torch.device(device)))
        for repeat in range(-1 if number == 0 else 0, repeats):  # −1 warms up
            for runner in runners:
                key = json.dumps(to_dict(runner.model.config.features))
                _run(runner, *inputs[key], repeat, device)
        advance((number + 1) / len(batches))
    return [_summary(runner) for runner in runners]


def _load(run: Path, attention: str, device: str) -> AcousticModel:
    return Recognizer.load(run, device=device, attention=attention).model


def _batches(manifest: Path, frames_per_batch: int, model: AcousticModel) -> list[Batch]:
    cuts = load_cuts(manifest)
    features = model.config.features
    frames = np.array([max(1, round(cut.duration * 1000 / features.frame_shift_ms)) for cut in cuts])
    plans = plan_by_length(frames, frames_per_batch, np.argsort(-frames, kind="stable"))
    utterances = Utterances(cuts, None, features.sample_rate)
    return [utterances[BatchPlan(tuple(plan.tolist()))] for plan in plans]


@torch.inference_mode()
def _features(model: AcousticModel, batch: Batch) -> tuple[Tensor, Tensor]:
    features, frames = model.filter_banks(batch.audio, batch.audio_lengths)
    return model.normalisation(features, frames), frames


@torch.inference_mode()
def _run(runner: Runner, features: Tensor, frames: Tensor, repeat: int, device: str) -> None:
    if runner.error:
        return
    synchronize = torch.cuda.synchronize if device != "cpu" else lambda: None
    synchronize()
    wall, cpu = time.perf_counter(), time.process_time()
    try:
        states, _ = runner.model.encoder(features, frames)
        runner.model.head(states)
        synchronize()
    except (torch.OutOfMemoryError, RuntimeError, MemoryError) as error:
        runner.error = (str(error).strip() or type(error).__name__).splitlines()[0]
        return
    if repeat >= 0:
        runner.wall_s[repeat] += time.perf_counter() - wall
        runner.cpu_s[repeat] += time.process_time() - cpu


def _summary(runner: Runner) -> dict[str, Any]:
    if runner.error:
        return {"forward_s": None, "forward_cpu_s": None, "forward_repeats_s": [], "error": runner.error}
    return {
        "forward_s": statistics.median(runner.wall_s),
        "forward_cpu_s": statistics.median(runner.cpu_s),
        "forward_repeats_s": runner.wall_s,
        "error": "",
    }
