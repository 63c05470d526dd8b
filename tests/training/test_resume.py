"""A run that is interrupted and resumed equals an uninterrupted one, bit for bit."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from runs import Killed, assert_same_weights, interrupt, metrics
from tone_corpora import TINY

from asr.errors import UserError
from asr.training.config import train_options
from asr.training.run import train

WORDS = [
    *TINY,
    "model.dropout=0.2",
    "augment.frequency_masks=2",
    "augment.time_mask_every=50",
    "augment.speed_factors=[0.9,1.0,1.1]",
    "augment.volume_db=3",
    "trainer.max_steps=24",
    "trainer.validate_every=6",
    "trainer.checkpoint_every=5",
]


DIES_AFTER_THE_LAST_STEP = """
import os, signal, sys
import torch
from asr.model.checkpoint import AtomicCheckpointIO
from asr.training.config import train_options
from asr.training.run import train

original = AtomicCheckpointIO.save_checkpoint

def save(self, checkpoint, *rest, **more):
    original(self, checkpoint, *rest, **more)
    if checkpoint["global_step"] == 24:
        os.kill(os.getpid(), signal.SIGKILL)

AtomicCheckpointIO.save_checkpoint = save
torch.set_num_threads(1)
train(train_options(sys.argv[1:]))
"""


def run(corpus: Path, folder: Path, *words: str) -> list[dict[str, str]]:
    """Train; return the metrics that don't depend on time."""
    train(train_options([*WORDS, f"data.train=[{corpus}]", f"run={folder}", *words]))
    rows = metrics(folder)
    for row in rows:
        del row["frames_per_s"], row["train_s"], row["train_cpu_s"]
    return rows


# Validation after steps 6, 12, 18; resume points after 5, 10, 15, 20; an epoch has 4 batches.
@pytest.mark.parametrize(
    ("kills", "words"),
    [
        *(pytest.param(kills, []) for kills in ([3], [5], [6], [7, 13], [12, 18, 23])),
        ([17], ["trainer.accumulate=2", "trainer.max_steps=12", "trainer.validate_every=3"]),
        (
            [17],
            [
                "optimizer=radam",
                "optimizer.schedule=plateau",
                "optimizer.warmup_steps=0",
                "optimizer.plateau_patience=0",
            ],
        ),
        ([17], ["data.workers=1"]),
    ],
)
def test_interrupted_equals_uninterrupted(
    kills: list[int], words: list[str], tone_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole_rows = run(tone_corpus, tmp_path / "whole", *words)
    for batch in kills:
        with monkeypatch.context() as patch:
            interrupt(patch, batch)
            with pytest.raises(Killed):
                run(tone_corpus, tmp_path / "parts", *words, "resume=auto")
    assert run(tone_corpus, tmp_path / "parts", *words, "resume=auto") == whole_rows
    assert_same_weights(tmp_path / "parts", tmp_path / "whole")
    names = [sorted(p.name for p in (tmp_path / x / "checkpoints").iterdir()) for x in ("whole", "parts")]
    assert names[0] == names[1]


def test_resuming_a_finished_run_changes_nothing(tone_corpus: Path, tmp_path: Path) -> None:
    rows = run(tone_corpus, tmp_path / "run")
    before = shutil.copytree(tmp_path / "run", tmp_path / "before")
    assert run(tone_corpus, tmp_path / "run", "resume=auto") == rows
    assert_same_weights(before, tmp_path / "run")


def test_the_seed_determines_the_run(tone_corpus: Path, tmp_path: Path) -> None:
    first = run(tone_corpus, tmp_path / "a", "seed=1")
    assert run(tone_corpus, tmp_path / "b", "seed=1") == first
    assert_same_weights(tmp_path / "a", tmp_path / "b")
    assert run(tone_corpus, tmp_path / "c", "seed=2") != first


def test_a_run_killed_after_its_last_step_can_be_completed(tone_corpus: Path, tmp_path: Path) -> None:
    """A run killed between its last checkpoint and training.json lost a row of metrics and never finished."""
    whole_rows = run(tone_corpus, tmp_path / "whole")
    words = [*WORDS, f"data.train=[{tone_corpus}]", f"run={tmp_path / 'parts'}"]
    # Not forked from this process: autograd refuses that once its threads run.
    result = subprocess.run([sys.executable, "-c", DIES_AFTER_THE_LAST_STEP, *words], check=False)
    assert result.returncode == -signal.SIGKILL
    assert (tmp_path / "parts" / "checkpoints" / "last.ckpt").exists()
    assert not (tmp_path / "parts" / "training.json").exists()
    assert run(tone_corpus, tmp_path / "parts", "resume=auto") == whole_rows
    assert_same_weights(tmp_path / "parts", tmp_path / "whole")
    rates = [
        json.loads((tmp_path / x / "training.json").read_text())["dev_error_rate"] for x in ("whole", "parts")
    ]
    assert rates[0] == rates[1] < 1


def test_resuming_with_other_options_is_rejected_and_rewrites_nothing(
    tone_corpus: Path, tmp_path: Path
) -> None:
    """Resuming a finished run overwrote its config.yaml with options that it had not used."""
    folder = tmp_path / "run"
    run(tone_corpus, folder, "trainer.max_steps=6")
    before = {path: path.read_bytes() for path in folder.glob("*.*")}
    with pytest.raises(UserError, match=r"optimizer\.learning_rate=0\.5 \(was .*seed=3 \(was 0\)"):
        run(
            tone_corpus, folder, "trainer.max_steps=6", "resume=auto", "optimizer.learning_rate=0.5", "seed=3"
        )
    run(tone_corpus, folder, "trainer.max_steps=6", "resume=auto", "trainer.checkpoint_every=7")
    assert {path: path.read_bytes() for path in folder.glob("*.*")} == before
    run(tone_corpus, folder, "trainer.max_steps=8", "resume=auto")
    assert yaml.safe_load((folder / "config.yaml").read_text())["trainer"]["max_steps"] == 8
    (folder / "config.yaml").write_text("[")
    with pytest.raises(UserError, match=r"config\.yaml: expected YAML"):
        run(tone_corpus, folder, "resume=auto")
    (folder / "config.yaml").unlink()
    with pytest.raises(UserError, match=r"config\.yaml: expected the options of the run"):
        run(tone_corpus, folder, "resume=auto")
