"""Measure what a large corpus costs until the first batch of training, of a resumed run and of decoding.

    python tools/scale_benchmark.py utterances=[10000,100000,1000000]

A fabricated manifest has realistic durations (mean 12 s) and texts (2.7 words per second); all recordings
are one file of 40 s. `train` is `asr train` for 40 epochs until its first batch is loaded, `resume` the same
after it was stopped by SIGTERM, `prepare` a complete `asr prepare lhotse` without tokenizers, `decode` is
`asr decode` until its first batch is encoded. Each is a fresh process, its start included. CPU seconds
approximate the time on an idle machine. Memory is the peak of all processes, shared memory counted once.
"""

import gzip
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import soundfile
from preparation_benchmark import measure
from rich.table import Table

from asr import config
from asr.config import option
from asr.console import open_console
from asr.errors import UserError, run_program

AUDIO_S, RATE = 40.0, 16_000
WORDS_PER_S = 2.7
SMALL = ["model.layers=1", "model.heads=2", "model.head_dim=16", "model.feedforward=64"]
STEPS = ("train", "resume", "prepare", "decode")


@dataclass
class Options:
    """Options of the benchmark."""

    utterances: list[int] = option(
        [10_000, 100_000, 1_000_000], help="sizes of the corpora", affects="result", minimum=100
    )
    steps: list[str] = option(list(STEPS), help=" | ".join(STEPS), affects="result", choices=STEPS)
    epochs: int = option(40, help="length of training", affects="result", minimum=1)
    folder: str = option("", help="existing folder for the corpora; empty: a temporary one", affects="place")

    def check(self) -> None:
        """Raise UserError for steps that lack the run that they load."""
        if {"resume", "decode"}.intersection(self.steps) and "train" not in self.steps:
            raise UserError(f"steps={self.steps}: resume and decode need train")


def fabricate(folder: Path, utterances: int) -> None:
    """Write train and dev manifests, a vocabulary of 1,000 words and the audio file."""
    random = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    noise = 0.1 * random.standard_normal(round(AUDIO_S * RATE))
    soundfile.write(folder / "shared.wav", noise, RATE, subtype="PCM_16")
    letters = np.array(list("etaoinshrdlu"))
    words = sorted({"".join(random.choice(letters, random.integers(2, 10))) for _ in range(1000)})
    for split, count in (("train", utterances), ("dev", 20)):
        with gzip.open(folder / f"{split}.cuts.jsonl.gz", "wt", compresslevel=6) as file:
            # Like LibriSpeech: most utterances last 10 to 16 s, none more than 35 s.
            lengths_s = random.uniform(1.5, 12, count), random.normal(14, 1.8, count)
            durations_s = np.clip(np.where(random.random(count) < 0.3, *lengths_s), 1, 35)
            for i, duration_s in enumerate(durations_s.round(3).tolist()):
                drawn = random.random(max(1, round(WORDS_PER_S * duration_s))) ** 2
                text = " ".join(words[int(len(words) * x)] for x in drawn)
                file.write(json.dumps(_entry(f"{split}-{i:07}", text, duration_s)) + "\n")


def _entry(name: str, text: str, duration_s: float) -> dict[str, Any]:
    """Return a line of a manifest, with a recording of its own as in most corpora."""
    speaker = name[-7:-3]
    supervision = {"id": name, "recording_id": name, "start": 0.0, "duration": duration_s, "channel": 0}
    source = {"type": "file", "channels": [0], "source": "shared.wav"}
    samples = round(AUDIO_S * RATE)
    sound = {"id": name, "sources": [source], "sampling_rate": RATE, "num_samples": samples}
    return {
        "id": name,
        "start": 0.0,
        "duration": duration_s,
        "channel": 0,
        "supervisions": [supervision | {"text": text, "language": "en", "speaker": speaker}],
        "recording": sound | {"duration": AUDIO_S, "channel_ids": [0]},
        "type": "MonoCut",
    }


class FirstBatch(lightning.Callback):
    """Writes the time at which the first batch is there, and stops training after a second one.

    Args:
        mark: file for the time.
    """

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def on_train_batch_start(self, *_: Any) -> None:
        """Write the time of the first batch."""
        if not self.mark.exists():
            write_mark(self.mark)

    def on_train_batch_end(self, trainer: Any, task: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Stop as SLURM or Ctrl-C would."""
        if batch_idx:
            os.kill(os.getpid(), signal.SIGTERM)


def write_mark(mark: Path) -> None:
    """Write the time of day and this process's CPU seconds."""
    mark.write_text(json.dumps([time.time(), time.process_time()]))


def until_first_batch(kind: str, mark: Path, overrides: list[str]) -> None:
    """Train or decode with command-line options until the first batch; for a process of its own."""
    if kind == "train":
        from asr.training.config import train_options
        from asr.training.run import train

        train(train_options(overrides), [FirstBatch(mark)])
        return
    from asr.recognizer import Recognizer
    from asr.search.options import DecodeOptions

    def stop(share: float) -> None:
        if share:
            write_mark(mark)
            raise SystemExit(0)

    Recognizer.load(overrides[0]).decode(config.parse(DecodeOptions, overrides[1:]), advance=stop)


def commands(options: Options, folder: Path) -> dict[str, list[str]]:
    """Return the arguments of each step's process."""
    run = folder / "run"
    own = [sys.executable, __file__]
    overrides = [f"data.train=[{folder}]", f"run={run}", f"trainer.max_epochs={options.epochs}", *SMALL]
    overrides += ["tokenizer.kind=character", "trainer.accelerator=cpu", "resume=auto"]
    train = [*own, "train", str(folder / "mark"), *overrides]
    prepared = [f"folder={folder / 'prepared'}", f"source={folder / 'train.cuts.jsonl.gz'}"]
    prepared += ["split=train", "tokenizers=[]", "workers=1"]
    decode = [str(run), "checkpoint=last", "split=train", f"output={folder / 'decoded'}", "device=cpu"]
    return {
        "train": train,
        "resume": train,
        "prepare": [sys.executable, "-m", "asr", "prepare", "lhotse", *prepared],
        "decode": [*own, "decode", str(folder / "mark"), *decode],
    }


def main(arguments: list[str]) -> None:
    """Run the benchmark with command-line options `key=value`."""
    if arguments and arguments[0] in ("train", "decode"):
        until_first_batch(arguments[0], Path(arguments[1]), arguments[2:])
        return
    options = config.parse(Options, arguments)
    table = Table("utterances", "step", "wall s", "CPU s", "peak MiB")
    with tempfile.TemporaryDirectory(prefix="scale-") as temporary:
        for utterances in options.utterances:
            folder = Path(options.folder or temporary) / str(utterances)
            if not (folder / "train.cuts.jsonl.gz").exists():
                fabricate(folder, utterances)
            for left in ("run", "prepared"):
                shutil.rmtree(folder / left, ignore_errors=True)
            for step, command in commands(options, folder).items():
                if step in options.steps:
                    row = [f"{x:.1f}" for x in timed(command, folder / "mark")]
                    print(utterances, step, *row, flush=True)
                    table.add_row(f"{utterances:,}", step, *row)
    open_console().print(table)


def timed(command: list[str], mark: Path) -> tuple[float, float, float]:
    """Return wall and CPU seconds of a process until its mark, or of all of it, and peak memory in MiB."""
    mark.unlink(missing_ok=True)
    started = time.time()
    seconds, cpu_s, peak, status = measure(command)
    if mark.exists():
        reached, cpu_s = json.loads(mark.read_text())
        seconds = reached - started
    elif status:
        raise UserError(f"{' '.join(command)}: expected success, found exit status {status}")
    return seconds, cpu_s, peak


if __name__ == "__main__":
    sys.exit(run_program("scale_benchmark", lambda: main(sys.argv[1:])))
