"""Averaging of weights over two processes."""

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import assert_same_weights, weights
from test_ranks import Ranks, Trouble
from tone_corpora import TINY

from asr.errors import UserError
from asr.model import checkpoint
from asr.training.config import train_options
from asr.training.run import train


def sgd(parameters: dict[str, torch.nn.Parameter], _: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters.values(), lr=0.5)


@pytest.mark.slow
def test_averages_after_every_step_equal_averaged_gradients_for_sgd(
    tone_corpus: Path, tmp_path: Path
) -> None:
    overrides = ["trainer.max_steps=3", "trainer.clip=0", "model.dropout=0.1"]
    of = {}
    for name, every in {"gradients": 0, "weights": 1, "rarely": 3}.items():
        run = Ranks(tone_corpus, tmp_path / name, *overrides, f"trainer.average_every={every}", optimizer=sgd)
        assert set(run.run(1, 2).values()) == {0}, run.said()
        of[name] = weights(run.folder)
    far = 0.0
    for name, expected in of["gradients"].items():
        if expected.is_floating_point():
            assert (of["weights"][name] - expected).abs().max() < 1e-5, name
            far = max(far, float((of["rarely"][name] - expected).abs().max()))
    assert far > 1e-4  # averaging rarely is something else


@pytest.mark.slow
def test_a_stopped_run_resumes_exactly_from_an_average(tone_corpus: Path, tmp_path: Path) -> None:
    """Checkpoints are written every four steps instead of three, because weights are averaged then."""
    overrides = ["trainer.max_steps=12", "trainer.average_every=4", "trainer.validate_every=8"]
    overrides += ["trainer.checkpoint_every=3", "model.dropout=0.1"]
    whole, parts = (Ranks(tone_corpus, tmp_path / name, *overrides) for name in ("whole", "parts"))
    status = parts.run(1, 2, trouble=Trouble(0, 5, signal.SIGTERM))
    assert status == {0: 128 + signal.SIGTERM, 1: 0}, parts.said()
    assert checkpoint.load(parts.folder / "checkpoints" / "last.ckpt")["global_step"] == 8
    for run in (whole, parts):
        assert set(run.run(1, 2).values()) == {0}, run.said()
    assert_same_weights(whole.folder, parts.folder)


def test_averaging_is_refused_where_it_has_no_effect(tone_corpus: Path, tmp_path: Path) -> None:
    refused = {
        "trainer.strategy=fsdp": r"average_every=4: expected 0 with trainer\.strategy=fsdp",
        "trainer.devices=1": r"average_every=4: expected 0 with one process, or several",
        "trainer.validate_every=6": r"validate_every=6: expected a multiple of trainer\.average_every=4",
    }
    for override, message in refused.items():
        overrides = [
            *TINY,
            f"data.train=[{tone_corpus}]",
            f"run={tmp_path}",
            "trainer.average_every=4",
            override,
        ]
        with pytest.raises(UserError, match=message):
            train(train_options(overrides))
