"""The files of a run: damage is told in one line, and other versions of the program are read."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from asr.errors import UserError
from asr.files import read_as, read_record, write_record
from asr.records.run_folder import DecodeRecord, RunFolder
from asr.scoring.run import read_score
from asr.training.config import run_options

FILES: dict[str, tuple[dict[str, Any], Callable[[Path], Any]]] = {
    "environment.json": (
        {"run": "a1", "commit": None, "data": {"train": "b2"}},
        lambda x: RunFolder(x).read_environment(),
    ),
    "decode.json": ({"decode_s": 1.5, "lexicon": "c3"}, lambda x: read_as(DecodeRecord, x / "decode.json")),
    "score.json": ({"utterances": 3, "wer": {"rate": 0.5}}, read_score),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "hyp.jsonl").write_bytes(b"")
    for name, (values, _) in FILES.items():
        write_record(values, tmp_path / name)
    return tmp_path


@pytest.mark.parametrize("name", FILES)
def test_a_changed_byte_is_one_line(name: str, folder: Path) -> None:
    read, path = FILES[name][1], folder / name
    read(folder)
    content = path.read_text()
    for number in range(len(content)):
        if content[number] in "1235":  # of a value or the digest
            path.write_text(content[:number] + "0" + content[number + 1 :])
            with pytest.raises(UserError) as caught:
                read(folder)
            assert str(caught.value).startswith(f"{path}: damaged: expected ")
            assert "\n" not in str(caught.value)
    for torn in ("", "{", "[1]", "null", content[:-9]):
        path.write_text(torn)
        with pytest.raises(UserError, match=rf"^{path}: expected "):
            read(folder)


@pytest.mark.parametrize("name", FILES)
def test_files_of_other_versions_are_read(name: str, folder: Path) -> None:
    """They have no digest, lack entries and have others."""
    values, read = FILES[name]
    found = read(folder)
    (folder / name).write_text(json.dumps(values))
    assert read(folder) == found
    write_record({**values, "of_another_version": 1}, folder / name)
    again = read(folder)
    assert again == (found if dataclasses.is_dataclass(again) else {**found, "of_another_version": 1})


def test_an_entry_that_every_version_has_is_named(folder: Path) -> None:
    write_record({"commit": None, "data": {}}, folder / "environment.json")
    with pytest.raises(UserError, match=r"environment\.json: expected run, found none$"):
        RunFolder(folder).read_environment()


def test_what_training_writes_fits_the_schemas(trained: Path) -> None:
    run = RunFolder(trained)
    summary, environment = run.read_summary(), run.read_environment()
    assert dataclasses.asdict(summary) == read_record(run.summary)
    written = json.loads(run.environment.read_text())
    assert {key: written[key] for key in dataclasses.asdict(environment)} == dataclasses.asdict(environment)
    assert summary.steps > 0
    assert summary.dev_error_rate is not None
    assert [x.path for x in RunFolder.finished(trained.parent)] == [trained]
    assert run.checkpoint() in run.saved()


@pytest.mark.parametrize(
    "content", ["1: {2: 3}", "on: 1", "null: 3", "model: {1: 2}", "[1]", "3", "recipe: ["]
)
def test_options_with_other_keys_than_names_are_one_line(content: str, tmp_path: Path) -> None:
    """A key that YAML reads as a number ended `asr train` and `asr evaluate` with a traceback."""
    run = RunFolder(tmp_path)
    run.options.write_text(content)
    with pytest.raises(UserError) as caught:
        run_options(run)
    assert str(caught.value).startswith(f"{run.options}: expected ")
