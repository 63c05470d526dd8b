"""`asr bench unit=model`: encoding and training steps of whole models, and the groups of queries alone."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from processes import result_of_a_fork
from rich.console import Console

from asr.commands.bench import parse, run
from asr.errors import UserError
from asr.experiment.crossings import speed_ups
from asr.experiment.operations import PARTS, MeasuredModel, StepSeconds, build_operation, run_once
from asr.experiment.random_input import VOCABULARY, Problem
from asr.experiment.results import read_results
from asr.losses.options import LossConfig
from asr.measure import can_measure_memory
from asr.model.options import ModelConfig
from asr.report.figures import benchmark as bench_chart

TINY = ModelConfig(layers=1, heads=2, head_dim=8, feedforward=16, subsampling=2)
MODEL = Problem(1, 1, "fp32", "cpu", 0, "model", batch=2, length=60, preset=TINY)


def bench(out: Path, *overrides: str) -> str:
    shown = io.StringIO()
    run(
        [], parse([*overrides, "rounds=1", "seconds=0", f"out={out}"]), console=Console(file=shown, width=200)
    )
    return shown.getvalue()


@pytest.mark.slow
def test_encoding_and_training_steps_of_a_preset(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    shown = bench(
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
    assert all(part in shown for part in PARTS)
    figure = bench_chart.figure(results)
    assert figure is not None
    assert "The model of the preset tiny on random input (batch 1, fp32 on cpu)" in figure.caption
    assert figure.title == "Time and memory of a model per position"


def test_frames_layers_and_precision_are_those_of_the_variant() -> None:
    preset = replace(TINY, layers=3)
    problem = replace(MODEL, preset=preset)
    model = build_operation("local-4@reference frames=1,2*1 layers=2 precision=bf16", problem)
    assert isinstance(model, MeasuredModel)
    assert list(model.encoder.factors) == [1, 2]
    assert model.problem.dtype == torch.bfloat16
    (features,), _ = problem.tensors()
    assert features.dtype == torch.float32  # the same input for all variants


@pytest.mark.slow
def test_a_runs_architecture_in_several_variants(trained: Path, tmp_path: Path) -> None:
    names = ["full", "full frames=2", "near-4 precision=bf16"]
    asked = ["unit=model", f"model={trained}", f"attentions={names}", "lengths=[48]", "peak_memory=false"]
    shown = bench(tmp_path / "bench.json", *asked, "passes=forward")
    results = read_results(tmp_path / "bench.json")
    assert [row.variant for row in results.evaluations] == names
    assert "fastest at N = 48: " in shown
    with pytest.raises(UserError, match=r"frames=1,2\*7"):
        bench(tmp_path / "other.json", *asked, "frames=1,2*7", "passes=forward")


def test_a_step_trains_and_encoding_does_not() -> None:
    model = build_operation("full", MODEL)
    assert isinstance(model, MeasuredModel)
    (features,), labels = MODEL.tensors()
    weight = model.head.projection.weight
    before, outputs = weight.detach().clone(), model(features)
    assert outputs.shape == (2, 30, VOCABULARY)
    run_once(model, [features], labels, "forward")
    assert torch.equal(weight, before)
    taken = run_once(model, [features], labels, "forward+backward")
    assert not torch.equal(weight, before)
    assert weight.grad is None
    assert isinstance(taken, StepSeconds)
    assert sum(part.wall_s for part in taken.parts) == pytest.approx(taken.wall_s)


@pytest.mark.parametrize("topology", ["ctc", "hmm"])
def test_the_loss_is_the_one_asked_for(topology: str) -> None:
    loss = LossConfig(name="mmi", topology=topology, histories=50)
    problem = Problem(1, 1, "bf16", "cpu", 0, "model", batch=1, length=60, preset=TINY, loss=loss)
    model = build_operation("clustered-4", problem)
    (features,), labels = problem.tensors()
    assert type(model.loss).__name__ == "MMILoss"  # type: ignore[attr-defined]
    assert run_once(model, [features], labels, "forward+backward").wall_s > 0


@pytest.mark.slow
@pytest.mark.skipif(not can_measure_memory("cpu"), reason="needs /proc (Linux)")
def test_memory_of_a_model_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new process, as test_bench_layers.py starts, spends most of its time on imports."""
    monkeypatch.setattr("asr.experiment.peaks.in_new_process", result_of_a_fork)
    out = tmp_path / "bench.json"
    bench(out, "unit=model", "model=tiny", "attentions=[full]", "lengths=[2000]")
    sizes = {row.passes: row.peak_mib or 0.0 for row in read_results(out).evaluations}
    assert 0 < sizes["forward"] < sizes["forward+backward"]


@pytest.mark.slow
def test_groups_of_queries_are_measured_alone(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    names = ["i-clustered-4:grouping=hash", "i-clustered-4:grouping=keys"]
    sizes = ["lengths=[40]", "heads=2", "head_dim=8", "peak_memory=false"]
    bench(out, f"attentions=[{','.join(names)}]", f"baseline={names[0]}", "passes=[grouping]", *sizes)
    results = read_results(out)
    assert [(row.variant, row.passes) for row in results.evaluations] == [(x, "grouping") for x in names]
    assert all(ratio and ratio > 0 for ratio in speed_ups(results.evaluations, names[0], "cpu"))
    figure = bench_chart.figure(results)
    assert figure is not None
    assert len(figure.panels) == 1


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
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
def test_options_without_effect_are_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        parse(overrides)
    assert message in caught.value.line
