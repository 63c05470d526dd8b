"""`asr bench unit=layer`: every mechanism in a layer, the largest batch, causal forms, papers' figures."""

import io
from dataclasses import replace
from pathlib import Path

import asr_conf
import pytest
import torch
from rich.console import Console

from asr.attention import MECHANISMS, default_names
from asr.commands.bench import parse, run
from asr.errors import UserError
from asr.experiment import bench
from asr.experiment.bench import measured_names, row_of, time_in_turns
from asr.experiment.crossings import causal_form, crossings, rival, speed_ups
from asr.experiment.operations import build_operation, run_once
from asr.experiment.options import BenchOptions
from asr.experiment.peaks import TooLarge, largest_batch, peak_memory_bytes
from asr.experiment.random_input import Problem
from asr.experiment.records import Evaluation
from asr.experiment.results import read_results
from asr.measure import Seconds, can_measure_memory
from asr.report.figures import benchmark as bench_chart

LAYER = Problem(8, 8, "fp32", "cpu", 0, unit="layer", feedforward=96, batch=2, length=40)
FIGURES = sorted(path.stem for path in Path(asr_conf.__file__).parent.glob("figure/*.yaml"))
SMALL = ["heads=2", "head_dim=8", "feedforward=32", "rounds=1", "seconds=0"]


def quiet() -> Console:
    return Console(file=io.StringIO(), width=200)


@pytest.mark.parametrize("name", default_names())
def test_every_row_of_the_table_can_be_measured_in_a_layer(name: str) -> None:
    layer = build_operation(name, LAYER)
    inputs, grad = LAYER.tensors()
    for passes in ("forward", "forward+backward"):
        run_once(layer, inputs, grad, passes)
    assert layer(*inputs).shape == grad.shape == (2, 40, 64)


def test_a_name_for_every_row() -> None:
    assert len(default_names()) == len(MECHANISMS)
    options = BenchOptions(attentions=["all"], unit="layer")
    assert measured_names(options) == default_names()
    own = {"cast-8", "agglomerative-8"}
    assert own.isdisjoint(measured_names(replace(options, unit="mechanism")))
    assert own <= set(measured_names(options))


def test_the_feed_forward_part_is_optional() -> None:
    def weights(feedforward: int) -> int:
        layer = build_operation("full", replace(LAYER, feedforward=feedforward))
        return sum(x.numel() for x in layer.parameters() if x.dim() == 2)  # type: ignore[attr-defined]

    assert weights(0) == 4 * 64 * 64
    assert weights(96) == 4 * 64 * 64 + 2 * 64 * 96


def test_half_precision_reaches_the_parameters() -> None:
    half = replace(LAYER, precision="bf16")
    assert build_operation("full", half)(*half.tensors()[0]).dtype == torch.bfloat16


@pytest.mark.parametrize("first", [1, 5, 300])
@pytest.mark.parametrize("fixed", [0, 7_000_000, 90_000_000])
@pytest.mark.parametrize("each", [90_000, 3_000_000, 40_000_000])
def test_the_largest_batch_is_found_in_few_attempts(fixed: int, each: int, first: int) -> None:
    """Allocators round: here to 4 MB, which isn't linear."""
    limit, tried = 100_000_000, []

    def peak(batch: int) -> int | None:
        tried.append(batch)
        size = -(-(fixed + each * batch) // 4_000_000) * 4_000_000
        return size if size < 2 * limit else None

    found = largest_batch(peak, limit, first)
    most = next(batch for batch in range(1, 2000) if (peak(batch) or limit + 1) > limit) - 1
    if most == 0:
        assert found is None
        return
    assert found is not None
    batch, size = found
    assert size == peak(batch) <= limit
    assert batch == most or size > 0.95 * limit
    assert len(tried) - most - 2 <= 12


@pytest.mark.slow
@pytest.mark.skipif(not can_measure_memory("cpu"), reason="needs /proc (Linux)")
def test_a_call_beyond_the_limit_ends_instead_of_filling_the_memory() -> None:
    """Weights of 8 heads and 6,000 positions take 1.1 GB in plain PyTorch."""
    with pytest.raises(TooLarge, match="full@reference at length 6000"):
        peak_memory_bytes("full@reference", replace(LAYER, length=6000), "forward", limit=20_000_000)


@pytest.mark.slow
def test_the_largest_batch_is_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`full` needs N² bytes for a sequence, so that its batch shrinks faster, and none fits at N = 40."""

    def peak(name: str, problem: Problem, passes: str, limit: int) -> int:
        each = problem.length**2 if name == "full" else 20 * problem.length
        size = problem.batch * each * 8192
        if size > limit:
            raise TooLarge(name)
        return size

    monkeypatch.setattr(bench, "peak_memory_bytes", peak)
    out = tmp_path / "bench.json"
    names = "attentions=[full,cast-2]"
    overrides = [names, "unit=layer", "batch=max", "memory=0.01", "lengths=[10,20,40]", f"out={out}"]
    console = quiet()
    run([], parse([*overrides, *SMALL, "passes=[forward]"]), console=console)
    results = read_results(out)
    rows = [row for row in results.evaluations if row.status == "done"]

    def problem(row: Evaluation) -> Problem:
        return replace(LAYER, length=row.length, batch=row.utterances or 0)

    batches = {(row.variant, row.length): row.utterances for row in rows}
    assert batches == {
        ("full", 10): 13,
        ("full", 20): 3,
        ("cast-2", 10): 6,
        ("cast-2", 20): 3,
        ("cast-2", 40): 1,
    }
    assert all(row.peak_mib == peak(row.variant, problem(row), "", 10**9) / 2**20 for row in rows)
    assert speed_ups(rows, "full", "cpu")[-1] is None
    assert [row.error for row in results.evaluations if row.status == "failed"] == [
        "one sequence needs more than 0.01 GiB"
    ]
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "N=40: memory of full, forward: one sequence needs more than 0.01 GiB" in shown
    figure = bench_chart.figure(results)
    assert figure is not None
    assert "the largest batch that fits into 0.01 GiB, 1 to 13" in figure.caption
    assert (figure.label, len(figure.panels)) == ("Layers", 2)


@pytest.mark.slow
def test_causal_forms_are_compared_with_the_causal_baseline() -> None:
    names = measured_names(
        BenchOptions(attentions=["full", "lsh-1", "agglomerative-8@reference"], causal="both", unit="layer")
    )
    assert names == [
        "full",
        "full:causal=true",
        "lsh-1",
        "agglomerative-8@reference",
        "agglomerative-8:causal=true@reference",
    ]
    assert [rival(name, "full", names) for name in names] == [
        "full",
        "full:causal=true",
        "full",
        "full",
        "full:causal=true",
    ]
    assert rival(names[-1], "full", ["full", names[-1]]) == "full"
    assert causal_form("agglomerative-8:causal=true") is None
    rows = time_in_turns(dict.fromkeys(names, LAYER), "forward", "cpu", 1, 3, 0.0)
    times = {row.variant: row.forward_cpu_s or 0.0 for row in rows}
    assert speed_ups(rows, "full", "cpu")[-1] == pytest.approx(times["full:causal=true"] / times[names[-1]])


def test_crossings_stand_beside_the_papers() -> None:
    def row(name: str, length: int, speed_up: float) -> Evaluation:
        return row_of(name, replace(LAYER, length=length), "forward", [Seconds(1.0, 1 / speed_up)])

    lengths = (512, 2048)
    pairs = {"full": (1.0, 1.0), "clustered-100": (0.5, 2.0), "lsh-1": (0.5, 0.8), "peer:lsh-1": (2.0, 3.0)}
    rows = [row(name, n, x) for name, pair in pairs.items() for n, x in zip(lengths, pair, strict=True)]
    assert crossings(rows, "full", "cpu") == {
        "clustered-100": "faster than full from 1,000; paper: about 1,000 (Vyas et al. 2020, C.1)",
        "lsh-1": "faster than full nowhere up to 2,048",
        "peer:lsh-1": "faster than full from 512 or less",
    }
    # The papers compare with full attention.
    assert "paper" not in crossings(rows, "lsh-1", "cpu")["clustered-100"]


@pytest.mark.slow
def test_an_interrupted_benchmark_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interruption in the last of several hours lost all of them."""
    asked: list[int] = []

    def interrupted(problems: dict[str, Problem], *rest: object) -> list[Evaluation]:
        length = problems["full"].length
        asked.append(length)
        if asked == [10, 20, 30]:
            raise KeyboardInterrupt
        return time_in_turns(problems, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(bench, "time_in_turns", interrupted)
    monkeypatch.setattr("asr.commands.bench.export", lambda figure, folder: [])
    out = tmp_path / "bench.json"
    overrides = [
        "attentions=[full]",
        "unit=layer",
        "lengths=[10,20,30]",
        "passes=[forward]",
        "peak_memory=false",
    ]
    options = parse([*overrides, *SMALL, f"out={out}"])
    with pytest.raises(KeyboardInterrupt):
        run([], options, console=quiet())
    assert not out.exists()
    assert (tmp_path / "bench.unfinished.jsonl").exists()
    again = quiet()
    assert [row.length for row in run([], options, console=again).evaluations] == [10, 20, 30]
    assert asked == [10, 20, 30, 30]
    assert "reusing 2 results" in again.file.getvalue()  # type: ignore[attr-defined]
    assert not (tmp_path / "bench.unfinished.jsonl").exists()
    run([], replace(options, seed=1), console=quiet())
    assert asked[4:] == [10, 20, 30]


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_option_sets_that_other_options_override(name: str) -> None:
    options = parse([f"figure={name}"])
    assert (options.unit, options.figure) == ("layer", name)
    assert options.out == f"exp/bench-{name}.json"
    assert parse(["lengths=[7]", f"figure={name}", "out=x.json"]).lengths == [7]


def test_the_figures_are_those_of_the_papers() -> None:
    assert FIGURES == ["agglomerative", "cast", "clustered"]
    clustered, agglomerative = parse(["figure=clustered"]), parse(["figure=agglomerative"])
    assert (clustered.batch, clustered.heads, clustered.head_dim, clustered.feedforward) == (
        "max",
        6,
        64,
        1536,
    )
    assert clustered.lengths == [2**power for power in range(9, 16)]
    assert (agglomerative.batch, agglomerative.heads * agglomerative.head_dim) == ("32", 512)
    assert measured_names(agglomerative)[1::2] == ["full:causal=true", "agglomerative-8:causal=true"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["figure=clusterd"], "did you mean 'clustered'"),
        (["out=b.png"], "out=b.png: expected a name that ends in .json"),  # the plot replaced the results
        (["batch=0"], "batch=0: expected max or a number 1 … 1000000"),
        (["batch=many"], "batch=many: expected max"),
        (["memory=4"], "memory=4: has no effect with batch=1, only with batch=max"),
        (["feedforward=8"], "with unit=mechanism, only with unit=layer"),
        (["attentions=[cast-8]"], "attentions=cast-8: has parameters of its own; use unit=layer"),
        (
            ["unit=layer", "attentions=[peer:lsh-1]"],
            "attentions=peer:lsh-1: expected a mechanism of this program",
        ),
        (["passes=[]"], "passes=[]: expected at least one"),
        (["passes=[backward]"], "expected one of forward, forward+backward"),
        (["causal=never"], "expected one of named, both"),
    ],
)
def test_errors_name_the_option(overrides: list[str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        parse(overrides)
    assert message in caught.value.line
