"""Measure where the CPU time of training steps and of a long transcription goes, on one thread.

    python tools/profile_shares.py model=exp/demo/full data=data/demo

Training is that of recipe=demo with data.workers=0, without its first ten steps. The recording is a split's
speech, repeated. A part's time excludes that of other parts which it calls.
"""

import contextlib
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import lightning
import soundfile
import torch
from rich.table import Table
from transcription_benchmark import speech

from asr import Recognizer, config
from asr.config import option
from asr.console import open_console
from asr.data.batch import Utterances
from asr.errors import run_program
from asr.model.encoder import Encoder
from asr.model.features import FilterBanks, Normalisation
from asr.model.head import Head
from asr.search import run
from asr.search.words import WordSearch
from asr.training.config import train_options
from asr.training.run import train
from asr.training.task import TrainingTask
from asr.transcription.sources import FileSource

WARM_UP = 10


@dataclass
class Options:
    """Options of the measurement."""

    model: str = option(
        "exp/demo/full", help="run folder, checkpoint or exported model to transcribe with", affects="result"
    )
    data: str = option("data/demo", help="prepared folder of the recipe demo", affects="result")
    steps: int = option(100, help="training steps", affects="result", minimum=WARM_UP + 1)
    seconds: float = option(3600.0, help="length of the recording", affects="result", unit="s", minimum=1)


class Shares:
    """CPU time of a thread by part of the program.

    Attributes:
        seconds: time of each part without those that it calls.
    """

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.started = 0.0
        self._parts = ["the rest"]

    def start(self) -> None:
        """Begin at zero."""
        self.seconds.clear()
        self.started = time.thread_time()

    def _enter(self, part: str | None) -> None:
        now = time.thread_time()
        self.seconds[self._parts[-1]] += now - self.started
        self.started = now
        if part is None:
            self._parts.pop()
        else:
            self._parts.append(part)

    @contextlib.contextmanager
    def of(self, *parts: tuple[Any, str, str]) -> Iterator[None]:
        """Measure the functions (owner, name, part) meanwhile."""
        before = [(owner, name, getattr(owner, name)) for owner, name, _ in parts]
        for (owner, name, function), (_, _, part) in zip(before, parts, strict=True):
            setattr(owner, name, self._measured(function, part))
        try:
            yield
        finally:
            for owner, name, function in before:
                setattr(owner, name, function)

    def _measured(self, function: Any, part: str) -> Any:
        @wraps(function)
        def measured(*arguments: Any, **options: Any) -> Any:
            self._enter(part)
            try:
                return function(*arguments, **options)
            finally:
                self._enter(None)

        return measured

    def print(self, title: str) -> None:
        """Print a line per part."""
        self._enter("end")
        table = Table("part", "CPU s", "share", title=title)
        whole = sum(self.seconds.values())
        for part, seconds in self.seconds.most_common():
            table.add_row(part, f"{seconds:.2f}", f"{100 * seconds / whole:.1f} %")
        open_console().print(table)


MODEL = [
    (FilterBanks, "forward", "filter banks"),
    (Normalisation, "forward", "normalisation"),
    (Encoder, "forward", "encoder"),
    (Head, "forward", "head"),
]


def profile_training(options: Options) -> None:
    """Print the shares of training steps."""
    shares = Shares()

    class Watcher(lightning.Callback):
        def on_train_batch_end(self, trainer: lightning.Trainer, *_: Any) -> None:
            if trainer.global_step == WARM_UP:
                shares.start()
            if trainer.global_step == options.steps:
                shares.print(f"{options.steps - WARM_UP} training steps")

    parts = [
        *MODEL,
        (Utterances, "__getitem__", "reading and collating audio"),
        (TrainingTask, "training_step", "losses and measures"),
        (torch.Tensor, "backward", "backward pass"),
        (torch.optim.AdamW, "step", "optimiser"),
    ]
    with tempfile.TemporaryDirectory() as folder, shares.of(*parts):
        overrides = ["recipe=demo", f"data.train=[{options.data}]", "data.workers=0", f"run={folder}/run"]
        overrides += [f"trainer.max_steps={options.steps}", f"trainer.validate_every={options.steps}"]
        train(train_options([*overrides, "trainer.threads=1"]), [Watcher()])


def profile_transcription(options: Options) -> None:
    """Print the shares of a transcription."""
    recognizer = Recognizer.load(options.model)
    rate, shares = recognizer.model.sample_rate, Shares()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "recording.wav")
        samples = speech(options.data, "train", round(options.seconds * rate), rate)
        soundfile.write(path, samples, rate, subtype="PCM_16")
        parts = [
            *MODEL,
            (FileSource, "read", "reading audio"),
            (run, "search", "search for labels, confidences"),
            (WordSearch, "__call__", "search for words"),
        ]
        with shares.of(*parts):
            shares.start()
            recognizer.transcribe(path, min_confidence=0)
            shares.print(f"transcribing {options.seconds:g} s")


def main(overrides: list[str]) -> None:
    """Run the measurement with command-line options `key=value`."""
    options = config.parse(Options, overrides)
    torch.set_num_threads(1)
    profile_training(options)
    profile_transcription(options)


if __name__ == "__main__":
    sys.exit(run_program("profile_shares", lambda: main(sys.argv[1:])))
