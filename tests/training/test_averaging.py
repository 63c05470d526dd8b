"""Averaging of weights over two processes."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from runs import assert_same_weights, weights
from tone_corpora import TINY

from asr.errors import UserError
from asr.training.config import train_options
from asr.training.run import train

PROCESSES = ["trainer.devices=2", "trainer.strategy=ddp", "trainer.threads=1"]
SGD = """
import sys, torch, asr.training.optimizer
from asr.cli import main
asr.training.optimizer.build_optimizer = lambda parameters, _: torch.optim.SGD(parameters.values(), lr=0.5)
sys.exit(main(sys.argv[1:]))
"""


def command(corpus: Path, folder: Path, *words: str) -> list[str]:
    return ["train", *TINY, f"data.train=[{corpus}]", f"run={folder}", *PROCESSES, *words]


@pytest.mark.slow
def test_averages_after_every_step_equal_averaged_gradients_for_sgd(
    tone_corpus: Path, tmp_path: Path
) -> None:
    program = tmp_path / "sgd.py"
    program.write_text(SGD)
    words = ["trainer.max_steps=3", "trainer.clip=0", "model.dropout=0.1", "trainer.accumulate=2"]
    runs = {"gradients": 0, "weights": 1, "rarely": 3}
    for name, every in runs.items():
        arguments = command(tone_corpus, tmp_path / name, *words, f"trainer.average_every={every}")
        subprocess.run([sys.executable, program, *arguments], check=True, capture_output=True)
    of = {name: weights(tmp_path / name) for name in runs}
    far = 0.0
    for name, expected in of["gradients"].items():
        if expected.is_floating_point():
            assert (of["weights"][name] - expected).abs().max() < 1e-5, name
            far = max(far, float((of["rarely"][name] - expected).abs().max()))
    assert far > 1e-4  # averaging rarely is something else


@pytest.mark.slow
def test_a_stopped_run_resumes_exactly_from_an_average(tone_corpus: Path, tmp_path: Path) -> None:
    words = ["trainer.max_steps=22", "trainer.average_every=4", "trainer.validate_every=8"]
    words += [
        "trainer.checkpoint_every=3",
        "model.dropout=0.1",
    ]  # written every 4 steps, as they are averaged
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run = [sys.executable, "-m", "asr", *command(tone_corpus, parts, *words)]
    process = subprocess.Popen(run, stdout=subprocess.PIPE, text=True)
    while not (parts / "checkpoints" / "last.ckpt").exists() and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
    stopped = int(said.split("at step ")[1].split(";")[0])
    assert stopped % 4 == 0
    assert 0 < stopped < 22
    for folder in (whole, parts):
        run = [sys.executable, "-m", "asr", *command(tone_corpus, folder, *words), "resume=auto"]
        subprocess.run(run, check=True, capture_output=True)
    assert_same_weights(whole, parts)


def test_averaging_is_refused_where_it_has_no_effect(tone_corpus: Path, tmp_path: Path) -> None:
    refused = {
        "trainer.strategy=fsdp": r"average_every=4: expected 0 with trainer\.strategy=fsdp",
        "trainer.validate_every=6": r"validate_every=6: expected a multiple of trainer\.average_every=4",
    }
    for word, message in refused.items():
        with pytest.raises(UserError, match=message):
            train(train_options([*command(tone_corpus, tmp_path, "trainer.average_every=4", word)[1:]]))
