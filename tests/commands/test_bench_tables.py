"""The tables and the figure of `asr bench` for times and sizes that are given."""

import io
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from asr.commands.bench import run
from asr.experiment import bench
from asr.experiment.bench import bench_options as parse
from asr.experiment.operations import StepSeconds
from asr.experiment.peaks import TooLarge
from asr.measure import Seconds
from asr.report.figures import benchmark as bench_chart

GIVEN = Path(__file__).parent / "bench_tables.txt"
SPEEDS = {"full": 3e-9, "i-clustered-4": 2e-7, "clustered-4": 1.5e-7, "near-4": 9e-8, "cast-4": 1e-7}
CASES = {
    "mechanisms": ["attentions=[full,i-clustered-4@reference,near-4]", "lengths=[16,48,128]"],
    "threads": ["attentions=[full,full@2,clustered-4]", "lengths=[16,48]", "clock=wall", "batch=2"],
    "causal": ["attentions=[full,lsh-1]", "causal=both", "lengths=[16]", "passes=[forward]"],
    "grouping": [
        "attentions=[i-clustered-4:grouping=hash,i-clustered-4:grouping=keys]",
        "baseline=i-clustered-4:grouping=hash",
        "passes=[grouping]",
        "lengths=[16,48]",
    ],
    "layers": [
        "unit=layer",
        "attentions=[full,clustered-4,cast-4]",
        "batch=max",
        "memory=0.01",
        "lengths=[16,48,128]",
    ],
    "models": ["unit=model", "model=tiny", "attentions=[full,near-4]", "lengths=[48,96]"],
}


def taken(name: str, inputs: list[torch.Tensor], passes: str, numbers: "itertools.count[int]") -> Seconds:
    """Return a time that grows quadratically for full attention, and a little from call to call."""
    shape = inputs[0].shape
    batch, length = shape[0], shape[-2]
    known = next(x for x in SPEEDS if name.startswith(x)) if name[0] != "l" else "near-4"
    seconds = SPEEDS[known] * batch * length * (length if known == "full" else 1) * 700
    seconds *= (3 if passes == "forward+backward" else 1) * (1 + 0.01 * (next(numbers) * 37 % 11))
    if inputs[0].dim() == 3 and passes == "forward+backward":
        parts = tuple(Seconds(seconds * share, seconds * share / 2) for share in (0.25, 0.125, 0.5, 0.125))
        return StepSeconds(seconds, seconds / 2, parts)
    return Seconds(seconds, seconds / 2)


def peak(name: str, problem: Any, passes: str = "forward+backward", limit: int | None = None) -> int:
    """Return a size that grows quadratically for full attention."""
    each = problem.length**2 * 3 if name.startswith("full") else 257 * problem.length
    size: int = problem.batch * each * (411 if passes == "forward" else 1025)
    if limit is not None and size > limit:
        raise TooLarge(name)
    return size


def shown(case: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return what a case prints, and what its figure draws."""
    numbers = itertools.count()
    monkeypatch.setattr(bench, "build_operation", lambda name, problem: name)
    monkeypatch.setattr(
        bench, "run_once", lambda name, inputs, target, passes: taken(name, inputs, passes, numbers)
    )
    monkeypatch.setattr(bench, "peak_memory_bytes", peak)
    monkeypatch.setattr("asr.commands.bench.export", lambda figure, folder: [])
    monkeypatch.setattr("asr.experiment.bench.missing_kernels", lambda names, device: "")
    text = io.StringIO()
    out = folder / f"{case}.json"
    options = parse([*CASES[case], "rounds=5", "seconds=100", f"out={out}"])
    results = run(options, console=Console(file=text, width=180))
    lines = [line.rstrip() for line in text.getvalue().splitlines() if not line.startswith("written: ")]
    figure = bench_chart.figure(results)
    assert figure is not None
    lines += [figure.label, figure.title, figure.caption, *(series.key for series in figure.series)]
    for panel in figure.panels if case == "layers" else ():
        rows = panel.spec["data"]["values"]
        lines += [" ".join(_shown(value) for value in row.values()) for row in rows]
    return "\n".join(lines)


def _shown(value: Any) -> str:
    return f"{value:.9g}" if isinstance(value, float) else str(value)


@pytest.mark.parametrize("case", CASES)
def test_tables_and_figures_are_as_before(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sections = dict(x.split("\n", 1) for x in GIVEN.read_text().removeprefix("## ").split("\n## "))
    assert shown(case, tmp_path, monkeypatch) == sections[case].rstrip("\n")
