"""Compare how OpenMP threads wait: training and transcription on an idle and a busy machine.

    python tools/waiting_benchmark.py model=exp/demo/full data=data/demo

Where two threads share an operation, the one that is ready first waits for the other: actively
(OMP_WAIT_POLICY=ACTIVE) it spins, passively (PASSIVE) it sleeps, and without the variable it spins for a
while; with GOMP_SPINCOUNT it spins for so many turns. Each way runs in a process of its own that is stopped
while the others take their turns. `busy` adds endless loops, `loops` of them, to what the machine does. Times
are medians (smallest … largest); CPU time includes the process that loads data.
"""

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.table import Table
from transcription_benchmark import speech
from turns import Turns, Worker, spread

from asr import config
from asr.cli import WAITING
from asr.config import option
from asr.console import open_console
from asr.errors import run_program

WORKS = {
    "training, data.workers=0": "training-0",
    "training, data.workers=1": "training-1",
    "transcribing a recording": "transcribing",
}
WAYS: dict[str, tuple[int, dict[str, str]]] = {
    "one thread": (1, {}),
    "two threads, active": (2, {"OMP_WAIT_POLICY": "ACTIVE"}),
    "two threads, variables unset": (2, {}),
    "two threads, passive": (2, {"OMP_WAIT_POLICY": "PASSIVE"}),
    "two threads, as commands do": (2, WAITING),
}


@dataclass
class Options:
    """Options of the benchmark."""

    model: str = option(
        "exp/demo/full", help="run folder, checkpoint or exported model to transcribe with", affects="result"
    )
    data: str = option("data/demo", help="prepared folder of the recipe demo", affects="result")
    works: list[str] = option(list(WORKS.values()), help="works to measure", affects="result")
    steps: int = option(10, help="training steps in a turn", affects="result", minimum=1)
    seconds: float = option(120.0, help="length of the recording", affects="result", unit="s", minimum=1)
    rounds: int = option(5, help="measured turns of each way", affects="result", minimum=1)
    loops: int = option(2, help="endless loops on the busy machine", affects="result", minimum=1)
    worker: str = option(
        "", help="used by the benchmark itself: work to do, a turn for each line of input", affects="result"
    )
    threads: int = option(
        1, help="used by the benchmark itself: threads of the work", affects="result", minimum=1
    )


def work(options: Options) -> None:
    """Do a work in turns, as the commands do it."""
    import torch

    torch.set_num_threads(options.threads)
    turns = Turns()
    if options.worker == "transcribing":
        from asr import Recognizer

        recognizer = Recognizer.load(options.model)
        rate = recognizer.model.sample_rate
        samples = speech(options.data, "train", round(options.seconds * rate), rate)
        while True:
            turns.next()
            recognizer.transcribe(samples, rate, min_confidence=0)
    import lightning

    from asr.training.config import train_options
    from asr.training.run import train

    class Watcher(lightning.Callback):
        def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step % options.steps == 0:
                turns.next()

    workers = options.worker.removeprefix("training-")
    with tempfile.TemporaryDirectory() as run:
        overrides = [
            "recipe=demo",
            f"data.train=[{options.data}]",
            f"data.workers={workers}",
            f"run={run}/run",
        ]
        overrides += [
            "trainer.max_epochs=1000",
            "trainer.validate_every=100000",
            f"trainer.threads={options.threads}",
        ]
        train(train_options(overrides), [Watcher()])


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


def measure(work: str, options: Options) -> dict[tuple[str, str], list[tuple[float, float]]]:
    """Return the wall and CPU times of a work, by machine and way."""
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    workers: dict[str, Worker] = {}
    try:
        for way, (threads, variables) in WAYS.items():
            overrides = [f"{name}={getattr(options, name)}" for name in ("model", "data", "steps", "seconds")]
            overrides += [f"worker={work}", f"threads={threads}"]
            workers[way] = Worker(__file__, *overrides, variables=variables)
            workers[way].turn()  # warms up
        for number in range(options.rounds):
            for machine in ("idle", "busy"):
                with busy(options.loops) if machine == "busy" else contextlib.nullcontext():
                    order = list(workers.items())
                    for way, worker in order[number % len(order) :] + order[: number % len(order)]:
                        found.setdefault((machine, way), []).append(worker.turn())
    finally:
        for worker in workers.values():
            worker.end()
    return found


def main(overrides: list[str]) -> None:
    """Run the benchmark with command-line options `key=value`."""
    options = config.parse(Options, overrides)
    if options.worker:
        work(options)
        return
    for name, own in WORKS.items():
        if own in options.works:
            table = Table("machine", "way", "wall s", "CPU s", title=name)
            for (machine, way), times in measure(own, options).items():
                table.add_row(machine, way, *map(spread, zip(*times, strict=True)))
            open_console().print(table)


if __name__ == "__main__":
    sys.exit(run_program("waiting_benchmark", lambda: main(sys.argv[1:])))
