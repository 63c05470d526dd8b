"""Training shows its progress on a terminal and in a log."""

import os
import pty
from pathlib import Path

import pytest
from processes import Asr
from tone_corpora import TINY

from asr.cli import main


def overrides(corpus: Path, folder: Path) -> list[str]:
    return [
        *TINY,
        f"data.train=[{corpus}]",
        f"run={folder}",
        "trainer.max_steps=30",
        "trainer.validate_every=10",
    ]


@pytest.mark.slow
def test_a_terminal_shows_a_bar(tone_corpus: Path, tmp_path: Path) -> None:
    """Lightning's own bar was created but stayed invisible."""
    leader, follower = pty.openpty()
    process = Asr(["train", *overrides(tone_corpus, tmp_path)], stderr=follower, COLUMNS="140", TERM="xterm")
    os.close(follower)
    shown = b""
    try:
        while chunk := os.read(leader, 65536):
            shown += chunk
    except OSError:  # the terminal is closed
        pass
    assert process.wait() == 0
    text = shown.decode()
    assert "30/30" in text
    assert "dev PER" in text
    assert "frames/s" in text


def test_without_a_terminal_each_validation_prints_a_line(
    tone_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *overrides(tone_corpus, tmp_path)]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step ")]
    assert [line.split()[1] for line in lines] == ["10/30", "20/30", "30/30"]
    assert all("dev PER" in line and "s left" in line for line in lines)
