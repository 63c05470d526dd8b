"""`asr bench`: time and memory of attention mechanisms, transformer layers and models by length."""

from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console

from asr.config import Given, by_key
from asr.console import counted, open_console, progress
from asr.errors import UserError
from asr.experiment import request
from asr.experiment.bench import Bench, bench_options
from asr.experiment.options import FULL, BenchOptions
from asr.experiment.request import Request
from asr.experiment.results import Results
from asr.files import check_writable, read_record, write_json
from asr.library import run_comparison
from asr.report.figure import export
from asr.report.figures import benchmark
from asr.report.summary import print_results


def main(paths: list[str], overrides: list[str]) -> None:
    """Run the measurement that the overrides describe."""
    options = parse(overrides)
    if isinstance(options, BenchOptions):
        run(options)
    else:
        run_comparison(options)


def parse(given: Given) -> BenchOptions | Request:
    """Return the options of a measurement on random input, or with `data` on recordings.

    A trained model is timed as by `asr compare`, beside the errors that its speed costs.
    """
    values = by_key(given)
    if "data" in values:
        return request.parse({"attentions": FULL} | values)
    if "peers" in values:
        raise UserError(
            f"peers={values['peers']}: expected data=<prepared folder> model=<Whisper folder> beside it"
        )
    return bench_options(values)


def _check_replaced(out: Path) -> None:
    """Raise UserError if results or figure can't be written, or would replace files of another kind."""
    figures = [out.with_suffix(suffix) for suffix in (".png", ".pdf", ".txt")]
    for path in (out, *figures):
        check_writable(path)
    other = next((path for path in figures if path.exists()), None)
    if out.exists():
        other = None if _is_benchmark(out) else out
    if other:
        raise UserError(
            f"{other}: expected no file, or one of an earlier benchmark, found another: choose another name "
            "with out=…"
        )


def _is_benchmark(path: Path) -> bool:
    try:
        return "bench" in (read_record(path).get("protocol") or ())
    except UserError:
        return False


def run(options: BenchOptions, console: Console | None = None) -> Results:
    """Measure, print the tables, and write the results as JSON and as a plot.

    Raises:
        UserError: see `Bench`; a file that can't be written.
    """
    out, console = Path(options.out), console or open_console()
    _check_replaced(out)
    bench = Bench(options)
    if options.precision == "auto":
        console.print(f"precision={bench.precision.name}, because {bench.precision.reason}")
    if bench.kernels:
        console.print(bench.kernels, style="yellow", markup=False, soft_wrap=True)
    if bench.reused:
        console.print(f"{out}: reusing {counted(bench.reused, 'result')} of an interrupted benchmark")
    with progress() as bars:
        task = bars.add_task("measuring", total=bench.steps)
        bench.run(lambda what: bars.update(task, description=what, advance=1))
    results = bench.results()
    write_json(asdict(results), out)
    bench.forget()
    print_results(results, console)
    figure = benchmark.figure(results)  # None if nothing fits into memory
    plots = export(replace(figure, key=out.stem), out.parent) if figure else []
    console.print(f"written: {', '.join(map(str, [out, *plots]))}")
    return results
