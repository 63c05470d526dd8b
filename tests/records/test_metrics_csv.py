"""metrics.csv holds anything after a full disk, an editor or another version of the program."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from asr import config
from asr.errors import UserError
from asr.records.metrics import MetricsRow, read_metrics
from asr.records.run_folder import RunFolder
from asr.training.csv_logger import MetricsFile

COLUMNS = ["step", "loss", "learning_rate", "train_s", "train_cpu_s", "dev_loss", "dev_per"]
ROW = ["3", "1.5", "0.001", "2.5", "2.25", "0.5", "0.25"]


def write(path: Path, *rows: list[str]) -> Path:
    path.write_text("\n".join(map(",".join, rows)) + "\n")
    return path


def refusal(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        read_metrics(path)
    line = str(caught.value)
    assert "\n" not in line
    return line


def test_rows_have_what_was_logged(tmp_path: Path) -> None:
    trained = ["4", "nan", "0.001", "", "", "", ""]
    path = write(tmp_path / "metrics.csv", COLUMNS, ROW, trained)
    name, (first, second) = read_metrics(path)
    assert name == "dev_per"
    assert first == MetricsRow(3, 1.5, dev_loss=0.5, dev_error=0.25, train_s=2.5, train_cpu_s=2.25)
    assert second.loss != second.loss
    assert second.dev_error is second.train_s is None


@pytest.mark.parametrize("column", COLUMNS)
def test_a_column_that_every_run_has_is_named(column: str, tmp_path: Path) -> None:
    """`asr compare` ended with a traceback after its trainings: could not convert string to float."""
    kept = [i for i, name in enumerate(COLUMNS) if name != column]
    path = write(tmp_path / "metrics.csv", *([row[i] for i in kept] for row in (COLUMNS, ROW)))
    if column in ("learning_rate", "train_s", "train_cpu_s"):  # other versions of the program lack them
        read_metrics(path)
    elif column == "step":
        assert "damaged: expected metrics" in refusal(path)
    else:
        assert f"damaged: expected a column {'with a' if column == 'dev_per' else column}" in refusal(path)


@pytest.mark.parametrize(
    "content",
    [
        *("", "\n", "{", "3\n", "step\n1,2\n", "step,loss,dev_loss,dev_per\n1,2\n"),
        "step,loss,dev_loss,dev_per\n1,x,,\n",
    ],
)
def test_a_torn_file_is_one_line(content: str, tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text(content)
    assert refusal(path).startswith(str(path))
    path.write_bytes(b"\xff\xfe" + content.encode())
    assert refusal(path).startswith(str(path))


def test_a_resumed_log_keeps_the_rows_as_they_were(tmp_path: Path) -> None:
    """The last row may be torn: the step is repeated."""
    path = write(tmp_path / "metrics.csv", COLUMNS, ROW, ["4", "1.25", *ROW[2:]])
    before = path.read_text()
    path.write_text(before + "5,1.1")
    MetricsFile(path, COLUMNS[1:], resumed_step=5)
    assert path.read_text() == before
    with pytest.raises(UserError, match=r"metrics\.csv: damaged: expected metrics of a training"):
        MetricsFile(write(path, COLUMNS, ROW, ["4", "x", *ROW[2:]]), COLUMNS[1:], resumed_step=5)


def test_what_training_writes_fits_the_schema(trained: Path) -> None:
    name, rows = read_metrics(RunFolder(trained).metrics)
    assert name.startswith("dev_")
    assert any(row.dev_error is not None for row in rows)


@pytest.mark.parametrize("read", [read_metrics, config.load_yaml])
def test_a_pipe_is_refused(read: Callable[[Path], object], tmp_path: Path) -> None:
    """`asr report` waited for ever for the other end of a pipe in place of metrics.csv."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match=r"pipe: expected a .* file, found a pipe$"):
        read(tmp_path / "pipe")
