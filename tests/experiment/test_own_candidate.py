"""A comparison with a mechanism of one's own: keys, workers, jobs, and a report with a colour for it."""

import pickle
import shutil
import sys
from pathlib import Path

import pytest
from comparisons import arguments

from asr.cli import main
from asr.config import user_code
from asr.experiment import processes, worker
from asr.experiment.cell import read_state
from asr.experiment.launch import Submission
from asr.experiment.plan import make_plan
from asr.experiment.request import parse
from asr.experiment.results import read_results
from asr.files import file_digest
from asr.report import theme
from asr.report.options import ReportOptions
from asr.report.page import write_report
from asr.report.tables import exchange

NYSTROM = Path(__file__).parents[2] / "docs" / "examples" / "nystrom.py"
STORED = "nystrom:Nystrom-4"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copy(NYSTROM, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "nystrom.py"


def forget() -> None:
    """Forget the code, as a new process would."""
    user_code._loaded.clear()
    sys.modules.pop("nystrom", None)


@pytest.mark.slow
def test_compared_exchanged_and_drawn(
    fast: None, file: Path, tone_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "compared"
    given = arguments(tone_corpus, folder, "attentions=full,./nystrom.py:Nystrom-4", "evaluate=full")
    assert main(given) == 0
    results = read_results(folder)
    assert [x.mechanism for x in results.candidates] == ["full", "nystrom:Nystrom"]
    pairs = [(x.candidate, x.variant) for x in results.evaluations if x.status == "done"]
    assert pairs == [("full", "full"), (STORED, STORED), (STORED, "full")]
    assert results.environment["code"] == {"nystrom": file_digest(file)}

    commands = [x.command for x in (*results.trainings, *results.evaluations)]
    assert [x.partition("--code ")[2] for x in commands] == ["", "nystrom.py", "", "nystrom.py", "nystrom.py"]
    table = exchange.table(results, "test")
    assert table
    assert [row[0].text for row in table.rows] == ["full", STORED]
    forget()  # the report needs no code, except for attention maps
    assert exchange.table(results, "test") == table
    text = write_report(results, folder, ReportOptions(maps=False)).read_text()
    assert f"--nystrom-Nystrom: {theme.look('nystrom:Nystrom').light};" in text
    assert "var(--nystrom-Nystrom)" in text

    # The same command does nothing again; with a changed file, it refuses.
    assert main(given) == 0
    file.write_text(file.read_text() + "# another version\n")
    forget()
    capsys.readouterr()
    assert main(given) == 1
    error = capsys.readouterr().err
    assert "exists with other settings (code.nystrom: " in error


def test_a_worker_loads_the_code_and_refuses_another_version(
    file: Path, tone_corpus: Path, tmp_path: Path
) -> None:
    overrides = [*arguments(tone_corpus, tmp_path / "compared")[1:], f"attentions={file}:Nystrom-4"]
    plan = make_plan(parse(overrides))
    (cell,) = plan.trainings.values()
    assert cell.settings["code"] == {"nystrom": file_digest(file)}
    command = processes.worker_command(tmp_path, [cell])
    assert command[3:] == [f"--code={file}", str(tmp_path), cell.name]
    submission = pickle.loads(pickle.dumps(Submission(tmp_path, [cell])))
    assert submission.code == [str(file)]

    cell.plan(plan.folder)
    forget()
    worker.work(plan.folder, cell)
    assert "is code that runs only if you name it" in (read_state(plan.folder, cell.name).error or "")
    file.write_text(file.read_text() + "# another version\n")
    user_code.load_all(submission.code)
    worker.work(plan.folder, cell)
    assert f"{file} has changed: its digest was" in (read_state(plan.folder, cell.name).error or "")


@pytest.mark.slow
def test_worker_processes_train_and_evaluate_it(file: Path, tone_corpus: Path, tmp_path: Path) -> None:
    given = arguments(tone_corpus, tmp_path / "compared", "attentions=./nystrom.py:Nystrom-4", "evaluate=own")
    assert main(given) == 0
    (evaluation,) = read_results(tmp_path / "compared").evaluations
    assert (evaluation.variant, evaluation.status) == (STORED, "done")
