"""The page of a training: running, finished, interrupted or broken off."""

import re
import shutil
import threading
import time
from pathlib import Path

import pytest

from asr.cli import main
from asr.files import locked
from asr.report import page
from asr.report.run_page import watched

METRICS = """step,loss,train_s,progress,dev_loss,dev_per
0,3.0,1.0,0.1,,
1,2.0,2.0,0.2,1.5,0.5
2,1.0,3.0,0.3,,
3,1.0,4.0,0.4,1.25,0.25
4,1.0,5.0,0.5,1.5,0.3
5,1.0,6."""
HEARD = """{"step": 2, "id": "a", "reference": "go on", "hypothesis": "no"}
{"step": 4, "id": "a", "reference": "go on", "hypothesis": "<b>goon"}
{"step": 4, "id": "b", "reference": "stop", "hypothesis": ""}
{"step": 5, "id"""


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A run folder without a checkpoint, in which a row and a line are half written."""
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("config.yaml", "environment.json"):
        shutil.copy(trained / name, folder / name)
    (folder / "metrics.csv").write_text(METRICS)
    (folder / "hypotheses.jsonl").write_text(HEARD)
    return folder


def findings(folder: Path) -> dict[str, str]:
    return {x.head: x.text for x in watched(folder).findings()}


def test_the_state_of_a_run(run: Path, trained: Path) -> None:
    assert findings(run) == {
        "State": "broken off before its first resume point.",
        "Progress": "step 5, 50 % after 5.00 s of training.",
        "Dev PER": "30.00 % at step 5; lowest 25.00 % at step 4.",
    }
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "last.ckpt").touch()
    assert findings(run)["State"] == "interrupted or broken off; resume=auto continues it."
    with locked(run, "asr train"):
        assert findings(run)["State"] == "running."
        assert findings(run)["Progress"].endswith("of training, 5.00 s left without validation.")
    shutil.copy(trained / "training.json", run)
    assert findings(run)["State"] == "finished."


def test_the_page_has_curves_and_the_latest_hypotheses(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run), "refresh=5"]) == 0  # not running: written once
    printed = capsys.readouterr().out
    assert "broken off before its first resume point." in printed
    assert "Dev PER: 30.00 % at step 5" in printed
    assert "Development utterances at step 4" in printed
    html = (run / "report.html").read_text()
    assert 'data-figure="figure-curves"' in html
    assert re.findall(r'<span class="value">(.*?)</span>', html) == [
        *("a", "go on", "&lt;b&gt;goon"),
        *("b", "stop", ""),
    ]
    assert 'http-equiv="refresh"' not in html


@pytest.mark.slow
def test_a_running_training_is_followed_to_its_end(
    run: Path, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages: list[str] = []
    real = page.write_text
    monkeypatch.setattr(page, "write_text", lambda html, path: (pages.append(html), real(html, path)))
    following = threading.Thread(target=main, args=(["report", str(run), "refresh=1"],))
    with locked(run, "asr train"):
        following.start()
        while not pages:
            time.sleep(0.05)
        (run / "metrics.csv").write_text(METRICS.rpartition("\n")[0] + "\n")  # without the half row
        shutil.copy(trained / "training.json", run / "new")
        (run / "new").rename(run / "training.json")  # at once, as training writes it
    following.join()
    assert '<meta http-equiv="refresh" content="1">' in pages[0]
    assert "<dd>running.</dd>" in pages[0]
    assert "<dd>finished.</dd>" in pages[-1]
    assert 'http-equiv="refresh"' not in pages[-1]


def test_a_run_that_has_logged_nothing_yet(run: Path) -> None:
    (run / "metrics.csv").unlink()
    (run / "hypotheses.jsonl").unlink()
    (run / "environment.json").unlink()
    assert main(["report", str(run)]) == 0
    assert "figure-curves" not in (run / "report.html").read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["audio=2"], "audio=2: has no effect with a run of asr train"),
        (["refresh=-1"], "refresh=-1"),
    ],
)
def test_options_without_effect_on_a_run(
    run: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(run), *options]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_a_folder_that_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{tmp_path}: expected a folder of asr train or compare" in line
