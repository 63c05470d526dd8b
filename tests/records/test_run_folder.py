"""A run's JSON files hold anything after a full disk, an editor or another version of the program."""

import dataclasses
import json
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from asr.comparison.cell import Cell, State, TrainingResult, read_cell, read_state, result_of
from asr.comparison.records import ForwardTimes, TimingResult
from asr.errors import UserError
from asr.files import read_as
from asr.records.run_folder import (
    DecodeRecord,
    Rate,
    RunEnvironment,
    RunFolder,
    ScoreSummary,
    TrainingSummary,
)
from asr.scoring.run import read_score
from asr.search.options import BeamConfig
from asr.search.tune import tuned
from asr.training.config import run_options
from asr.training.labelling import LabelScore

WRONG = [[1], [], None, 3, -1.5, "text", {"a": [1]}, True]

# Path below the run, schema, and what reads it.
FILES: dict[str, tuple[type, Callable[[Path], Any]]] = {
    "environment.json": (RunEnvironment, lambda run: RunFolder(run).read_environment()),
    "training.json": (TrainingSummary, lambda run: RunFolder(run).read_summary()),
    "decode.json": (DecodeRecord, lambda run: read_as(DecodeRecord, run / "decode.json")),
    "score.json": (ScoreSummary, read_score),
    "cell.json": (Cell, lambda run: read_cell(run, "")),
    "state.json": (State, lambda run: read_state(run, "")),
}
ENTRIES = [(file, x.name) for file, (schema, _) in FILES.items() for x in dataclasses.fields(schema)]


def sample(kind: Any) -> Any:
    """Return JSON data of an annotated type."""
    parts = typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        return {name: sample(x) for name, x in typing.get_type_hints(kind).items()}
    match typing.get_origin(kind) or kind:
        case types.UnionType:
            return sample(parts[0])
        case typing.Literal:
            return parts[0]
        case builtin if builtin is tuple:
            return [sample(part) for part in parts]
        case builtin if builtin is list:
            return [sample(parts[0])]
        case builtin if builtin is dict:
            return {"a": sample(parts[1])}
        case builtin if builtin is Any:
            return 1
        case builtin:
            return {str: "text", int: 3, float: 0.5, bool: True}[builtin]


def fits(kind: Any, value: Any) -> bool:
    """Return whether one of `WRONG` is of an annotated type; written apart from `build`."""
    parts = typing.get_args(kind)
    match typing.get_origin(kind) or kind:
        case types.UnionType:
            return any(fits(part, value) for part in parts)
        case typing.Literal:
            return value in parts
        case builtin if builtin is list:
            return isinstance(value, list) and all(fits(parts[0], x) for x in value)
        case builtin if builtin is dict:
            return isinstance(value, dict) and all(fits(parts[1], x) for x in value.values())
        case builtin if builtin is Any:
            return True
        case builtin if builtin is float:
            return type(value) in (int, float)
        case builtin if builtin in (str, int, bool, types.NoneType):
            return type(value) is builtin
    return False  # a dataclass or a pair


# Results of cells, which lie in state.json.
RESULTS: list[type] = [TrainingResult, TimingResult, LabelScore]


def write_run(folder: Path) -> None:
    """Write every JSON file of a run with all entries of its schema."""
    for name, (schema, _) in FILES.items():
        values = sample(schema) | {"of_another_version": 1}
        if schema is ScoreSummary:
            (folder / "hyp.jsonl").write_bytes(b"")
            values |= {"hypotheses": "e3b0c44298fc", "options": {}}
        (folder / name).write_text(json.dumps(values))


def check_line(error: UserError, path: Path, *words: str) -> None:
    line = str(error)
    assert line.startswith((f"{path}: expected ", f"{path}: {words[0]}: "))
    assert "\n" not in line
    assert all(word in line for word in words)


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("content", ["[1]", "[]", "null", "3", '"text"', "true", "", "{", '{"a', "\x00"])
def test_a_file_that_holds_no_object_is_one_line(file: str, content: str, tmp_path: Path) -> None:
    write_run(tmp_path)
    (tmp_path / file).write_text(content)
    with pytest.raises(UserError) as caught:
        FILES[file][1](tmp_path)
    check_line(caught.value, tmp_path / file, "expected")


@pytest.mark.parametrize(("file", "entry"), ENTRIES)
def test_a_missing_entry_has_a_default_or_is_named(file: str, entry: str, tmp_path: Path) -> None:
    write_run(tmp_path)
    schema, reader = FILES[file]
    found = reader(tmp_path)
    values = json.loads((tmp_path / file).read_text())
    del values[entry]
    (tmp_path / file).write_text(json.dumps(values))
    (field,) = (x for x in dataclasses.fields(schema) if x.name == entry)
    if field.default is field.default_factory is dataclasses.MISSING:
        with pytest.raises(UserError) as caught:
            reader(tmp_path)
        check_line(caught.value, tmp_path / file, f"expected {entry}, found none")
    elif isinstance(found, dict):
        assert reader(tmp_path) == {key: x for key, x in found.items() if key != entry}
    else:
        default = field.default if field.default is not dataclasses.MISSING else field.default_factory()
        assert reader(tmp_path) == dataclasses.replace(found, **{entry: default})


@pytest.mark.parametrize("value", WRONG, ids=json.dumps)
@pytest.mark.parametrize(("file", "entry"), ENTRIES)
def test_an_entry_of_another_type_is_named(file: str, entry: str, value: Any, tmp_path: Path) -> None:
    write_run(tmp_path)
    schema, reader = FILES[file]
    values = json.loads((tmp_path / file).read_text())
    (tmp_path / file).write_text(json.dumps(values | {entry: value}))
    if fits(typing.get_type_hints(schema)[entry], value):
        if entry not in ("hypotheses", "options"):  # a score of other hypotheses or options
            reader(tmp_path)
        return
    with pytest.raises(UserError) as caught:
        reader(tmp_path)
    check_line(caught.value, tmp_path / file, entry)


@pytest.mark.parametrize("value", WRONG, ids=json.dumps)
@pytest.mark.parametrize("entry", [x.name for x in dataclasses.fields(Rate)])
def test_a_broken_error_rate_is_named(entry: str, value: Any, tmp_path: Path) -> None:
    """`asr report` ended with a traceback long after `asr compare` had read it."""
    write_run(tmp_path)
    values = json.loads((tmp_path / "score.json").read_text())
    values["wer"][entry] = value
    (tmp_path / "score.json").write_text(json.dumps(values))
    if fits(typing.get_type_hints(Rate)[entry], value):
        read_score(tmp_path)
        return
    with pytest.raises(UserError) as caught:
        read_score(tmp_path)
    check_line(caught.value, tmp_path / "score.json", "wer", entry)


@pytest.mark.parametrize("value", ["none", *WRONG], ids=json.dumps)
@pytest.mark.parametrize(("schema", "entry"), [(x, y.name) for x in RESULTS for y in dataclasses.fields(x)])
def test_a_broken_result_of_a_cell_is_named(schema: type, entry: str, value: Any, tmp_path: Path) -> None:
    """`asr compare` ended with a traceback, `KeyError: 'run'`."""
    (field,) = (x for x in dataclasses.fields(schema) if x.name == entry)
    result = sample(schema) | {"of_another_version": 1, entry: value}
    missing = value == "none"  # stands for an entry that isn't there
    if missing:
        del result[entry]
    (tmp_path / "state.json").write_text(json.dumps({"status": "done", "result": result}))
    optional = field.default is not dataclasses.MISSING
    if optional if missing else fits(typing.get_type_hints(schema)[entry], value):
        result_of(schema, tmp_path, "", read_state(tmp_path, ""))
        return
    with pytest.raises(UserError) as caught:
        result_of(schema, tmp_path, "", read_state(tmp_path, ""))
    check_line(caught.value, tmp_path / "state.json", "result", entry)


@pytest.mark.parametrize("value", WRONG, ids=json.dumps)
@pytest.mark.parametrize("entry", [x.name for x in dataclasses.fields(ForwardTimes)])
def test_a_broken_time_is_named(entry: str, value: Any, tmp_path: Path) -> None:
    result = sample(TimingResult)
    result["times"][0][entry] = value
    (tmp_path / "state.json").write_text(json.dumps({"status": "done", "result": result}))
    if fits(typing.get_type_hints(ForwardTimes)[entry], value):
        result_of(TimingResult, tmp_path, "", read_state(tmp_path, ""))
        return
    with pytest.raises(UserError) as caught:
        result_of(TimingResult, tmp_path, "", read_state(tmp_path, ""))
    check_line(caught.value, tmp_path / "state.json", "result", "times", entry)


def test_what_training_writes_fits_the_schemas(trained: Path) -> None:
    run = RunFolder(trained)
    summary, environment = run.read_summary(), run.read_environment()
    assert dataclasses.asdict(summary) == json.loads(run.summary.read_text())
    written = json.loads(run.environment.read_text())
    assert {key: written[key] for key in dataclasses.asdict(environment)} == dataclasses.asdict(environment)
    assert summary.steps > 0
    assert summary.dev_error_rate is not None
    assert [x.path for x in RunFolder.finished(trained.parent)] == [trained]
    assert run.checkpoint() in run.saved()


@pytest.mark.parametrize("content", ["[1]", "null", "3", '"text"', "{", '{"prefix lm=none": [1]}'])
def test_tuned_weights_that_hold_something_else_are_one_line(content: str, tmp_path: Path) -> None:
    path = RunFolder(tmp_path).tuned
    path.parent.mkdir()
    path.write_text(content)
    with pytest.raises(UserError) as caught:
        tuned(tmp_path, "prefix", BeamConfig())
    check_line(caught.value, path, "expected")


@pytest.mark.parametrize(
    "content", ["1: {2: 3}", "on: 1", "null: 3", "model: {1: 2}", "[1]", "3", "recipe: ["]
)
def test_options_with_other_keys_than_names_are_one_line(content: str, tmp_path: Path) -> None:
    """A key that YAML reads as a number ended `asr train` and `asr evaluate` with a traceback."""
    run = RunFolder(tmp_path)
    run.options.write_text(content)
    with pytest.raises(UserError) as caught:
        run_options(run)
    check_line(caught.value, run.options, "expected")
