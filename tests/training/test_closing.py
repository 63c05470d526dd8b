"""What a training says at its end and, with dry_run, before it begins; what it leaves if it fails."""

import re
from pathlib import Path

import pytest
from tone_corpora import TINY

from asr.cli import main
from asr.errors import UserError
from asr.records.run_folder import RunFolder
from asr.training.closing import closing
from asr.training.config import run_options, train_options
from asr.training.run import train


def test_a_training_ends_with_its_best_rate_three_texts_and_the_next_command(trained: Path) -> None:
    """It ended with its frames per second; what it had learnt stood in the middle of the output."""
    rate, *texts, command = closing(run_options(RunFolder(trained)), trained, "dev_per")
    assert re.fullmatch(r"best dev PER \d+\.\d %, at step (40|80)", rate)
    assert [x.split()[0] for x in texts] == ["reference", "hypothesis"] * 3
    assert command == f"next: asr decode {trained}"


def test_the_dry_run_says_what_is_trained_and_how_long_it_takes(
    tone_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    asked = ["train", *TINY, f"data.train=[{tone_corpus}]", f"run={run}", "trainer.max_steps=3"]
    assert main([*asked, "dry_run=true"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"run: full on cpu .* 60 utterances .* 3 steps$", printed, re.MULTILINE)
    assert re.search(r"expected time: [\d.]+ m?s, [\d.]+ m?s per epoch, based on \d timed step", printed)
    assert not run.exists()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("init_from=none", "none: no checkpoint"),
        ("tokenizer.lexicon=none", "none: expected a text file"),
        ("attention=fulll", "did you mean 'full'"),
    ],
)
def test_a_training_that_fails_at_once_leaves_no_folder(
    override: str, message: str, tone_corpus: Path, tmp_path: Path
) -> None:
    """TensorBoard's file stayed, and the next training wrote into a folder of another's events."""
    asked = [*TINY, f"data.train=[{tone_corpus}]", f"run={tmp_path / 'new' / 'run'}", override]
    with pytest.raises(UserError, match=message):
        train(train_options(asked))
    assert not (tmp_path / "new").exists()
