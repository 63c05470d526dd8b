"""Measure the transcription of many short recordings: one by one, and together in batches and threads.

    python tools/transcription_benchmark.py files=200 seconds=3
    python tools/transcription_benchmark.py before=../other-checkout

The recordings are consecutive pieces of a split's speech. Each way is a process of its own, which is stopped
while the others take their turns. Times are medians (smallest … largest), without the process's start; the
texts must be the same. With `before`, the package in another checkout does the same work beside this one's.
"""

import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile
import torch
from rich.table import Table
from turns import Turns, Worker, spread

from asr import Recognizer, config
from asr.cli import WAITING
from asr.config import option
from asr.console import open_console
from asr.data.audio import load_cut
from asr.data.manifest import read_cuts, write_cuts
from asr.data.places import manifest_path
from asr.errors import UserError, run_program
from asr.preparation.cuts import recording, utterance_cut
from asr.records.run_folder import HYPOTHESES
from asr.search.options import DecodeOptions
from asr.transcription.options import TranscriptionConfig

WAYS = ("one by one", "together", "decode")


@dataclass
class Options:
    """Options of the benchmark."""

    model: str = option("exp/demo/full", help="run folder, checkpoint or exported model", affects="result")
    data: str = option("data/demo", help="prepared folder", affects="result")
    split: str = option("train", help="split that the speech is from", affects="result")
    files: int = option(200, help="number of recordings", affects="result", minimum=2)
    seconds: float = option(3.0, help="length of a recording", affects="result", unit="s", minimum=0.1)
    rounds: int = option(5, help="measured rounds", affects="result", minimum=1)
    ways: list[str] = option(list(WAYS), help="what to measure", affects="result")
    threads: list[int] = option([1, 2], help="PyTorch threads, one after the other", affects="result")
    before: str = option("", help="another checkout to compare with; empty: none", affects="result")
    before_model: str = option(
        "", help="model in the format of that checkout; empty: model", affects="result"
    )
    worker: str = option("", help="used by the benchmark itself: what to do in turns", affects="result")


def speech(data: str, split: str, samples: int, sample_rate: int) -> np.ndarray:
    """Return the first [samples] of a split's speech, repeated if it is shorter."""
    parts: list[np.ndarray] = []
    for cut in read_cuts(manifest_path(data, split)):
        parts.append(load_cut(cut, sample_rate))
        if sum(map(len, parts)) >= samples:
            break
    return np.resize(np.concatenate(parts), samples)


def write_pieces(options: Options, sample_rate: int, folder: Path) -> list[Path]:
    """Write consecutive pieces of the split's speech as 16-bit wav files, and a manifest beside them."""
    samples = round(options.seconds * sample_rate)
    pieces = speech(options.data, options.split, samples * options.files, sample_rate)
    paths, cuts = [], []
    for number, piece in enumerate(pieces.reshape(options.files, samples)):
        paths.append(folder / f"{number:05}.wav")
        soundfile.write(paths[-1], piece, sample_rate, subtype="PCM_16")
        source = recording(paths[-1].stem, paths[-1], samples, sample_rate)
        cuts.append(utterance_cut(paths[-1].stem, source, "the", "speaker"))
    write_cuts(cuts, folder / "test.cuts.jsonl.gz", None)
    return paths


def work(options: Options, folder: Path) -> None:
    """Transcribe or decode the pieces in a folder in turns; the first ends when all is loaded."""
    torch.set_num_threads(options.threads[0])
    turns = Turns()
    turns.next()
    recognizer = Recognizer.load(options.model)
    plan = TranscriptionConfig(min_confidence=0)
    decoder = recognizer.decoder(plan)[0]
    paths = sorted(folder.glob("*.wav"))

    def together(paths: list[Path]) -> list[str]:
        found = []
        for _, outcome in recognizer.transcribe_each(paths, plan, decoder):
            if isinstance(outcome, Exception):
                raise outcome
            found.append(outcome[0].text)
        return found

    def one_by_one(paths: list[Path]) -> list[str]:
        return [text for path in paths for text in together([path])]

    def decode(paths: list[Path]) -> list[str]:
        output = folder / f"decoded-{os.getpid()}"
        recognizer.decode(DecodeOptions(data=str(folder), output=str(output), g2p=False))
        lines = [json.loads(line) for line in (output / HYPOTHESES).read_text().splitlines()]
        return [line["text"] for line in sorted(lines, key=lambda line: line["id"])]

    ways: tuple[Callable[[list[Path]], list[str]], ...] = (one_by_one, together, decode)
    way = ways[WAYS.index(options.worker)]
    while True:
        turns.next()
        (folder / f"{os.getpid()}.json").write_text(json.dumps(way(paths)))


def main(overrides: list[str]) -> None:
    """Run the benchmark with command-line options `key=value`."""
    options = config.parse(Options, overrides)
    if options.worker:
        work(options, Path(options.data))
        return
    checkouts = {"": options.model}
    if options.before:
        checkouts = {options.before: options.before_model or options.model} | checkouts
    asked = [
        ("before, " if checkout else "", checkout, way)
        for checkout in checkouts
        for way in options.ways
        if not checkout or way != "together"
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rate = Recognizer.load(options.model).model.sample_rate
        write_pieces(options, rate, folder)
        workers: dict[str, Worker] = {}
        times: dict[str, list[tuple[float, float]]] = {}
        try:
            for threads in options.threads:
                for prefix, checkout, way in asked:
                    own = [
                        f"model={checkouts[checkout]}",
                        f"data={folder}",
                        f"worker={way}",
                        f"threads=[{threads}]",
                    ]
                    paths = [*([checkout] if checkout else []), *sys.path[1:]]
                    variables = {**WAITING, "PYTHONPATH": os.pathsep.join(paths)}
                    worker = Worker(__file__, *own, variables=variables)
                    workers[f"{prefix}{way}, {threads} threads"] = worker
                    worker.turn()  # loads
                    worker.turn()  # warms up
            for _ in range(options.rounds):
                for key, worker in workers.items():
                    times.setdefault(key, []).append(worker.turn())
            found = {
                key: json.loads((folder / f"{worker.process.pid}.json").read_text())
                for key, worker in workers.items()
            }
        finally:
            for worker in workers.values():
                worker.end()
    table = Table("way", "files/s", "wall s", "CPU s", title=f"{options.files} files of {options.seconds} s")
    for key, own_times in times.items():
        wall_s, cpu_s = zip(*own_times, strict=True)
        table.add_row(key, f"{options.files / statistics.median(wall_s):.0f}", spread(wall_s), spread(cpu_s))
    open_console().print(table)
    (first, expected), *others = found.items()
    for key, texts in others:
        if texts != expected:
            count = sum(own != text for own, text in zip(expected, texts, strict=True))
            raise UserError(
                f"{key}: expected the texts of {first}, found {count} of {len(expected)} different"
            )
    print("all texts are the same")


if __name__ == "__main__":
    sys.exit(run_program("transcription_benchmark", lambda: main(sys.argv[1:])))
