"""Training with a time budget, interrupted or not."""

import itertools
import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from runs import assert_same_weights, killed, metrics
from tone_corpora import TINY

from asr import measure
from asr.errors import UserError
from asr.records.run_folder import RunFolder
from asr.training import cost
from asr.training.budget import TimeBudget, parse_budget
from asr.training.checkpoints import SaveResumePoint
from asr.training.config import train_options
from asr.training.optimizer import rate_factor
from asr.training.options import OptimizerConfig
from asr.training.run import train


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("10min", 600), ("1.5h", 5400), ("2d", 172800), ("0.5s", 0.5)]
)
def test_valid_budgets(text: str, seconds: float) -> None:
    assert parse_budget(text, "wall") == TimeBudget(seconds, "wall")


@pytest.mark.parametrize("text", ["10", "min", "0s", "-1s", "10 min", "1e3s"])
def test_invalid_budgets_are_rejected(text: str) -> None:
    with pytest.raises(UserError, match=r"budget="):
        parse_budget(text)


@given(st.floats(0, 1), st.floats(0, 1), st.integers(0, 500))
def test_the_learning_rate_decays_with_the_budget(a: float, b: float, step: int) -> None:
    options = OptimizerConfig(warmup_steps=100)
    low, high = sorted((a, b))
    assert rate_factor(step, 1, options, low) >= rate_factor(step, 1, options, high)
    assert rate_factor(1000, 1, options, 0.0) == pytest.approx(1.0)
    assert rate_factor(1000, 1, options, 1.0) == pytest.approx(0.01)


def test_the_time_left_ends_with_the_last_step(
    tone_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a budget, too, which most of was left, training seemed to take until its end."""
    asked = [*TINY, f"data.train=[{tone_corpus}]", f"run={tmp_path}", "trainer.budget=10min"]
    train(train_options([*asked, "trainer.max_steps=4", "trainer.validate_every=4"]))
    (line,) = [x for x in capsys.readouterr().out.splitlines() if x.startswith("step 4 ")]
    assert line.endswith("  0 s left")


class Clock:
    """Replaces `time`: each reading is a second after the previous one, so a step or a wait takes 1 s."""

    def __init__(self) -> None:
        self.seconds = itertools.count()

    def perf_counter(self) -> float:
        return float(next(self.seconds))

    process_time = perf_counter


def run(corpus: Path, folder: Path, *overrides: str) -> list[dict[str, str]]:
    overrides = (*TINY, f"data.train=[{corpus}]", f"run={folder}", "trainer.checkpoint_every=4", *overrides)
    train(train_options(list(overrides)))
    rows = metrics(folder)
    for row in rows:
        del row["frames_per_s"]
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("clock", ["wall", "cpu"])
def test_training_ends_with_its_budget_even_if_interrupted(
    clock: str, tone_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "time", Clock())
    overrides = ["trainer.budget=1min", f"trainer.budget_clock={clock}", "trainer.validate_every=7"]
    rows = run(tone_corpus, tmp_path / "whole", *overrides)
    name = "train_s" if clock == "wall" else "train_cpu_s"
    times = [float(row[name]) for row in rows]
    assert times[-2] < 60 <= times[-1]
    assert rows[-1]["dev_per"], "the final state was not validated"
    rates = [float(row["learning_rate"]) for row in rows]
    assert max(rates) > 10 * rates[-1], "the schedule did not end with the budget"
    summary = json.loads((tmp_path / "whole" / "training.json").read_text())
    assert (summary["steps"], summary["budget_s"], summary["budget_clock"]) == (len(rows), 60.0, clock)

    with killed(10):
        run(tone_corpus, tmp_path / "parts", *overrides)
    assert run(tone_corpus, tmp_path / "parts", *overrides, "resume=auto") == rows
    assert_same_weights(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.slow
def test_a_finished_run_resumes_only_with_a_larger_budget(
    tone_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(measure, "time", Clock())
    rows = run(tone_corpus, tmp_path, "trainer.budget=10s")
    assert run(tone_corpus, tmp_path, "trainer.budget=10s", "resume=auto") == rows
    assert "training is already finished" in capsys.readouterr().out
    assert len(run(tone_corpus, tmp_path, "trainer.budget=20s", "resume=auto")) > len(rows)


@pytest.mark.slow
def test_a_larger_budget_has_its_own_rate_on_every_step(
    tone_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first step after resuming had the low rate with which the smaller budget had ended."""
    monkeypatch.setattr(measure, "time", Clock())
    done = len(run(tone_corpus, tmp_path / "extended", "trainer.budget=12s"))
    extended, whole = (
        [row["learning_rate"] for row in run(tone_corpus, tmp_path / name, "trainer.budget=40s", *resume)]
        for name, resume in (("extended", ["resume=auto"]), ("whole", []))
    )
    assert 0 < done < len(extended) == len(whole)
    assert extended[done:] == whole[done:]
    assert extended[:done] != whole[:done]


@pytest.mark.slow
def test_a_finished_run_can_be_extended(tone_corpus: Path, tmp_path: Path) -> None:
    """Lightning considered its single epoch complete, took no step, and there was no error rate to report."""
    assert len(run(tone_corpus, tmp_path, "trainer.max_steps=6")) == 6
    assert not RunFolder(tmp_path).read_environment().replanned
    assert len(run(tone_corpus, tmp_path, "trainer.max_steps=9", "resume=auto")) == 9
    assert RunFolder(tmp_path).read_environment().replanned


def test_max_steps_limits_training_with_a_budget(
    tone_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "time", Clock())
    assert len(run(tone_corpus, tmp_path, "trainer.budget=1h", "trainer.max_steps=5")) == 5


def test_writing_checkpoints_does_not_count_as_training_time(
    tone_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Resume points were written between the two readings of the clock."""
    clock = Clock()
    monkeypatch.setattr(measure, "time", clock)
    original = SaveResumePoint.on_train_batch_start

    def slow(self: SaveResumePoint, *args: object) -> None:
        for _ in range(100):
            clock.perf_counter()
        original(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(SaveResumePoint, "on_train_batch_start", slow)
    rows = run(tone_corpus, tmp_path, "trainer.max_steps=5")
    assert float(rows[-1]["train_s"]) < 100


def test_the_peak_of_gpu_memory_outlives_an_interruption(monkeypatch: pytest.MonkeyPatch) -> None:
    """training.json of a resumed run stated the peak since the last start, here half of the whole run's."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 2**31)
    interrupted, resumed = cost.Cost(), cost.Cost()
    resumed.load_state_dict(interrupted.state_dict())
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 2**30)
    assert resumed.summary()["peak_gpu_memory_mib"] == 2048
