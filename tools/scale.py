"""Measure what large corpora cost: their preparation, and the time until the first batch.

    python tools/scale.py manifests utterances=[10000,100000,1000000]
    python tools/scale.py corpus name=wsj workers=2

manifests: a fabricated manifest has realistic durations (mean 12 s) and texts (2.7 words per second); all
recordings are one file of 40 s. `train` is `asr train` for 40 epochs until its first batch is loaded,
`resume` the same after it was stopped by SIGTERM, `prepare` a complete `asr prepare lhotse` without
tokenizers, `decode` is `asr decode` until its first batch is encoded.

corpus: `asr prepare`, twice, on a fabricated corpus with as many files, index entries and transcripts as the
real one, and tiny or sparse audio files.

Each is a fresh process, its start included. CPU seconds approximate the time on an idle machine. Memory is
the peak of all processes, shared memory counted once.
"""

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
from fabricated import CORPORA, fabricate_manifests
from program import run_measurement
from rich.table import Table
from workers import measure

from asr import config
from asr.benchmark.timer import Seconds, time_of
from asr.config import option
from asr.console import open_console
from asr.errors import UserError

SMALL = ["model.layers=1", "model.heads=2", "model.head_dim=16", "model.feedforward=64"]
STEPS = ("train", "resume", "prepare", "decode")
UNTIL = "until-first-batch"  # begins the arguments of this program's own processes


@dataclass
class Manifests:
    """Options of `manifests`."""

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


@dataclass
class Corpus:
    """Options of `corpus`."""

    name: str = option("wsj", help=" | ".join(CORPORA), affects="result", choices=CORPORA)
    workers: int = option(0, help="processes; 0: one per available core", affects="result", maximum=1024)


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


def commands(options: Manifests, folder: Path) -> dict[str, list[str]]:
    """Return the arguments of each step's process."""
    run = folder / "run"
    own = [sys.executable, __file__, UNTIL]
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


def measure_manifests(options: Manifests) -> None:
    """Print time and memory of every step for every size."""
    table = Table("utterances", "step", "wall s", "CPU s", "peak MiB")
    with tempfile.TemporaryDirectory(prefix="scale-") as temporary:
        for utterances in options.utterances:
            folder = Path(options.folder or temporary) / str(utterances)
            if not (folder / "train.cuts.jsonl.gz").exists():
                fabricate_manifests(folder, utterances)
            for left in ("run", "prepared"):
                shutil.rmtree(folder / left, ignore_errors=True)
            for step, command in commands(options, folder).items():
                if step in options.steps:
                    taken, peak = until_mark(command, folder / "mark")
                    row = [f"{x:.1f}" for x in (taken.wall_s, taken.cpu_s, peak)]
                    print(utterances, step, *row, flush=True)
                    table.add_row(f"{utterances:,}", step, *row)
    open_console().print(table)


def until_mark(command: list[str], mark: Path) -> tuple[Seconds, float]:
    """Return the time of a process until its mark, or of all of it, and peak memory in MiB."""
    mark.unlink(missing_ok=True)
    started = time.time()
    taken, peak, status = measure(command)
    if mark.exists():
        reached, cpu_s = json.loads(mark.read_text())
        taken = Seconds(reached - started, cpu_s)
    elif status:
        raise UserError(f"{' '.join(command)}: expected success, found exit status {status}")
    return taken, peak


def measure_corpus(options: Corpus) -> None:
    """Fabricate a corpus, prepare it twice and print time and memory of both runs."""
    with tempfile.TemporaryDirectory(prefix="preparation-") as folder:
        given: list[str] = []
        fabricated = time_of(lambda: given.extend(CORPORA[options.name](Path(folder))))
        print(f"fabricated in {fabricated.wall_s:.0f} s", flush=True)
        prepare = [sys.executable, "-m", "asr", "prepare", *given, f"folder={folder}/data"]
        for label in ("prepared", "prepared again"):
            taken, peak, status = measure([*prepare, f"workers={options.workers}"])
            times = f"{taken.wall_s:.1f} s ({taken.cpu_s:.1f} CPU s)"
            print(f"{label} in {times}, peak memory {peak:.0f} MiB, exit status {status}", flush=True)


MEASUREMENTS = {"manifests": (Manifests, measure_manifests), "corpus": (Corpus, measure_corpus)}

if __name__ == "__main__":
    if sys.argv[1:2] == [UNTIL]:
        until_first_batch(sys.argv[2], Path(sys.argv[3]), sys.argv[4:])
    else:
        sys.exit(run_measurement("scale", __doc__, MEASUREMENTS))
