"""`asr bench`: results for every name, length and pass, and errors that name the option."""

import io
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from processes import result_of_a_fork
from rich.console import Console
from torch import Tensor

import attention_ext
from asr import config
from asr.attention.table import missing_kernels
from asr.commands import bench
from asr.commands.bench import run
from asr.errors import UserError
from asr.experiment import bench as experiment
from asr.experiment.crossings import speed_ups
from asr.experiment.options import BenchOptions
from asr.experiment.random_input import Problem
from asr.experiment.results import read_results
from asr.measure import can_measure_memory
from asr.model.options import ModelConfig
from asr.report.figures import benchmark as bench_chart


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
    results = run([], options, console=Console(file=text, width=100))
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
        attentions=["full", "clustered-2", "local-4@reference"], lengths=[8], heads=1, head_dim=4
    )
    options = replace(options, batch="1", rounds=1, seconds=0.0, device="cpu", out=str(tmp_path / "b.json"))
    console = Console(file=io.StringIO(), width=300)
    run([], options, console=console)
    assert console.file.getvalue().count("clustered runs without compiled kernels") == 1
    figure = bench_chart.figure(read_results(tmp_path / "b.json"))
    assert figure is not None
    assert figure.caption.count("clustered runs without compiled kernels: times say nothing") == 1


def test_look_ahead_is_a_layers_in_positions_or_a_models_in_ms() -> None:
    preset = ModelConfig(layers=3, subsampling=4)
    names = ["full@reference", "local-8:right=2", "local-8:right=0,chunk=6", "peer:clustered-4"]
    assert [bench._look_ahead(name, None) for name in names] == ["utterance", "2", "5", "–"]
    assert [bench._look_ahead(name, preset) for name in names] == ["utterance", "240", "200", "–"]


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
        [],
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
    run([], options, console=Console(file=io.StringIO()))
    rows = read_results(out).evaluations
    assert [row.passes for row in rows] == ["forward", "forward+backward"]
    assert all((row.variant, row.length, row.utterances) == ("full", 900, 1) for row in rows)
    assert all(row.peak_mib and row.peak_mib > 0 for row in rows)


def check_and_run(options: BenchOptions) -> None:
    config.check(options)
    run([], options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attentions": ["nonsense-3"]}, "nonsense"),
        ({"lengths": []}, "lengths="),
        ({"attentions": ["full@0"]}, "at least 1 thread"),
        ({"attentions": ["full@2"]}, "clock=wall"),
        ({"attentions": ["full frames=2"]}, "full frames=2: expected unit=model, found mechanism"),
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
