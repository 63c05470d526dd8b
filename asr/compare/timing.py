"""Time of a full forward pass over a split, with all models and mechanisms side by side.

Every batch goes through all models in turn, once per repeat, so that disturbances affect them alike. Loading,
filter banks and search are not timed.
"""

import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asr.compare.records import Conditions
from asr.config import to_dict
from asr.data.batch import Batch, Utterances
from asr.data.manifest import read_cuts
from asr.data.sampler import BatchPlan, plan_by_length
from asr.model.acoustic_model import AcousticModel
from asr.recognizer import Recognizer


@dataclass
class Runner:
    """A model with a mechanism, and the times of its forward passes.

    Attributes:
        model: model in evaluation mode on its device.
        features: key of its front end; models that share it share inputs.
        wall_s, cpu_s: total over all batches, per repeat.
        error: reason why the model cannot run; it is skipped from then on.
    """

    model: AcousticModel
    features: str
    wall_s: list[float]
    cpu_s: list[float]
    error: str = ""


@torch.inference_mode()
def forward_times(
    models: list[tuple[Path, str]],
    manifest: Path,
    *,
    repeats: int,
    frames_per_batch: int,
    device: str,
    threads: int,
    advance: Callable[[float], None],
) -> tuple[list[dict[str, Any]], Conditions]:
    """Time every model on every utterance of a manifest.

    Args:
        models: run folder and mechanism of each model.
        manifest: manifest of the split.
        repeats: passes of each model over each batch.
        frames_per_batch: padded frames per batch.
        device: `cpu` or `cuda`.
        threads: CPU threads; 0: PyTorch's default.
        advance: called with the completed fraction.

    Returns:
        For each model `forward_s` and `forward_cpu_s` (medians over the repeats), `forward_repeats_s`,
        `forward_cpu_repeats_s` and `error`, which is empty on success; and the load on the machine meanwhile.
    """
    if threads:
        torch.set_num_threads(threads)
    runners = []
    for run, attention in models:
        model = Recognizer.load(run, device=device, attention=attention).model
        key = json.dumps([to_dict(model.config.features), model.config.pretrained])
        runners.append(Runner(model, key, [0.0] * repeats, [0.0] * repeats))
    cuts = read_cuts(manifest)
    frame_shift_ms = runners[0].model.config.features.frame_shift_ms
    lengths = np.maximum(1, np.rint(cuts.durations_s * 1000 / frame_shift_ms)).astype(np.int64)
    plans = plan_by_length(lengths, frames_per_batch, np.argsort(-lengths, kind="stable"))
    others = OtherProcesses()
    for number, plan in enumerate(plans):
        batches: dict[int, Batch] = {}  # by sample rate
        inputs: dict[str, tuple[Tensor, Tensor]] = {}
        for runner in runners:
            rate = runner.model.sample_rate
            if rate not in batches:
                batch = Utterances(cuts, None, rate)[BatchPlan(tuple(plan.tolist()))]
                batches[rate] = batch.to(torch.device(device))
            if runner.features not in inputs:
                features, frames = runner.model.front_end(batches[rate].audio, batches[rate].audio_lengths)
                inputs[runner.features] = runner.model.normalisation(features, frames), frames
        for repeat in range(-1 if number == 0 else 0, repeats):  # −1 warms up
            for runner in runners:
                _run(runner, *inputs[runner.features], repeat, device)
        advance((number + 1) / len(plans))
    conditions = Conditions(
        device=device,
        threads=torch.get_num_threads(),
        wall_s=sum(sum(runner.wall_s) for runner in runners),
        cpu_s=sum(sum(runner.cpu_s) for runner in runners),
        other_cpus=others.cpus(),
    )
    times = [
        {
            "forward_s": None if runner.error else statistics.median(runner.wall_s),
            "forward_cpu_s": None if runner.error else statistics.median(runner.cpu_s),
            "forward_repeats_s": [] if runner.error else runner.wall_s,
            "forward_cpu_repeats_s": [] if runner.error else runner.cpu_s,
            "error": runner.error,
        }
        for runner in runners
    ]
    return times, conditions


class OtherProcesses:
    """Measures how many CPUs other processes have kept busy since it was created.

    Compares the busy time of all CPUs in /proc/stat with the CPU time of this process. Unlike the load
    average, it does not remember what ran before.

    Args:
        stat: file in the format of /proc/stat.
    """

    def __init__(self, stat: Path = Path("/proc/stat")) -> None:
        self.stat = stat
        self.started = self._read()

    def cpus(self) -> float | None:
        """Return the mean number of busy CPUs; None where /proc/stat is missing."""
        wall_s, busy_s, own_s = (now - then for now, then in zip(self._read(), self.started, strict=True))
        if busy_s <= 0 or wall_s <= 0:  # no such file, or a sandbox that does not fill it in
            return None
        return max(0.0, (busy_s - own_s) / wall_s)

    def _read(self) -> tuple[float, float, float]:
        """Return wall-clock time, busy time of all CPUs (0 if unknown) and CPU time of this process."""
        try:
            fields = [int(field) for field in self.stat.read_text().split("\n")[0].split()[1:]]
        except (OSError, ValueError):
            fields = []
        user, nice, system, _, _, irq, softirq, steal = (fields + 8 * [0])[:8]  # guest is part of user
        busy_s = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
        return time.perf_counter(), busy_s, time.process_time()


def _run(runner: Runner, features: Tensor, frames: Tensor, repeat: int, device: str) -> None:
    if runner.error:
        return
    synchronize = torch.cuda.synchronize if device != "cpu" else lambda: None
    synchronize()
    wall, cpu = time.perf_counter(), time.process_time()
    try:
        runner.model.emit(features, frames)
        synchronize()
    except (torch.OutOfMemoryError, RuntimeError, MemoryError) as error:
        runner.error = (str(error).strip() or type(error).__name__).splitlines()[0]
        return
    if repeat >= 0:
        runner.wall_s[repeat] += time.perf_counter() - wall
        runner.cpu_s[repeat] += time.process_time() - cpu
