"""Training by a budget of time: it ends with the budget, the learning rate with it, interrupted or not."""

import csv
import itertools
import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tone_corpora import TINY

from asr.errors import UserError
from asr.model.checkpoint import load
from asr.training import callbacks
from asr.training.config import train_options
from asr.training.optimizer import OptimizerConfig, rate_factor
from asr.training.plan import TimeBudget, parse_budget
from asr.training.recognition import RecognitionTask
from asr.training.run import train


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("10min", 600), ("1.5h", 5400), ("2d", 172800), ("0.5s", 0.5)]
)
def test_times_are_read(text: str, seconds: float) -> None:
    assert parse_budget(text, "wall") == TimeBudget(seconds, "wall")


@pytest.mark.parametrize("text", ["10", "min", "0s", "-1s", "10 min", "1e3s"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"trainer\.budget="):
        parse_budget(text, "wall")
    with pytest.raises(UserError, match="budget_clock='sun'"):
        parse_budget("1s", "sun")


@given(st.floats(0, 1), st.floats(0, 1), st.integers(0, 500))
def test_the_rate_falls_with_what_is_spent_and_ends_at_its_last_value(a: float, b: float, step: int) -> None:
    options = OptimizerConfig(warmup_steps=100, final_ratio=0.1)
    low, high = sorted((a, b))
    assert rate_factor(step, 1, options, low) >= rate_factor(step, 1, options, high)
    assert rate_factor(1000, 1, options, 0.0) == pytest.approx(1.0)
    assert rate_factor(1000, 1, options, 1.0) == pytest.approx(0.1)


class Clock:
    """Stands for `time`: every look at a clock finds a second gone, so a step or a wait lasts one."""

    def __init__(self) -> None:
        self.seconds = itertools.count()

    def perf_counter(self) -> float:
        return float(next(self.seconds))

    process_time = perf_counter


class Killed(Exception):
    """Stands for the end of the process."""


def run(corpus: Path, folder: Path, *words: str) -> list[dict[str, str]]:
    words = (*TINY, f"data.train=[{corpus}]", f"run={folder}", "trainer.checkpoint_every=4", *words)
    train(train_options(list(words)))
    with (folder / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        del row["frames_per_s"]
    return rows


@pytest.mark.parametrize("clock", ["wall", "cpu"])
def test_training_ends_with_its_budget_and_an_interrupted_one_like_it(
    clock: str, tone_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callbacks, "time", Clock())
    words = ["trainer.budget=2min", f"trainer.budget_clock={clock}", "trainer.validate_every=7"]
    rows = run(tone_corpus, tmp_path / "whole", *words)
    name = "train_s" if clock == "wall" else "train_cpu_s"
    times = [float(row[name]) for row in rows]
    assert times[-2] < 120 <= times[-1]
    assert rows[-1]["dev_per"], "the last state has been validated"
    rates = [float(row["learning_rate"]) for row in rows]
    assert max(rates) > 10 * rates[-1], "the schedule ends with the budget"
    summary = json.loads((tmp_path / "whole" / "training.json").read_text())
    assert (summary["steps"], summary["budget_s"], summary["budget_clock"]) == (len(rows), 120.0, clock)

    original = RecognitionTask.training_step

    def killed_at(self: RecognitionTask, *args: object) -> torch.Tensor:
        if self._data.cursor.batches == 10:
            raise Killed
        return original(self, *args)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(RecognitionTask, "training_step", killed_at)
        with pytest.raises(Killed):
            run(tone_corpus, tmp_path / "parts", *words)
    assert run(tone_corpus, tmp_path / "parts", *words, "resume=auto") == rows
    weights = [
        load(tmp_path / x / "checkpoints" / "last.ckpt")["model"]["weights"] for x in ("whole", "parts")
    ]
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])


def test_a_spent_budget_is_finished_and_a_larger_one_goes_on(
    tone_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(callbacks, "time", Clock())
    rows = run(tone_corpus, tmp_path, "trainer.budget=10s")
    assert run(tone_corpus, tmp_path, "trainer.budget=10s", "resume=auto") == rows
    assert "training is finished" in capsys.readouterr().out
    assert len(run(tone_corpus, tmp_path, "trainer.budget=20s", "resume=auto")) > len(rows)


def test_more_steps_than_those_of_a_finished_training_are_taken(tone_corpus: Path, tmp_path: Path) -> None:
    """Lightning held the one epoch for over, took no step, and there was no error rate to report."""
    assert len(run(tone_corpus, tmp_path, "trainer.max_steps=6")) == 6
    assert len(run(tone_corpus, tmp_path, "trainer.max_steps=9", "resume=auto")) == 9


def test_steps_end_it_as_well_where_they_are_given(
    tone_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callbacks, "time", Clock())
    assert len(run(tone_corpus, tmp_path, "trainer.budget=1h", "trainer.max_steps=5")) == 5


def test_checkpoints_are_written_before_the_clock_of_a_step_starts(
    tone_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Resume points were written between the two readings of the clock, and counted as training."""
    clock = Clock()
    monkeypatch.setattr(callbacks, "time", clock)
    original = callbacks.ResumePoint.on_train_batch_start

    def slow(self: callbacks.ResumePoint, *args: object) -> None:
        for _ in range(100):
            clock.perf_counter()
        original(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(callbacks.ResumePoint, "on_train_batch_start", slow)
    rows = run(tone_corpus, tmp_path, "trainer.max_steps=5")
    assert float(rows[-1]["train_s"]) < 100
