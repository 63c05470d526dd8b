"""`asr bench`: mechanisms, layers and models by length; papers' figures; errors that name the option."""

import io
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path

import asr_conf
import pytest
import torch
from processes import result_of_a_fork
from rich.console import Console
from torch import Tensor

import attention_ext
from asr import config
from asr.attention import MECHANISMS, default_names
from asr.attention.table import missing_kernels
from asr.commands.bench import run
from asr.errors import UserError
from asr.experiment import bench as experiment
from asr.experiment.bench import bench_options as parse
from asr.experiment.bench import measured_names, preset_named, row_of, time_in_turns
from asr.experiment.crossings import speed_ups
from asr.experiment.operations import PARTS
from asr.experiment.options import BenchOptions
from asr.experiment.peaks import TooLarge
from asr.experiment.random_input import Problem
from asr.experiment.records import Candidate, Evaluation
from asr.experiment.results import Results, read_results
from asr.measure import Seconds, can_measure_memory
from asr.model.options import ModelConfig
from asr.records.run_folder import RunFolder
from asr.report.figures import benchmark as bench_chart
from asr.report.tables.benchmark import tables
from asr.training.options import TrainConfig

LAYER = Problem(8, 8, "fp32", "cpu", 0, unit="layer", feedforward=96, batch=2, length=40)
FIGURES = sorted(path.stem for path in Path(asr_conf.__file__).parent.glob("figure/*.yaml"))
SMALL = ["heads=2", "head_dim=8", "feedforward=32", "rounds=1", "seconds=0"]


@pytest.fixture(autouse=True)
def without_pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out PNG and PDF, which one test looks at."""
    if request.function is not test_results_cover_every_name_length_and_pass:
        monkeypatch.setattr("asr.commands.bench.export", lambda figure, folder: [])


def quiet() -> Console:
    return Console(file=io.StringIO(), width=200)


def shown(out: Path, *overrides: str) -> str:
    text = io.StringIO()
    run(parse([*overrides, "rounds=1", "seconds=0", f"out={out}"]), console=Console(file=text, width=200))
    return text.getvalue()


@pytest.mark.slow
def test_results_cover_every_name_length_and_pass(tmp_path: Path) -> None:
    text = io.StringIO()
    names = ["full", "i-clustered-4@reference", "clustered-4"]
    options = BenchOptions(
        attentions=names,
        lengths=[20, 30],
        heads=2,
        head_dim=8,
        rounds=3,
        seconds=0.0,
        peak_memory=False,
        out=str(tmp_path / "b.json"),
    )
    results = run(options, console=Console(file=text, width=100))
    rows = results.evaluations
    assert [(row.length, row.passes, row.variant) for row in rows] == [
        (length, passes, name)
        for length in (20, 30)
        for passes in ("forward", "forward+backward")
        for name in names
    ]
    for row in rows:
        assert (
            0 < min(row.forward_cpu_repeats_s) <= (row.forward_cpu_s or 0) <= max(row.forward_cpu_repeats_s)
        )
    assert set(speed_ups(rows, "full", "cpu")[::3]) == {1.0}
    assert read_results(tmp_path / "b.json") == results
    assert (tmp_path / "b.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "b.pdf").read_bytes().startswith(b"%PDF")
    assert "i-clustered-4@reference" in text.getvalue()
    assert "utterance" in text.getvalue()  # look-ahead


def test_missing_kernels_are_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """i-clustered took 0.42 s against full's 0.10 for lack of a compiler, without a word."""
    monkeypatch.setattr(attention_ext, "why_unavailable", {"cpu": "no compiler", "cuda": "no nvcc"}.get)
    names = ["full", "clustered-2", "full*1,local-4*1", "mamba"]
    notice = missing_kernels(names, "cpu")
    assert notice.startswith("clustered and local run without compiled kernels: times say nothing about the")
    assert "(no compiler; to build them, in the clone: pip install --no-build-isolation" in notice
    assert missing_kernels(["full", "linear", "oracle-top-2"], "cpu") == ""
    options = BenchOptions(
        attentions=["full", "clustered-2", "local-4@reference"],
        lengths=[8],
        heads=1,
        head_dim=4,
        peak_memory=False,
    )
    options = replace(options, batch="1", rounds=1, seconds=0.0, device="cpu", out=str(tmp_path / "b.json"))
    console = Console(file=io.StringIO(), width=300)
    run(options, console=console)
    assert console.file.getvalue().count("clustered runs without compiled kernels") == 1
    figure = bench_chart.figure(read_results(tmp_path / "b.json"))
    assert figure is not None
    assert figure.caption.count("clustered runs without compiled kernels: times say nothing") == 1


def test_look_ahead_is_a_layers_in_positions_or_a_models_in_ms() -> None:
    names = ["full@reference", "local-8:right=2", "local-8:right=0,chunk=6", "peer:clustered-4"]

    def shown(unit: str, model: Candidate) -> list[str]:
        rows = [row_of(name, LAYER, "forward", [Seconds(1.0, 1.0)]) for name in names]
        options = asdict(BenchOptions(unit=unit, baseline=names[0], frames="1"))
        protocol = {"bench": options, "baseline": names[0]}
        results = Results(["asr", "bench"], protocol=protocol, candidates=[model], evaluations=rows)
        (table,) = tables(results)
        return [row[-1].text for row in table.rows]

    assert shown("layer", Candidate("layer", "full")) == ["utterance", "2", "5", "–"]
    model = Candidate("model", "full", layers=3, subsampling=4)
    assert shown("model", model) == ["utterance", "240", "200", "–"]


@pytest.mark.slow
def test_a_name_can_set_the_number_of_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, set[int]] = {"full": set(), "full@3": set()}

    def build_operation(name: str, problem: Problem) -> Callable[..., Tensor]:
        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            seen[name].add(torch.get_num_threads())
            return q * v

        return attend

    monkeypatch.setattr(experiment, "build_operation", build_operation)
    before = torch.get_num_threads()
    options = BenchOptions(attentions=list(seen), lengths=[20], heads=1, head_dim=8, rounds=3, clock="wall")
    run(
        replace(options, seconds=0.0, peak_memory=False, out=str(tmp_path / "b.json")),
        console=Console(file=io.StringIO()),
    )
    assert seen == {"full": {1}, "full@3": {3}}
    assert torch.get_num_threads() == before


@pytest.mark.slow
@pytest.mark.skipif(not can_measure_memory("cpu"), reason="needs /proc (Linux)")
def test_memory_is_measured_for_every_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new process, as test_bench_layers.py starts, spends most of its time on imports."""
    monkeypatch.setattr("asr.experiment.peaks.in_new_process", result_of_a_fork)
    out = tmp_path / "b.json"
    options = BenchOptions(attentions=["full"], lengths=[900], heads=2, head_dim=8, rounds=1, out=str(out))
    run(options, console=Console(file=io.StringIO()))
    rows = read_results(out).evaluations
    assert [row.passes for row in rows] == ["forward", "forward+backward"]
    assert all((row.variant, row.length, row.utterances) == ("full", 900, 1) for row in rows)
    assert all(row.peak_mib and row.peak_mib > 0 for row in rows)


def check_and_run(options: BenchOptions) -> None:
    config.check(options)
    run(options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attentions": ["nonsense-3"]}, "nonsense"),
        ({"lengths": []}, "lengths="),
        ({"attentions": ["full@0"]}, "at least 1 thread"),
        ({"attentions": ["full@2"]}, "clock=wall"),
        ({"attentions": ["full frames=2"]}, "full frames=2: expected unit=model, found mechanism"),
        ({"unit": "model", "attentions": ["full precision=fp16"], "device": "cpu"}, "fp16 needs a CUDA"),
        ({"attentions": ["peer:clustered-4"]}, "pytorch-fast-transformers"),
        ({"attentions": ["peer:lsh-4"]}, "reformer-pytorch"),
    ],
)
def test_errors_name_the_option(change: dict[str, object], message: str) -> None:
    module = {"pytorch-fast-transformers": "fast_transformers", "reformer-pytorch": "reformer_pytorch"}
    if message in module and find_spec(module[message]):
        pytest.skip(f"{message} is installed")
    options = BenchOptions(**{"lengths": [8], "peak_memory": False, **change})  # type: ignore[arg-type]
    with pytest.raises(UserError, match=message):
        check_and_run(options)


def test_a_name_for_every_row() -> None:
    assert len(default_names()) == len(MECHANISMS)
    options = BenchOptions(attentions=["all"], unit="layer")
    assert measured_names(options) == default_names()
    own = {"cast-8", "agglomerative-8"}
    assert own.isdisjoint(measured_names(replace(options, unit="mechanism")))
    assert own <= set(measured_names(options))


@pytest.mark.slow
def test_the_largest_batch_is_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`full` needs N² bytes for a sequence, so that its batch shrinks faster, and none fits at N = 40."""

    def peak(name: str, problem: Problem, passes: str, limit: int) -> int:
        each = problem.length**2 if name == "full" else 20 * problem.length
        size = problem.batch * each * 8192
        if size > limit:
            raise TooLarge(name)
        return size

    monkeypatch.setattr(experiment, "peak_memory_bytes", peak)
    out = tmp_path / "bench.json"
    names = "attentions=[full,cast-2]"
    overrides = [names, "unit=layer", "batch=max", "memory=0.01", "lengths=[10,20,40]", f"out={out}"]
    console = quiet()
    run(parse([*overrides, *SMALL, "passes=[forward]"]), console=console)
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
    assert re.search(r"│ *40 │ *> 10\.2 │", shown)
    figure = bench_chart.figure(results)
    assert figure is not None
    assert "the largest batch that fits into 0.01 GiB, 1 to 13" in figure.caption
    assert (figure.title, len(figure.panels)) == ("Time and memory of a transformer layer per position", 2)


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

    monkeypatch.setattr(experiment, "time_in_turns", interrupted)
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
        run(options, console=quiet())
    assert not out.exists()
    assert (tmp_path / "bench.unfinished.jsonl").exists()
    again = quiet()
    assert [row.length for row in run(options, console=again).evaluations] == [10, 20, 30]
    assert asked == [10, 20, 30, 30]
    assert "reusing 2 results" in again.file.getvalue()  # type: ignore[attr-defined]
    assert not (tmp_path / "bench.unfinished.jsonl").exists()
    run(replace(options, seed=1), console=quiet())
    assert asked[4:] == [10, 20, 30]


def test_calls_that_would_take_too_long_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Full attention over an hour would have taken the rest of the day."""
    asked: list[tuple[int, list[str], int]] = []

    def timed(
        problems: dict[str, Problem], passes: str, clock: str, threads: int, rounds: int, limit_s: float
    ) -> list[Evaluation]:
        length = next(iter(problems.values())).length
        asked.append((length, list(problems), rounds))
        times = {name: length**2 / 10_000 if name == "full" else length / 100 for name in problems}
        return [row_of(name, x, passes, [Seconds(0, times[name])] * 5) for name, x in problems.items()]

    monkeypatch.setattr(experiment, "time_in_turns", timed)
    overrides = [
        "attentions=[full,local-8]",
        "unit=layer",
        "lengths=[100,200,2000,9000]",
        "peak_memory=false",
    ]
    options = parse([*overrides, "passes=[forward]", "longest_call=30", f"out={tmp_path / 'b.json'}"])
    bench = experiment.Bench(options)
    bench.run(lambda what: None)
    both = ["full", "local-8"]
    assert asked == [(100, both, options.rounds), (200, both, options.rounds), (2000, ["local-8"], 1)]
    left = [(x.variant, x.length, x.error) for x in bench.rows if x.status == "missing"]
    why = "not measured: more than 30 s per call expected"
    assert left == [("full", 2000, why), ("full", 9000, why), ("local-8", 9000, why)]
    assert [x.key for x in tables(bench.results())] == ["times-forward"]
    forever = experiment.Bench(replace(options, longest_call=0.0, out=str(tmp_path / "c.json")))
    forever.run(lambda what: None)
    assert not [x for x in forever.rows if x.status == "missing"]


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_option_sets_that_other_options_override(name: str) -> None:
    options = parse([f"figure={name}"])
    assert (options.unit, options.figure) == ("model" if name == "map" else "layer", name)
    assert options.out == ("exp/map/tiny.json" if name == "map" else f"exp/bench-{name}.json")
    assert parse(["lengths=[7]", f"figure={name}", "out=x.json"]).lengths == [7]


def test_the_figures_are_those_of_the_papers() -> None:
    assert FIGURES == ["agglomerative", "cast", "clustered", "map"]  # the map is ours
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
        (["heads=4", "unit=model"], "heads=4: has no effect with unit=model"),
        (["model=tiny"], "model=tiny: has no effect with unit=mechanism, only with unit=model"),
        (["loss.name=mmi"], "loss.name=mmi: has no effect with unit=mechanism, only with unit=model"),
        (["unit=model", "loss.order=3"], "loss.order=3: has no effect with loss=ctc"),
        (["unit=model", "loss.consistency=0.2"], "loss.consistency"),
        (["unit=model", "loss.name=mmi", "passes=[forward]"], "loss.name=mmi: has no effect without passes="),
        (
            ["causal=both", "attentions=[lsh-1,near-8]"],
            "causal=both: has no effect: none of lsh-1, near-8 has",
        ),
        (["unit=layer", "passes=[grouping]"], "passes=grouping: expected unit=mechanism"),
        (["passes=[grouping]"], "attentions=full: expected groups of queries with passes=grouping"),
    ],
)
def test_options_that_cannot_be_or_have_no_effect_are_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        parse(overrides)
    assert message in caught.value.line


@pytest.mark.slow
def test_encoding_and_training_steps_of_a_preset(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    text = shown(
        out, "unit=model", "model=tiny", "attentions=[full,cast-4]", "lengths=[48]", "peak_memory=false"
    )
    results = read_results(out)
    assert [(row.passes, row.variant) for row in results.evaluations] == [
        (passes, name) for passes in ("forward", "forward+backward") for name in ("full", "cast-4")
    ]
    for row in results.evaluations:
        assert list(row.parts_s) == (list(PARTS) if row.passes == "forward+backward" else [])
        if row.parts_s:
            assert sum(row.parts_s.values()) == pytest.approx(row.forward_cpu_s)
    assert all(part in text for part in PARTS)
    figure = bench_chart.figure(results)
    assert figure is not None
    assert "The model of the preset tiny on random input (batch 1, fp32 on cpu)" in figure.caption
    assert figure.title == "Time and memory of a model per position"


def test_the_frames_of_a_run_are_its_own_unless_given(tmp_path: Path) -> None:
    """`frames=1` was the default, so it didn't time a halved model at the full rate.

    A run with a pretrained encoder was timed as a transformer with random weights of its sizes.
    """
    sizes = ModelConfig(layers=3, frames="1,2*")
    for name, model in (("own", sizes), ("other", replace(sizes, encoder="whisper"))):
        config.save(TrainConfig(model=model), RunFolder(tmp_path / name).options)
    own = str(tmp_path / "own")
    assert [preset_named(own, x).frames for x in ("", "1", "3")] == ["1,2*", "1", "3"]
    with pytest.raises(UserError, match=r"^frames=2\*4: expected factors for 3 layers"):
        preset_named(own, "2*4")
    with pytest.raises(UserError, match="found the encoder whisper"):
        preset_named(str(tmp_path / "other"))


@pytest.mark.slow
def test_a_runs_architecture_in_several_variants(trained: Path, tmp_path: Path) -> None:
    names = ["full", "full frames=2", "near-4 precision=bf16"]
    asked = ["unit=model", f"model={trained}", f"attentions={names}", "lengths=[48]", "peak_memory=false"]
    text = shown(tmp_path / "bench.json", *asked, "passes=forward")
    results = read_results(tmp_path / "bench.json")
    assert [row.variant for row in results.evaluations] == names
    assert "fastest at N = 48: " in text
    shown(tmp_path / "third.json", *asked, "frames=3", "passes=forward")
    figure = bench_chart.figure(read_results(tmp_path / "third.json"))
    assert figure is not None
    assert f"The model of the preset {trained} frames=3 on random input" in figure.caption
    with pytest.raises(UserError, match=r"frames=1,2\*7"):
        shown(tmp_path / "other.json", *asked, "frames=1,2*7", "passes=forward")


@pytest.mark.slow
@pytest.mark.skipif(not can_measure_memory("cpu"), reason="needs /proc (Linux)")
def test_memory_of_a_model_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new process, as test_bench_layers.py starts, spends most of its time on imports."""
    monkeypatch.setattr("asr.experiment.peaks.in_new_process", result_of_a_fork)
    out = tmp_path / "bench.json"
    shown(out, "unit=model", "model=tiny", "attentions=[full]", "lengths=[2000]")
    sizes = {row.passes: row.peak_mib or 0.0 for row in read_results(out).evaluations}
    assert 0 < sizes["forward"] < sizes["forward+backward"]


@pytest.mark.slow
def test_groups_of_queries_are_measured_alone(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    names = ["i-clustered-4:grouping=hash", "i-clustered-4:grouping=keys"]
    sizes = ["lengths=[40]", "heads=2", "head_dim=8", "peak_memory=false"]
    shown(out, f"attentions=[{','.join(names)}]", f"baseline={names[0]}", "passes=[grouping]", *sizes)
    results = read_results(out)
    assert [(row.variant, row.passes) for row in results.evaluations] == [(x, "grouping") for x in names]
    assert all(ratio and ratio > 0 for ratio in speed_ups(results.evaluations, names[0], "cpu"))
    figure = bench_chart.figure(results)
    assert figure is not None
    assert len(figure.panels) == 1


@pytest.mark.parametrize("theirs", ["bench.json", "bench.txt"])
def test_files_of_other_kinds_are_not_replaced(theirs: str, tmp_path: Path) -> None:
    """`out=<run>/training.json` lost the run's summary, `out=words.json` the words.txt beside it."""
    (tmp_path / theirs).write_text('{"steps": 5}')
    message = f"{theirs}: expected no file, or one of an earlier benchmark"
    asked = [
        "attentions=[full]",
        "unit=layer",
        "lengths=[8]",
        "passes=[forward]",
        "peak_memory=false",
        *SMALL,
    ]
    options = parse([*asked, f"out={tmp_path / 'bench.json'}"])
    with pytest.raises(UserError, match=message):
        run(options, console=quiet())
    assert (tmp_path / theirs).read_text() == '{"steps": 5}'
    (tmp_path / theirs).unlink()
    for _ in range(2):  # its own results are replaced
        assert run(options, console=quiet()).evaluations
