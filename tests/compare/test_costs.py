"""Equal time by the cost of a step, measured for all candidates in turns."""

import json
from pathlib import Path

import pytest
from tone_corpora import TINY

from asr.cli import main
from asr.compare import costs
from asr.compare.costs import StepTimer, step_costs, steps_within
from asr.training.config import TrainConfig, train_options


@pytest.fixture
def trainings(tone_corpus: Path) -> dict[str, TrainConfig]:
    shared = [*TINY, f"data.train=[{tone_corpus}]"]
    return {
        "small": train_options([*shared, "model.layers=1"]),
        "large": train_options([*shared, "model.layers=1", "model.feedforward=4096"]),
    }


def test_a_larger_model_costs_more(trainings: dict[str, TrainConfig]) -> None:
    found = step_costs(trainings)
    assert 0 < found["small"] < found["large"]


def test_steps_leave_the_weights_as_they_are(trainings: dict[str, TrainConfig]) -> None:
    timer = StepTimer(trainings["small"])
    before = {name: value.clone() for name, value in timer.task.model.named_parameters()}
    assert timer.step()
    assert all(value.equal(before[name]) for name, value in timer.task.model.named_parameters())


def test_costs_are_measured_once(
    trainings: dict[str, TrainConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A candidate added later is measured beside a known one, here on a machine half as fast."""
    monkeypatch.setattr(costs, "step_costs", lambda asked: dict.fromkeys(asked, 0.1))
    assert steps_within(60, {"small": trainings["small"]}, tmp_path) == {"small": 600}
    monkeypatch.setattr(costs, "step_costs", lambda asked: {"small": 0.2, "large": 0.8})
    assert steps_within(60, trainings, tmp_path) == {"small": 600, "large": 150}
    monkeypatch.setattr(costs, "step_costs", None)
    trainings["small"].seed += 1
    assert steps_within(0.01, trainings, tmp_path) == {"small": 1, "large": 1}


def test_a_comparison_gives_each_candidate_its_steps(
    tone_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = {"full": 0.5, "clustered-3": 0.25}
    monkeypatch.setattr(costs, "step_costs", lambda asked: {name: seconds[name] for name in asked})
    words = [
        "compare",
        *TINY,
        f"data.train=[{tone_corpus}]",
        "attentions=[full,clustered-3]",
        "evaluate=[own]",
    ]
    words += ["budget=1s", "budget_clock=steps", "timing_repeats=1", "reuse=none", f"folder={tmp_path}"]
    assert main(words) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    assert {x["candidate"]: x["steps"] for x in results["trainings"]} == {"full": 2, "clustered-3": 4}
    assert "trainer.max_steps=2" in results["trainings"][0]["command"]
    assert results["protocol"]["clock"] == "cpu"
    assert results["protocol"]["budget"] == "1s of training (CPU time, by the cost of a step)"
