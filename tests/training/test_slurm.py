"""Jobs whose time runs out: submitit queues training again, and so does the script of the documents."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from runs import assert_same_weights
from tone_corpora import TINY

from asr.training.config import train_options
from asr.training.recognition import RecognitionTask
from asr.training.run import train

ROOT = Path(__file__).resolve().parents[2]


class Training:
    """A job as submitit wants it, whose end is announced before its tenth step."""

    def __call__(self, overrides: list[str]) -> str:
        step = RecognitionTask.training_step

        def training_step(task: RecognitionTask, batch: Any, index: int) -> Any:
            if task.global_step == 9:
                os.kill(os.getpid(), signal.SIGUSR2)  # submitit's announcement
            return step(task, batch, index)

        RecognitionTask.training_step = training_step  # type: ignore[assignment, method-assign]
        return str(train(train_options(overrides)))

    def checkpoint(self, overrides: list[str]) -> Any:
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, overrides)


@pytest.mark.slow
def test_submitit_queues_training_again_at_a_resume_point(tone_corpus: Path, tmp_path: Path) -> None:
    """Submitit's handler ended the job at once, and the steps since the last resume point were lost."""
    submitit = pytest.importorskip("submitit", reason="needs the extra clustered-asr[launchers]")
    import cloudpickle  # submitit's

    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # jobs don't know the tests' folder
    overrides = [
        *TINY,
        f"data.train=[{tone_corpus}]",
        "trainer.threads=1",
        "model.dropout=0.1",
        "resume=auto",
    ]
    overrides += ["trainer.max_steps=20", "trainer.validate_every=10", "trainer.checkpoint_every=7"]
    parts, whole = tmp_path / "parts", tmp_path / "whole"
    executor = submitit.LocalExecutor(tmp_path / "jobs")
    executor.update_parameters(timeout_min=30)
    job = executor.submit(Training(), [*overrides, f"run={parts}"])
    assert job.result() == str(parts)
    said = job.stdout() or ""
    assert "stopped by SIGUSR2 at step 10; resume=auto continues" in said
    assert "resumed at step 10" in said
    assert "Requeued job" in said + (job.stderr() or "")
    train(train_options([*overrides, f"run={whole}"]))
    assert_same_weights(parts, whole)


@pytest.mark.parametrize(("status", "queued"), [(138, True), (0, False), (1, False)])
def test_the_script_queues_a_job_that_was_told_to_end(status: int, queued: bool, tmp_path: Path) -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```$", (ROOT / "docs" / "machines.md").read_text(), re.S | re.M)
    (script,) = [block for block in blocks if "#SBATCH" in block]
    for name, lines in {
        "srun": f'echo "$@" > {tmp_path}/ran; exit {status}',
        "scontrol": f'echo "$@" > {tmp_path}/queued',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{lines}\n")
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    ended = subprocess.run(["bash", "-c", script], env={"PATH": path, "SLURM_JOB_ID": "77"})
    assert ended.returncode == status
    assert (tmp_path / "ran").read_text().endswith("resume=auto\n")
    assert (tmp_path / "queued").exists() == queued
    if queued:
        assert (tmp_path / "queued").read_text() == "requeue 77\n"
