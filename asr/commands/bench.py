"""`asr bench`: time and memory of attention mechanisms by length."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from asr.attention import parse_name
from asr.benchmark.mechanisms import (
    DTYPES,
    PASSES,
    Problem,
    Timing,
    can_measure_memory,
    measure,
    peak_memory_bytes,
    split_threads,
)
from asr.config import option
from asr.console import open_console, progress
from asr.environment import describe_environment, pick_device
from asr.errors import UserError
from asr.files import check_writable, write_json
from asr.report import bench_chart
from asr.report.figure import export

POSITIONAL = ""
CLOCKS = ("cpu", "wall")


@dataclass
class Options:
    """Options of `asr bench`; the defaults are Figure 4 of *Fast Transformers with Clustered Attention*."""

    attentions: list[str] = option(
        ["full", "lsh-1", "lsh-4", "clustered-100", "i-clustered-100"],
        help="mechanisms; name@reference selects a backend, name@2 two threads (with clock=wall), "
        "peer:i-clustered-100 selects pytorch-fast-transformers, peer:lsh-4 reformer-pytorch",
    )
    lengths: list[int] = option(
        [512, 1024, 2048, 4096, 8192, 16384, 32768], help="sequence lengths N", minimum=1, maximum=100_000_000
    )
    baseline: str = option("full", help="mechanism that the others are compared with")
    batch: int = option(1, help="sequences B", minimum=1, maximum=1_000_000)
    heads: int = option(6, help="heads H", minimum=1, maximum=100_000)
    head_dim: int = option(64, help="head size D", minimum=1, maximum=4096)
    dtype: str = option("float32", help=" | ".join(DTYPES), choices=DTYPES)
    device: str = option("cpu", help="auto | cpu | cuda")
    clock: str = option("cpu", help="cpu: CPU time; wall: elapsed time (always used on cuda)", choices=CLOCKS)
    threads: int = option(1, help="threads on the CPU", minimum=1, maximum=1024)
    rounds: int = option(
        15, help="maximum number of rounds, after one warm-up round", minimum=1, maximum=1_000_000
    )
    seconds: float = option(
        10.0,
        help="time limit for the rounds of one length and pass; at least three rounds run",
        unit="s",
        maximum=1e6,
    )
    memory: bool = option(True, help="also measure peak memory (on the CPU: Linux only)")
    out: str = option("exp/bench.json", help="results file; the plot is written beside it as .png and .pdf")
    seed: int = option(0, help="random seed for the input", maximum=2**32 - 1)

    def check(self) -> None:
        """Raise UserError for an empty list, an unknown mechanism, or threads that can't be measured."""
        for name in ("attentions", "lengths"):
            if not getattr(self, name):
                raise UserError(f"{name}=[]: expected at least one")
        for name in self.attentions:
            if not name.startswith("peer:"):
                parse_name(name.partition("@")[0])
            _, threads = split_threads(name)
            if threads == 0:
                raise UserError(f"attentions={name}: expected at least 1 thread")
            if threads and self.clock == "cpu":
                raise UserError(f"attentions={name}: CPU time adds up over threads; use clock=wall")


def run(paths: Sequence[str | Path], options: Options, *, console: Console | None = None) -> list[Timing]:
    """Measure, print one table per pass, and write the results as JSON and as a plot.

    Raises:
        UserError: an option out of range, an unknown name, or a missing device.
    """
    out = Path(options.out)
    if not out.name:
        raise UserError("out=: expected the name of a file, found none")
    for path in (out, *(out.with_suffix(suffix) for suffix in (".png", ".pdf"))):
        check_writable(path)
    options = replace(options, device=pick_device(options.device))
    console = console or open_console()
    clock = options.clock if options.device == "cpu" else "wall"
    timings: list[Timing] = []
    memory: dict[str, dict[str, dict[int, int]]] = {}  # bytes by pass, name and length
    if options.memory and can_measure_memory(options.device):
        memory = {passes: {name: {} for name in options.attentions} for passes in PASSES}
    with progress(counts=False) as bars:
        task = bars.add_task("measuring", total=sum(options.lengths))
        for length in options.lengths:
            bars.update(task, description=f"N={length}: time")
            problem = Problem(
                options.batch,
                options.heads,
                options.head_dim,
                options.dtype,
                options.device,
                options.seed,
                length=length,
            )
            timings += measure(
                options.attentions,
                problem,
                options.baseline,
                clock,
                options.threads,
                options.rounds,
                options.seconds,
            )
            for passes, sizes in memory.items():
                for name in sizes:
                    bars.update(task, description=f"N={length}: memory of {name}")
                    sizes[name][length] = peak_memory_bytes(name, problem, passes)
            bars.advance(task, length)
    for passes in PASSES:
        console.print(_time_table([timing for timing in timings if timing.passes == passes], options, clock))
    for passes, sizes in memory.items():
        console.print(_memory_table(sizes, passes))
    record = {
        "options": asdict(options),
        "environment": describe_environment(),
        "timings": [asdict(timing) for timing in timings],
        "memory_bytes": memory,
    }
    write_json(record, out)
    plots = export(replace(bench_chart.figure(out), key=out.stem), out.parent)
    console.print(f"written: {out}, {', '.join(map(str, plots))}")
    return timings


def _time_table(timings: list[Timing], options: Options, clock: str) -> Table:
    columns = ("N", "attention", "µs", "quartiles", f"speed-up over {options.baseline}")
    table = Table(*columns, title=f"{timings[0].passes}: {clock} time per position", title_justify="left")
    for timing in timings:
        low, high = (1e6 * bound / (options.batch * timing.length) for bound in timing.quartiles_s)
        ratio = "" if timing.ratio is None else f"{timing.ratio:.2f}"
        table.add_row(
            str(timing.length),
            timing.name,
            f"{timing.per_element_us:.2f}",
            f"{low:.2f}–{high:.2f}",
            ratio,
            end_section=timing.name == options.attentions[-1],
        )
    return table


def _memory_table(memory: dict[str, dict[int, int]], passes: str) -> Table:
    table = Table("N", *memory, title=f"{passes}: peak memory, MiB", title_justify="left")
    for length in next(iter(memory.values())):
        table.add_row(str(length), *(f"{sizes[length] / 2**20:.1f}" for sizes in memory.values()))
    return table
