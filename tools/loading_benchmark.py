"""Measure the CPU time of loading an utterance for training, by sample rate of its file.

    python tools/loading_benchmark.py

Loading is what a training step waits for: decode a 16-bit wav file of 3 s, check it, resample it to 16 kHz
and change its speed by each of the folder recipe's factors. `step` is a forward and backward pass of that
recipe's model over the same utterance. Rates take turns; times are medians.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import soundfile
import torch

from asr.data.audio import load_cut
from asr.model.acoustic_model import AcousticModel, AcousticModelConfig
from asr.preparation.cuts import recording, utterance_cut
from asr.training.config import train_options

RATES = (8000, 11_025, 16_000, 22_050, 22_255, 24_000, 32_000, 44_100, 48_000, 96_000, 176_400)
SECONDS = 3
ROUNDS = 15


def cpu_ms(work: Callable[..., object], *arguments: object) -> float:
    """Return the CPU time of a call in milliseconds."""
    started = time.process_time()
    work(*arguments)
    return 1000 * (time.process_time() - started)


def main() -> None:
    """Print a line per rate."""
    torch.set_num_threads(1)
    options = train_options(["recipe=folder"])
    speeds = options.augment.speed_factors
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        cuts = {}
        for rate in RATES:
            path = Path(folder, f"{rate}.wav")
            soundfile.write(path, 0.1 * random.standard_normal(SECONDS * rate), rate, subtype="PCM_16")
            source = recording(str(rate), path, SECONDS * rate, rate, 1)
            cuts[rate] = utterance_cut(str(rate), source, "a", "speaker")

        def load(rate: int) -> None:
            for speed in speeds:
                load_cut(cuts[rate], options.features.sample_rate, speed=speed)

        model = AcousticModel(AcousticModelConfig("full", "auto", options.features, options.model), 30)
        audio = torch.from_numpy(load_cut(cuts[16_000], 16_000)).unsqueeze(0)

        def step() -> None:
            model(audio, torch.tensor([audio.shape[1]]))[0].sum().backward()

        times: dict[str | int, list[float]] = {name: [] for name in ("step", *RATES)}
        for _ in range(ROUNDS + 1):  # the first round warms up
            times["step"].append(cpu_ms(step))
            for rate in RATES:
                times[rate].append(cpu_ms(load, rate) / len(speeds))
    medians = {name: statistics.median(values[1:]) for name, values in times.items()}
    print(f"step: {medians['step']:.1f} ms")
    for rate in RATES:
        print(f"{rate:7} Hz: {medians[rate]:6.2f} ms, {medians[rate] / medians[16_000]:4.1f} × 16 kHz")


if __name__ == "__main__":
    main()
