"""Measure the transcription of many short recordings: one by one, and together in batches and threads.

    OMP_WAIT_POLICY=PASSIVE python tools/transcription_benchmark.py files=200 seconds=3

The recordings are consecutive pieces of a split's speech. Ways take turns after a round that warms up; times
are medians (smallest … largest) without the start of the program. Texts must be the same. `asr` sets
OMP_WAIT_POLICY itself.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile
import torch
from rich.table import Table

from asr import Recognizer, config
from asr.config import option
from asr.console import open_console
from asr.data.audio import load_cut
from asr.data.manifest import load_cuts
from asr.data.module import manifest_path
from asr.errors import UserError, run_program
from asr.transcription.run import TranscriptionConfig


@dataclass
class Options:
    """Options of the benchmark."""

    model: str = option("exp/demo/full", help="run folder, checkpoint or exported model")
    data: str = option("data/demo", help="prepared folder")
    split: str = option("train", help="split that the speech is from")
    files: int = option(200, help="number of recordings", minimum=2)
    seconds: float = option(3.0, help="length of a recording", unit="s", minimum=0.1)
    rounds: int = option(5, help="measured rounds", minimum=1)
    threads: int = option(2, help="PyTorch threads", minimum=1)


def speech(data: str, split: str, samples: int, sample_rate: int) -> np.ndarray:
    """Return the first [samples] of a split's speech, repeated if it is shorter."""
    parts: list[np.ndarray] = []
    for cut in load_cuts(manifest_path(data, split)):
        parts.append(load_cut(cut, sample_rate))
        if sum(map(len, parts)) >= samples:
            break
    return np.resize(np.concatenate(parts), samples)


def write_pieces(options: Options, sample_rate: int, folder: Path) -> list[Path]:
    """Write consecutive pieces of the split's speech as 16-bit wav files."""
    samples = round(options.seconds * sample_rate)
    pieces = speech(options.data, options.split, samples * options.files, sample_rate)
    paths = []
    for number, piece in enumerate(pieces.reshape(options.files, samples)):
        paths.append(folder / f"{number:05}.wav")
        soundfile.write(paths[-1], piece, sample_rate, subtype="PCM_16")
    return paths


def main(words: list[str]) -> None:
    """Run the benchmark with command-line options `key=value`."""
    options = config.parse(Options, words)
    recognizer = Recognizer.load(options.model)
    plan = TranscriptionConfig(min_confidence=0)
    decoder = recognizer.decoder(plan)[0]

    def texts(paths: list[Path]) -> list[str]:
        found = []
        for _, outcome in recognizer.transcribe_each(paths, plan, decoder):
            if isinstance(outcome, Exception):
                raise outcome
            found.append(outcome[0].text)
        return found

    def one_by_one(paths: list[Path]) -> list[str]:
        return [text for path in paths for text in texts([path])]

    ways: dict[str, tuple[Callable[[list[Path]], list[str]], int]] = {
        f"{name}, {threads} threads": (way, threads)
        for threads in sorted({1, options.threads})
        for name, way in (("one by one", one_by_one), ("together", texts))
    }
    wall_s: dict[str, list[float]] = {name: [] for name in ways}
    cpu_s: dict[str, list[float]] = {name: [] for name in ways}
    found: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        paths = write_pieces(options, recognizer.model.sample_rate, Path(folder))
        for number in range(options.rounds + 1):
            for name, (way, threads) in ways.items():
                torch.set_num_threads(threads)
                started = time.perf_counter(), time.process_time()
                found[name] = way(paths)
                if number:
                    wall_s[name].append(time.perf_counter() - started[0])
                    cpu_s[name].append(time.process_time() - started[1])
    expected, *others = found.values()
    for other in others:
        if other != expected:
            count = sum(own != text for own, text in zip(expected, other, strict=True))
            raise UserError(f"expected the same texts, found {count} of {len(expected)} different")

    table = Table("way", "files/s", "wall s", "CPU s", title=f"{options.files} files of {options.seconds} s")
    for name in ways:
        table.add_row(
            name,
            f"{options.files / statistics.median(wall_s[name]):.0f}",
            *map(spread, (wall_s[name], cpu_s[name])),
        )
    open_console().print(table, "all texts are the same")


def spread(seconds: list[float]) -> str:
    """Return median (smallest … largest)."""
    return f"{statistics.median(seconds):.2f} ({min(seconds):.2f} … {max(seconds):.2f})"


if __name__ == "__main__":
    sys.exit(run_program("transcription_benchmark", lambda: main(sys.argv[1:])))
