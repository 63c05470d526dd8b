"""What runs on random input: every mechanism in a layer, and training steps of models."""

from dataclasses import replace

import pytest
import torch

from asr.attention import default_names
from asr.experiment.operations import MeasuredModel, StepSeconds, build_operation, run_once
from asr.experiment.random_input import VOCABULARY, Problem
from asr.losses.options import LossConfig
from asr.model.options import ModelConfig

LAYER = Problem(8, 8, "fp32", "cpu", 0, unit="layer", feedforward=96, batch=2, length=40)
TINY = ModelConfig(layers=1, heads=2, head_dim=8, feedforward=16, subsampling=2)
MODEL = Problem(1, 1, "fp32", "cpu", 0, "model", batch=2, length=60, preset=TINY)


@pytest.mark.parametrize("name", default_names())
def test_every_row_of_the_table_can_be_measured_in_a_layer(name: str) -> None:
    layer = build_operation(name, LAYER)
    inputs, grad = LAYER.tensors()
    for passes in ("forward", "forward+backward"):
        run_once(layer, inputs, grad, passes)
    assert layer(*inputs).shape == grad.shape == (2, 40, 64)


def test_the_feed_forward_part_is_optional() -> None:
    def weights(feedforward: int) -> int:
        layer = build_operation("full", replace(LAYER, feedforward=feedforward))
        return sum(x.numel() for x in layer.parameters() if x.dim() == 2)  # type: ignore[attr-defined]

    assert weights(0) == 4 * 64 * 64
    assert weights(96) == 4 * 64 * 64 + 2 * 64 * 96


def test_half_precision_reaches_the_parameters() -> None:
    half = replace(LAYER, precision="bf16")
    assert build_operation("full", half)(*half.tensors()[0]).dtype == torch.bfloat16


def test_frames_layers_and_precision_are_those_of_the_variant() -> None:
    preset = replace(TINY, layers=3)
    problem = replace(MODEL, preset=preset)
    model = build_operation("local-4@reference frames=1,2*1 layers=2 precision=bf16", problem)
    assert isinstance(model, MeasuredModel)
    assert list(model.encoder.factors) == [1, 2]
    assert model.problem.dtype == torch.bfloat16
    (features,), _ = problem.tensors()
    assert features.dtype == torch.float32  # the same input for all variants


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
    loss = LossConfig(name="mmi", topology=topology)
    problem = Problem(1, 1, "bf16", "cpu", 0, "model", batch=1, length=60, preset=TINY, loss=loss)
    model = build_operation("clustered-4", problem)
    (features,), labels = problem.tensors()
    assert type(model.loss).__name__ == "MMILoss"  # type: ignore[attr-defined]
    assert run_once(model, [features], labels, "forward+backward").wall_s > 0
