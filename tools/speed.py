"""Measure speed on the CPU: full attention, linear layers, loading audio, transcription, threads that wait.

    python tools/speed.py full
    python tools/speed.py linear
    python tools/speed.py loading
    python tools/speed.py transcription files=200 seconds=3
    python tools/speed.py waiting model=exp/demo/full data=data/demo

full: CPU time of `full` and of PyTorch's attention (SDPA) on the same random input, on one thread, forward
and with the backward pass. `padded` sequences have 0.6 to 1 of the positions; SDPA masks the others. The last
column is the time of `full` over that of SDPA: above 1.05, `full` is no baseline to compare anything with.

linear: CPU time of a linear layer in float32 and of PyTorch's, in the same way.

loading: CPU time of what a training step waits for, by sample rate of the file: decode a 16-bit wav file of
3 s, check it, resample it to 16 kHz and change its speed by each of the folder recipe's factors. `step` is a
forward and backward pass of that recipe's model over the same utterance.

transcription: many short recordings one by one, together in batches and threads, and by `asr decode`. They
are consecutive pieces of a split's speech, and the texts must be the same. With `before=../other-checkout`,
the package there does the same work beside this one's.

waiting: how OpenMP threads wait, in training and transcription. Where two threads share an operation, the one
that is ready first waits for the other: actively (OMP_WAIT_POLICY=ACTIVE) it spins, passively (PASSIVE) it
sleeps, and without the variable it spins for a while; with GOMP_SPINCOUNT it spins that many times. `busy`
adds endless loops, `loops` of them, to what the machine does.

Each way to do the work is a process that is stopped while the others take their turns. Times are medians
(smallest … largest) without the start, and CPU time includes the process that loads data.
"""

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import soundfile
import torch
from rich.table import Table
from workers import Turns, Worker, spread

from asr import Recognizer, config
from asr.attention import build_mechanism
from asr.attention.products import Linear
from asr.cli import WAITING, help_table
from asr.config import option
from asr.console import open_console
from asr.data.audio import load_cut
from asr.data.manifest import read_cuts, write_cuts
from asr.data.places import manifest_path
from asr.environment import processor
from asr.errors import UserError, did_you_mean, run_program
from asr.measure import Seconds, in_turns, time_of, torch_threads
from asr.model.acoustic_model import AcousticModel, AcousticModelConfig
from asr.preparation.cuts import recording, utterance_cut
from asr.records.run_folder import HYPOTHESES
from asr.search.options import DecodeOptions
from asr.training.config import train_options
from asr.training.run import train
from asr.transcription.options import TranscriptionConfig
from attention_ext.library import instruction_set, why_unavailable

PADDINGS, PASSES = ("none", "padded"), ("forward", "with backward")
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
RATES = [8000, 11_025, 16_000, 22_050, 22_255, 24_000, 32_000, 44_100, 48_000, 96_000, 176_400]
LOADED_S = 3
WAYS = ("one by one", "together", "decode")
WORKS = {
    "training-0": "training, data.workers=0",
    "training-1": "training, data.workers=1",
    "transcribing": "transcribing a recording",
}
THREADS: dict[str, tuple[int, dict[str, str]]] = {
    "one thread": (1, {}),
    "two threads, active": (2, {"OMP_WAIT_POLICY": "ACTIVE"}),
    "two threads, variables unset": (2, {}),
    "two threads, passive": (2, {"OMP_WAIT_POLICY": "PASSIVE"}),
    "two threads, as commands do": (2, WAITING),
}


@dataclass
class Full:
    """Options of `full`."""

    lengths: list[int] = option([100, 400, 780, 1500, 4096], help="positions, N", affects="result", minimum=1)
    precisions: list[str] = option(list(TYPES), help="types of the input", affects="result", choices=TYPES)
    batch: int = option(4, help="sequences, B", affects="result", minimum=2)
    heads: int = option(6, help="heads, H", affects="result", minimum=1)
    head_dim: int = option(32, help="head size, D", affects="result", minimum=1)
    rounds: int = option(9, help="measured rounds", affects="result", minimum=1)


@dataclass
class Layers:
    """Options of `linear`."""

    rows: list[int] = option([256, 900, 3000], help="positions of a batch", affects="result", minimum=1)
    sizes: list[int] = option(
        [144, 192, 384], help="model sizes, M; layers are M → M and M → 4·M", affects="result", minimum=1
    )
    rounds: int = option(25, help="measured rounds", affects="result", minimum=1)


@dataclass
class Loading:
    """Options of `loading`."""

    rates: list[int] = option(RATES, help="sample rates of the files", affects="result", unit="Hz", minimum=1)
    rounds: int = option(15, help="measured rounds", affects="result", minimum=1)


@dataclass
class Speech:
    """A model, and speech to transcribe with it."""

    model: str = option(
        "exp/demo/full", help="run folder, checkpoint or exported model to transcribe with", affects="result"
    )
    data: str = option("data/demo", help="prepared folder of the recipe demo", affects="result")
    split: str = option("train", help="split that the speech is from", affects="result")


@dataclass
class InTurns(Speech):
    """Options of measurements in processes that take turns."""

    rounds: int = option(5, help="measured turns of each way", affects="result", minimum=1)
    worker: str = option(
        "", help="used by the program itself: work to do, a turn for each line of input", affects="result"
    )
    worker_threads: int = option(
        1,
        help="used by the program itself: threads of the work",
        affects="result",
        only=("worker",),
        minimum=1,
    )


@dataclass
class Transcription(InTurns):
    """Options of `transcription`."""

    files: int = option(200, help="number of recordings", affects="result", minimum=2)
    seconds: float = option(3.0, help="length of a recording", affects="result", unit="s", minimum=0.1)
    ways: list[str] = option(list(WAYS), help="what to measure", affects="result", choices=WAYS)
    threads: list[int] = option([1, 2], help="PyTorch threads, one after the other", affects="result")
    before: str = option("", help="another checkout to compare with; empty: none", affects="result")
    before_model: str = option(
        "", help="model in the format of that checkout; empty: model", affects="result", only=("before",)
    )


@dataclass
class Waiting(InTurns):
    """Options of `waiting`."""

    works: list[str] = option(list(WORKS), help="works to measure", affects="result", choices=WORKS)
    steps: int = option(10, help="training steps in a turn", affects="result", minimum=1)
    seconds: float = option(120.0, help="length of the recording", affects="result", unit="s", minimum=1)
    loops: int = option(2, help="endless loops on the busy machine", affects="result", minimum=1)


def speech(options: Speech, samples: int, sample_rate: int) -> np.ndarray:
    """Return the first [samples] of a split's speech, repeated if it is shorter."""
    parts: list[np.ndarray] = []
    for cut in read_cuts(manifest_path(options.data, options.split)):
        parts.append(load_cut(cut, sample_rate))
        if sum(map(len, parts)) >= samples:
            break
    return np.resize(np.concatenate(parts), samples)


def train_demo(options: Speech, callback: lightning.Callback, *overrides: str) -> None:
    """Train the recipe demo in a folder that is removed."""
    with tempfile.TemporaryDirectory() as folder:
        common = ["recipe=demo", f"data.train=[{options.data}]", f"run={folder}/run"]
        train(train_options([*common, *overrides]), [callback])


def measure_full(options: Full) -> None:
    """Print a line per type, length, padding and pass."""
    table = Table("type", "N", "padding", "pass", "SDPA, ms", "full, ms", "full / SDPA")
    with torch_threads(1):
        for case in product(
            options.precisions, options.lengths, ("none", "padded"), ("forward", "with backward")
        ):
            turns = {way: partial(time_of, work) for way, work in full_works(options, *case).items()}
            times = in_turns(turns, options.rounds, collect=True)
            sdpa_ms, full_ms = (1000 * statistics.median(x.cpu_s for x in times[way]) for way in turns)
            table.add_row(*map(str, case), f"{sdpa_ms:.2f}", f"{full_ms:.2f}", f"{full_ms / sdpa_ms:.2f}")
    print(f"{processor()}, kernels: {why_unavailable('cpu') or instruction_set()}")
    open_console().print(table)


def full_works(
    options: Full, precision: str, n: int, padding: str, passes: str
) -> dict[str, Callable[[], None]]:
    """Return SDPA and `full` on the same input."""
    shape = (options.batch, n, options.heads, options.head_dim)  # as projections leave it
    vectors = (torch.randn(shape).to(TYPES[precision]).transpose(1, 2) for _ in range(4))
    q, k, v, grad = (x.requires_grad_(passes == "with backward") for x in vectors)
    lengths = torch.linspace(0.6 * n, n, options.batch).ceil().long() if padding == "padded" else None
    mask = None if lengths is None else (torch.arange(n) < lengths[:, None])[:, None, None]
    full = build_mechanism("full")
    ways: dict[str, Callable[[], torch.Tensor]] = {
        "SDPA": lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask),
        "full": lambda: full(q, k, v, lengths, finite_padding=True),
    }

    def work(attend: Callable[[], torch.Tensor]) -> None:
        out = attend()
        if out.requires_grad:
            out.backward(grad.detach())

    return {way: partial(work, attend) for way, attend in ways.items()}


def measure_linear(options: Layers) -> None:
    """Print a line per number of rows, layer and pass."""
    table = Table("rows", "layer", "pass", "PyTorch, ms", "ours, ms", "ours / PyTorch")
    with torch_threads(1):
        for rows, size, factor, passes in product(options.rows, options.sizes, (1, 4), PASSES):
            x = torch.randn(rows, size, requires_grad=passes == "with backward")
            layers = {"PyTorch": torch.nn.Linear(size, factor * size), "ours": Linear(size, factor * size)}

            def work(layer: torch.nn.Module, x: torch.Tensor = x) -> None:
                with torch.set_grad_enabled(x.requires_grad):
                    out = layer(x)
                if out.requires_grad:
                    out.sum().backward()

            turns = {way: partial(time_of, partial(work, layer)) for way, layer in layers.items()}
            times = in_turns(turns, options.rounds, collect=True)
            theirs, ours = (1000 * statistics.median(x.cpu_s for x in times[way]) for way in layers)
            name = f"{size} → {factor * size}"
            table.add_row(str(rows), name, passes, f"{theirs:.2f}", f"{ours:.2f}", f"{ours / theirs:.2f}")
    print(processor())
    open_console().print(table)


def measure_loading(options: Loading) -> None:
    """Print a line per rate."""
    training = train_options(["recipe=folder"])
    speeds, sample_rate = training.augment.speed_factors, training.features.sample_rate
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder, torch_threads(1):
        cuts = {}
        for rate in {*options.rates, sample_rate}:
            path = Path(folder, f"{rate}.wav")
            soundfile.write(path, 0.1 * random.standard_normal(LOADED_S * rate), rate, subtype="PCM_16")
            source = recording(str(rate), path, LOADED_S * rate, rate, 1)
            cuts[rate] = utterance_cut(str(rate), source, "a", "speaker")

        def load(rate: int) -> None:
            for speed in speeds:
                load_cut(cuts[rate], sample_rate, speed=speed)

        model = AcousticModel(AcousticModelConfig("full", "auto", training.features, training.model), 30)
        audio = torch.from_numpy(load_cut(cuts[sample_rate], sample_rate)).unsqueeze(0)

        def step() -> None:
            model(audio, torch.tensor([audio.shape[1]]))[0].sum().backward()

        works: dict[str | int, Callable[[], None]] = {"step": step}
        works |= {rate: partial(load, rate) for rate in (sample_rate, *options.rates)}
        times = in_turns({name: partial(time_of, work) for name, work in works.items()}, options.rounds)
    medians_ms = {name: 1000 * statistics.median(x.cpu_s for x in taken) for name, taken in times.items()}
    print(f"step: {medians_ms['step']:.1f} ms")
    for rate in options.rates:
        ratio = medians_ms[rate] / medians_ms[sample_rate]
        print(f"{rate:7} Hz: {medians_ms[rate] / len(speeds):6.2f} ms, {ratio:4.1f} × {sample_rate} Hz")


def write_pieces(options: Transcription, sample_rate: int, folder: Path) -> list[Path]:
    """Write consecutive pieces of the split's speech as 16-bit wav files, and a manifest beside them."""
    samples = round(options.seconds * sample_rate)
    pieces = speech(options, samples * options.files, sample_rate)
    paths, cuts = [], []
    for number, piece in enumerate(pieces.reshape(options.files, samples)):
        paths.append(folder / f"{number:05}.wav")
        soundfile.write(paths[-1], piece, sample_rate, subtype="PCM_16")
        source = recording(paths[-1].stem, paths[-1], samples, sample_rate)
        cuts.append(utterance_cut(paths[-1].stem, source, "the", "speaker"))
    write_cuts(cuts, folder / "test.cuts.jsonl.gz", None)
    return paths


def transcribe_in_turns(options: Transcription) -> None:
    """Transcribe or decode the pieces in the folder `data` in turns."""
    torch.set_num_threads(options.worker_threads)
    recognizer = Recognizer.load(options.model)
    plan = TranscriptionConfig(min_confidence=0)
    decoder = recognizer.search(plan)[0]
    folder = Path(options.data)
    paths = sorted(folder.glob("*.wav"))

    def together(paths: list[Path]) -> list[str]:
        texts = []
        for _, outcome in recognizer.transcribe_each(paths, plan, decoder):
            if isinstance(outcome, Exception):
                raise outcome
            texts.append(outcome[0].text)
        return texts

    def one_by_one(paths: list[Path]) -> list[str]:
        return [text for path in paths for text in together([path])]

    def decode(paths: list[Path]) -> list[str]:
        output = folder / f"decoded-{os.getpid()}"
        recognizer.decode(DecodeOptions(data=str(folder), output=str(output), g2p=False))
        lines = [json.loads(line) for line in (output / HYPOTHESES).read_text().splitlines()]
        return [line["text"] for line in sorted(lines, key=lambda line: line["id"])]

    way = (one_by_one, together, decode)[WAYS.index(options.worker)]
    turns = Turns()
    while True:
        turns.next()
        (folder / f"{os.getpid()}.json").write_text(json.dumps(way(paths)))


def measure_transcription(options: Transcription) -> None:
    """Print the time of each way, and check that all texts are the same."""
    if options.worker:
        transcribe_in_turns(options)
        return
    checkouts = {"": options.model}
    if options.before:
        checkouts = {options.before: options.before_model or options.model} | checkouts
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        write_pieces(options, Recognizer.load(options.model).model.sample_rate, folder)
        workers: dict[str, Worker] = {}
        for threads in options.threads:
            for checkout, model in checkouts.items():
                paths = [*([checkout] if checkout else []), *sys.path[1:]]
                variables = {**WAITING, "PYTHONPATH": os.pathsep.join(paths)}
                for way in options.ways:
                    if checkout and way == "together":
                        continue
                    own = [f"model={model}", f"data={folder}", f"worker={way}", f"worker_threads={threads}"]
                    worker = Worker(__file__, "transcription", *own, variables=variables)
                    label = f"{'before, ' if checkout else ''}{way}, {threads} threads"
                    workers[label] = stack.enter_context(worker)
        turns = {label: worker.turn for label, worker in workers.items()}
        times = in_turns(turns, options.rounds, warm_up=0)
        by_mode = {
            label: json.loads((folder / f"{worker.process.pid}.json").read_text())
            for label, worker in workers.items()
        }
    table = Table("way", "files/s", "wall s", "CPU s", title=f"{options.files} files of {options.seconds} s")
    for label, taken in times.items():
        rate = options.files / statistics.median(turn.wall_s for turn in taken)
        table.add_row(label, f"{rate:.0f}", spread(taken, "wall"), spread(taken, "cpu"))
    open_console().print(table)
    (first, expected), *others = by_mode.items()
    for label, texts in others:
        if texts != expected:
            count = sum(own != text for own, text in zip(expected, texts, strict=True))
            raise UserError(
                f"{label}: expected the texts of {first}, found {count} of {len(expected)} different"
            )
    print("all texts are the same")


def work_in_turns(options: Waiting) -> None:
    """Train or transcribe in turns, as the commands do it."""
    torch.set_num_threads(options.worker_threads)
    turns = Turns()
    if options.worker == "transcribing":
        recognizer = Recognizer.load(options.model)
        rate = recognizer.model.sample_rate
        samples = speech(options, round(options.seconds * rate), rate)
        while True:
            turns.next()
            recognizer.transcribe(samples, rate, min_confidence=0)

    class Watcher(lightning.Callback):
        def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step % options.steps == 0:
                turns.next()

    train_demo(
        options,
        Watcher(),
        f"data.workers={options.worker.removeprefix('training-')}",
        "trainer.max_epochs=1000",
        "trainer.validate_every=100000",
        f"trainer.threads={options.worker_threads}",
    )


@contextlib.contextmanager
def busy(loops: int) -> Iterator[None]:
    """Run endless loops meanwhile."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def measure_waiting(options: Waiting) -> None:
    """Print the times of each work by way, on the machine as it is and on a busy one."""
    if options.worker:
        work_in_turns(options)
        return

    def turn(worker: Worker, loops: int) -> Seconds:
        with busy(loops):
            return worker.turn()

    for work in options.works:
        common = [
            f"{name}={getattr(options, name)}" for name in ("model", "data", "split", "steps", "seconds")
        ]
        with contextlib.ExitStack() as stack:
            workers = {}
            for way, (threads, variables) in THREADS.items():
                arguments = [*common, f"worker={work}", f"worker_threads={threads}"]
                worker = Worker(__file__, "waiting", *arguments, variables=variables)
                workers[way] = stack.enter_context(worker)
            turns = {("idle", way): worker.turn for way, worker in workers.items()}
            turns |= {("busy", way): partial(turn, worker, options.loops) for way, worker in workers.items()}
            times = in_turns(turns, options.rounds, warm_up=0)
        table = Table("machine", "way", "wall s", "CPU s", title=WORKS[work])
        for (machine, way), taken in times.items():
            table.add_row(machine, way, spread(taken, "wall"), spread(taken, "cpu"))
        open_console().print(table)


MEASUREMENTS: dict[str, tuple[type, Callable[[Any], None]]] = {
    "full": (Full, measure_full),
    "linear": (Layers, measure_linear),
    "loading": (Loading, measure_loading),
    "transcription": (Transcription, measure_transcription),
    "waiting": (Waiting, measure_waiting),
}


def main(arguments: list[str]) -> int:
    """Run the measurement that the first argument names, or print the help; return the exit status."""
    return run_program("speed", lambda: _run(*arguments) if arguments else _run("--help"))


def _run(name: str, *overrides: str) -> None:
    if name == "--help":
        console = open_console(markup=False)
        console.print(__doc__)
        for measurement, (schema, _) in MEASUREMENTS.items():
            console.print(
                measurement, help_table([row[:4] for row in config.describe(schema)], console.width)
            )
        return
    if name not in MEASUREMENTS:
        raise UserError(f"{name}: unknown measurement{did_you_mean(name, list(MEASUREMENTS))}")
    schema, function = MEASUREMENTS[name]
    function(config.parse(schema, overrides))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
