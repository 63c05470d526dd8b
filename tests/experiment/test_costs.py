"""Equal time by the cost of a step, measured for all candidates in turns."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import in_process
from tone_corpora import TINY
from torch import Tensor

from asr.cli import main
from asr.experiment import costs, launch
from asr.experiment.costs import StepTimer, step_costs, steps_within
from asr.experiment.progress import _timed
from asr.measure import Seconds
from asr.training.config import train_options
from asr.training.options import TrainConfig


@pytest.fixture
def trainings(tone_corpus: Path) -> dict[str, TrainConfig]:
    shared = [*TINY, f"data.train=[{tone_corpus}]"]
    return {
        "small": train_options([*shared, "model.layers=1"]),
        "large": train_options([*shared, "model.layers=1", "model.feedforward=4096"]),
    }


@pytest.mark.slow
def test_a_larger_model_costs_more(trainings: dict[str, TrainConfig]) -> None:
    found = step_costs(trainings, most_s=0.0)  # one pass: repeated ones are the next test's
    assert 0 < found["small"] < found["large"]


class Steps:
    """Replaces `StepTimer`: steps of known cost, one of which is disturbed.

    Args:
        step_s: cost of a step.
        disturbed: number of the step that takes four times as long; 0 is the first.
    """

    def __init__(self, step_s: float, disturbed: int) -> None:
        self.step_s, self.disturbed, self.taken = step_s, disturbed, 0

    def restart(self) -> None:
        pass

    def step(self) -> Seconds:
        factor = 4 if self.taken == self.disturbed else 1
        self.taken += 1
        return Seconds(0.0, factor * self.step_s)


@pytest.mark.parametrize(("step_s", "steps"), [(0.01, 9 * 21), (0.2, 3 * 21), (5.0, 21)])
def test_a_disturbed_step_does_not_count(
    step_s: float, steps: int, trainings: dict[str, TrainConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A single disturbed step made a candidate 12 % dearer and cost it as many steps of training.

    Long steps are measured once, because planning would take too long.
    """
    timers = [Steps(step_s, disturbed=-1 if steps == 21 else 5), Steps(2 * step_s, disturbed=-1)]
    started = iter(timers)
    monkeypatch.setattr(costs, "StepTimer", lambda options: next(started))
    assert step_costs(trainings) == pytest.approx({"small": step_s, "large": 2 * step_s})
    assert [timer.taken for timer in timers] == [steps, steps]


def test_steps_leave_the_weights_as_they_are(trainings: dict[str, TrainConfig]) -> None:
    timer = StepTimer(trainings["small"])
    before = {name: value.clone() for name, value in timer.task.model.named_parameters()}
    assert timer.step()
    assert all(value.equal(before[name]) for name, value in timer.task.model.named_parameters())


def test_steps_use_the_threads_of_training(
    trainings: dict[str, TrainConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps were measured with the threads of this process, whatever trainer.threads was."""
    options = trainings["small"]
    threads = torch.get_num_threads()
    timer = StepTimer(replace(options, trainer=replace(options.trainer, threads=threads + 1)))
    losses, used = timer.task.losses, []

    def counted(batch: Any) -> tuple[Tensor, ...]:
        used.append(torch.get_num_threads())
        return losses(batch)

    monkeypatch.setattr(timer.task, "losses", counted)
    assert timer.step()
    assert used == [threads + 1]
    assert torch.get_num_threads() == threads


def test_the_optimiser_counts_once_a_step(
    trainings: dict[str, TrainConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Optimisers were compared at steps of the same cost, whatever they cost themselves."""
    options = trainings["small"]
    timer = StepTimer(replace(options, trainer=replace(options.trainer, accumulate=3)))
    clock = [0.0]
    losses, step = timer.task.losses, timer.optimizer.step

    def taking_a_second(batch: Any) -> tuple[Tensor, ...]:
        clock[0] += 1
        return losses(batch)

    def taking_ten(*args: Any) -> Any:
        clock[0] += 10
        return step(*args)

    monkeypatch.setattr(timer.task, "losses", taking_a_second)
    monkeypatch.setattr(timer.optimizer, "step", taking_ten)
    monkeypatch.setattr("asr.measure.time.process_time", lambda: clock[0])
    taken = timer.step()
    assert taken is not None
    assert taken.cpu_s == 13


COPY = ["recipe=copy", "recipe.length=5", "model.layers=1", "model.heads=1", "trainer.accelerator=cpu"]


@pytest.mark.parametrize(
    ("copies", "workers", "expected_s"), [(True, 2, 1.0), (False, 2, 0.0), (False, 0, 1.0)]
)
def test_loading_counts_where_the_training_process_loads(
    copies: bool, workers: int, expected_s: float, tone_corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With data.workers=2, the batches of recipe=copy cost nothing, though no worker draws them."""
    overrides = COPY if copies else [*TINY, f"data.train=[{tone_corpus}]"]
    timer = StepTimer(train_options([*overrides, f"data.workers={workers}", "trainer.max_steps=2"]))
    clock = [0.0]

    def loading(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            clock[0] += 1.0
            yield batch

    timer.batches = loading(timer.batches)
    monkeypatch.setattr("asr.measure.time.process_time", lambda: clock[0])
    step = timer.step()
    assert step
    assert step.cpu_s == expected_s


def both(seconds: float) -> dict[str, float]:
    return {"small": seconds, "large": seconds}


def test_costs_are_measured_once(
    trainings: dict[str, TrainConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A candidate added later is measured beside a known one, here on a machine half as fast.

    A comparison resumed with another trainer.checkpoint_every was measured again, and refused for its steps.
    """
    monkeypatch.setattr(costs, "step_costs", lambda asked, most_s: dict.fromkeys(asked, 0.1))
    assert steps_within({"small": 60}, {"small": trainings["small"]}, tmp_path) == {"small": 600}
    monkeypatch.setattr(costs, "step_costs", lambda asked, most_s: {"small": 0.2, "large": 0.8})
    assert steps_within(both(60), trainings, tmp_path) == {"small": 600, "large": 150}
    monkeypatch.setattr(costs, "step_costs", None)
    trainings["small"].seed += 1
    trainings["small"].trainer.checkpoint_every += 1
    assert steps_within(both(0.01), trainings, tmp_path) == {"small": 1, "large": 1}


def test_costs_that_another_process_has_stored_meanwhile_are_kept(
    trainings: dict[str, TrainConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second `asr compare` replaced them, and the first, which trained with them, could not be resumed."""

    def measure(asked: dict[str, TrainConfig], most_s: float) -> dict[str, float]:
        monkeypatch.setattr(costs, "step_costs", lambda asked, most_s: dict.fromkeys(asked, 0.1))
        assert steps_within({"small": 60}, {"small": trainings["small"]}, tmp_path) == {"small": 600}
        return dict.fromkeys(asked, 0.2)

    monkeypatch.setattr(costs, "step_costs", measure)
    assert steps_within(both(60), trainings, tmp_path) == {"small": 600, "large": 300}
    monkeypatch.setattr(costs, "step_costs", None)
    assert steps_within(both(60), trainings, tmp_path) == {"small": 600, "large": 300}


def test_budgets_share_the_cost_of_a_step(
    trainings: dict[str, TrainConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def measure(given: dict[str, TrainConfig], most_s: float) -> dict[str, float]:
        asked.extend(given)
        return dict.fromkeys(given, 0.5)

    monkeypatch.setattr(costs, "step_costs", measure)
    options = {"full, 1min": trainings["small"], "full, 2min": trainings["small"]}
    seconds = {"full, 1min": 60.0, "full, 2min": 120.0}
    assert steps_within(seconds, options, tmp_path) == {"full, 1min": 120, "full, 2min": 240}
    assert asked == ["full, 1min"]


def test_costs_of_a_dry_run_are_not_stored(
    trainings: dict[str, TrainConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(costs, "step_costs", lambda asked, most_s: dict.fromkeys(asked, 0.1))
    assert steps_within(both(60), trainings, tmp_path / "out", store=False) == {"small": 600, "large": 600}
    assert not (tmp_path / "out").exists()


def test_a_dry_run_times_lora_from_a_model_that_is_not_trained_yet(tone_corpus: Path) -> None:
    """It was refused: without the parent's weights, LoRA has none to start from."""
    small = [*TINY, f"data.train=[{tone_corpus}]", "model.layers=1", "model.lora.rank=2", "init_from=parent"]
    options = train_options(small)
    options.init_from = ""
    assert _timed(options)[1].seconds


@pytest.mark.parametrize("more", [["trainer.devices=2"], ["trainer.nodes=2"], ["trainer.accumulate=2"]])
def test_the_dry_run_divides_an_epoch_among_devices(more: list[str], tone_corpus: Path) -> None:
    small = [*TINY, f"data.train=[{tone_corpus}]", "model.layers=1", "data.frames_per_batch=500"]

    def epoch_steps(*overrides: str) -> int:
        return _timed(train_options([*small, *overrides]))[1].epoch_steps

    assert epoch_steps(*more) == epoch_steps() // 2


def test_steps_on_a_gpu_are_not_timed_on_the_cpu(tone_corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dry run printed the CPU's time for a training that would run on a GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    overrides = [*TINY, f"data.train=[{tone_corpus}]", "trainer.accelerator=auto"]
    assert _timed(train_options(overrides))[1].columns()[1:] == ("–", "–", "not timed: trains on a GPU")


@pytest.mark.slow
def test_a_comparison_gives_each_candidate_its_steps(
    tone_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = {"full": 0.5, "clustered-3": 0.25}
    monkeypatch.setattr(launch, "run_cells", in_process)
    monkeypatch.setattr(costs, "step_costs", lambda asked, most_s: {name: seconds[name] for name in asked})
    arguments = [
        "compare",
        *TINY,
        f"data.train=[{tone_corpus}]",
        "attentions=[full,clustered-3]",
        "evaluate=[own]",
    ]
    arguments += ["budget=1s", "budget_clock=steps", "timing_repeats=1", "reuse=none", f"folder={tmp_path}"]
    assert main(arguments) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    assert {x["candidate"]: x["steps"] for x in results["trainings"]} == {"full": 2, "clustered-3": 4}
    assert "trainer.max_steps=2" in results["trainings"][0]["command"]
    assert results["protocol"]["clock"] == "cpu"
    assert results["protocol"]["budget"] == "1s of training (CPU time, by the cost of a step)"
