"""Measures error rate and cost on long recordings made of test utterances, up to an hour in one pass.

    python -m asr_recipes.demo.long model=exp/demo/long 'systems=[i-clustered-100,full,chunked]'

Each measurement runs `asr transcribe` in a separate process: wall time and peak memory include Python and the
model.
"""

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
from lhotse.cut import MonoCut

from asr import Recognizer
from asr.config import option, parse
from asr.console import Table, open_console, track
from asr.data.audio import load_cut
from asr.data.manifest import read_cuts
from asr.data.places import manifest_path
from asr.errors import UserError, run_program
from asr.files import atomic_path, write_json
from asr.scoring.alignment import align_all
from asr.scoring.error_rates import ErrorCounts
from asr.scoring.statistics import Estimate, Interval, bootstrap_interval, percent
from asr.search.greedy import greedy_search

PAUSE_S = (0.3, 1.5)
PAUSE_AMPLITUDE = 3e-4  # noise at −70 dB of full scale


@dataclass
class Options:
    """What to measure."""

    model: str = option("exp/demo/long", help="run folder or checkpoint", affects="result")
    data: str = option("data/demo", help="prepared folder", affects="result")
    split: str = option("test", help="split that provides the utterances", affects="result")
    minutes: list[float] = option(
        [0.5, 2.0, 5.0, 15.0, 60.0],
        help="durations of the recordings",
        affects="result",
        unit="min",
        minimum=0.01,
        maximum=10_000,
    )
    systems: list[str] = option(
        ["i-clustered-100", "full", "chunked"],
        help="attention mechanisms in one pass; chunked, or chunked:<chunk_s>:<overlap_s>; auto: the default "
        "mode",
        affects="result",
    )
    longest_full: float = option(
        60.0, help="longest recording measured with full", affects="result", unit="min", maximum=10_000
    )
    seed: int = option(0, help="random seed for order and pauses", affects="result", maximum=2**32 - 1)
    folder: str = option(
        "exp/demo/long_recordings", help="output folder for recordings and results", affects="place"
    )


@dataclass(frozen=True)
class TranscriptionRun:
    """Error rates (fractions), time and memory of transcribing a recording of `minutes`."""

    system: str
    minutes: float
    error_rate: float
    interval: Interval  # 95 % bootstrap intervals over the distinct utterances of the recording
    singly: float  # error rate of the same utterances decoded one by one
    singly_interval: Interval
    ratio_interval: Interval  # of error_rate / singly, paired: the same utterances in each bootstrap sample
    wall_s: float
    cpu_s: float
    real_time_factor: float
    peak_gib: float
    confidence: float


def make_recording(cuts: list[MonoCut], minutes: float, rate: int, seed: int, path: Path) -> list[MonoCut]:
    """Write a recording of at least `minutes`, and return its utterances in order.

    The order is random; no utterance repeats before all have occurred. Between them are 0.3 to 1.5 s of
    quiet noise.
    """
    random = np.random.default_rng(seed)
    order: Iterator[int] = (int(i) for _ in iter(int, 1) for i in random.permutation(len(cuts)))
    chosen, samples = [], 0
    with (
        atomic_path(path) as temporary,
        soundfile.SoundFile(temporary, "w", rate, 1, "PCM_16", format="WAV") as file,
    ):
        while samples < 60 * minutes * rate:
            cut = cuts[next(order)]
            pause = PAUSE_AMPLITUDE * random.standard_normal(round(random.uniform(*PAUSE_S) * rate))
            audio = np.concatenate([load_cut(cut, rate), pause])
            file.write(audio)
            samples += len(audio)
            chosen.append(cut)
    return chosen


@torch.inference_mode()
def errors_singly(recognizer: Recognizer, cuts: list[MonoCut]) -> dict[str, int]:
    """Return the label errors of each utterance, decoded one by one."""
    errors = {}
    for cut in track(cuts, "one by one"):
        audio = torch.from_numpy(load_cut(cut, recognizer.model.sample_rate))
        log_probs, frames = recognizer.model(audio.unsqueeze(0), torch.tensor([len(audio)]))
        labels = (
            recognizer.tokenizer.encode(cut.supervisions[0].text or ""),
            greedy_search(log_probs, frames)[0].ids,
        )
        reference, hypothesis = map(recognizer.tokenizer.tokens, labels)
        errors[cut.id] = ErrorCounts.between([reference], [hypothesis]).errors
    return errors


def errors_per_utterance(sizes: list[int], reference: list[str], hypothesis: list[str]) -> list[int]:
    """Return the errors of each utterance in the alignment of a recording.

    Insertions between two utterances count for the second.

    Args:
        sizes: number of labels of each utterance.
        reference: labels of all utterances, concatenated.
        hypothesis: labels of the recording.

    Example:
        >>> errors_per_utterance([2, 3], list("abcde"), list("axcdde"))
        [1, 1]
    """
    owner = np.repeat(np.arange(len(sizes)), sizes)
    errors = np.zeros(len(sizes), dtype=int)
    position = 0
    for edit in align_all([reference], [hypothesis])[0]:
        if edit.operation != "=":
            errors[owner[min(position, len(owner) - 1)]] += 1
        position += edit.reference is not None
    return errors.tolist()


def pooled_counts(cuts: list[MonoCut], counts: list[int]) -> np.ndarray:
    """Return the sum of the counts for each distinct utterance, because repetitions aren't independent."""
    sums: dict[str, int] = {}
    for cut, count in zip(cuts, counts, strict=True):
        sums[cut.id] = sums.get(cut.id, 0) + count
    return np.array(list(sums.values()))


def measure(model: str, system: str, audio: Path) -> tuple[dict[str, Any], dict[str, float]]:
    """Transcribe in a separate process; return the transcript and its cost (seconds, GiB).

    Raises:
        UserError: the process failed; the message quotes its last line.
    """
    name, _, sizes = system.partition(":") if system.startswith("chunked") else (system, "", "")
    overrides = ["mode=auto"] if system == "auto" else ["mode=onepass", f"attention={system}"]
    if name == "chunked":
        overrides = ["mode=chunked", "attention=full"]
        overrides += [
            f"{key}={x}" for key, x in zip(("chunk_s", "overlap_s"), sizes.split(":"), strict=False) if x
        ]
    overrides.append("format=json")
    started = time.perf_counter()
    output, messages = audio.with_suffix(".json"), audio.with_suffix(".stderr")
    with output.open("w") as out, messages.open("w") as err:
        command = [sys.executable, "-m", "asr", "transcribe", model, str(audio), *overrides]
        process = subprocess.Popen(command, stdout=out, stderr=err)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    wall_s = time.perf_counter() - started
    if process.returncode:
        last = (messages.read_text().strip().splitlines() or ["no message: out of memory?"])[-1]
        raise UserError(f"{system} on {audio}: {last}")
    costs = {"wall_s": wall_s, "cpu_s": usage.ru_utime + usage.ru_stime, "peak_gib": usage.ru_maxrss / 2**20}
    return json.loads(output.read_text()), costs


def run(options: Options) -> list[TranscriptionRun]:
    """Measure every system on every length."""
    recognizer = Recognizer.load(options.model)
    cuts = list(read_cuts(manifest_path(options.data, options.split)))
    singly = errors_singly(recognizer, cuts)
    folder = Path(options.folder)
    folder.mkdir(parents=True, exist_ok=True)
    figures = []
    for minutes in options.minutes:
        audio = folder / f"{minutes:g}min.wav"
        chosen = make_recording(cuts, minutes, recognizer.model.sample_rate, options.seed, audio)
        texts = [cut.supervisions[0].text or "" for cut in chosen]
        symbols = recognizer.tokenizer.tokens(recognizer.tokenizer.encode(" ".join(texts)))
        sizes = [len(recognizer.tokenizer.encode(text)) for text in texts]
        if recognizer.tokenizer.unit == "character":  # a space after each utterance but the last
            sizes = [size + 1 for size in sizes[:-1]] + sizes[-1:]
        alone = [singly[cut.id] for cut in chosen]
        lengths_U, alone_U = pooled_counts(chosen, sizes), pooled_counts(chosen, alone)
        for system in options.systems:
            if system == "full" and minutes > options.longest_full:
                continue
            transcript, costs = measure(options.model, system, audio)
            errors = errors_per_utterance(sizes, symbols, transcript["tokens"])
            errors_U = pooled_counts(chosen, errors)
            figure = TranscriptionRun(
                system=system,
                minutes=minutes,
                error_rate=sum(errors) / len(symbols),
                interval=bootstrap_interval(errors_U, lengths_U),
                singly=sum(alone) / len(symbols),
                singly_interval=bootstrap_interval(alone_U, lengths_U),
                ratio_interval=bootstrap_interval(errors_U, alone_U) if sum(alone) else (0.0, math.inf),
                real_time_factor=costs["wall_s"] / transcript["duration_s"],
                confidence=transcript["mean_confidence"],
                **costs,
            )
            figures.append(figure)
            print(json.dumps(asdict(figure)), flush=True)
    write_json({"options": asdict(options), "figures": [asdict(x) for x in figures]}, folder / "results.json")
    return figures


def show(figures: list[TranscriptionRun]) -> None:
    """Print two tables: errors with 95 % intervals, and costs."""
    errors, costs = [], []
    for x in figures:
        name = (x.system, f"{x.minutes:g}")
        ratio = x.error_rate / x.singly if x.singly else math.inf
        rates = (
            Estimate.bootstrapped(x.error_rate, x.interval).text(percent),
            Estimate.bootstrapped(x.singly, x.singly_interval).text(percent),
            Estimate.bootstrapped(ratio, x.ratio_interval).text("{:.2f}".format),
        )
        errors.append((*name, *rates))
        seconds = (f"{x.wall_s:.1f}", f"{x.cpu_s:.1f}", f"{x.real_time_factor:.4f}")
        costs.append((*name, *seconds, f"{x.peak_gib:.2f}", f"{x.confidence:.3f}"))
    open_console().print(
        Table.of(
            "errors, 95 % intervals",
            ("system", "min", "PER %", "one by one %", "ratio"),
            errors,
            numbers=False,
        ),
        Table.of(
            "costs", ("system", "min", "wall s", "CPU s", "RTF", "GiB", "confidence"), costs, numbers=False
        ),
    )


if __name__ == "__main__":
    sys.exit(run_program("long", lambda: show(run(parse(Options, sys.argv[1:])))))
