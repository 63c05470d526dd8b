"""A run's JSON files hold anything after a full disk, an editor or another version of the program."""

import dataclasses
import functools
import json
import operator
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asr.errors import UserError
from asr.experiment.cell import Cell, State, TrainingResult, read_cell, read_state, result_of
from asr.experiment.records import TimingResult
from asr.files import read_as
from asr.records.run_folder import (
    DecodeRecord,
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

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=3,
)
ABSENT = object()


@dataclasses.dataclass(frozen=True)
class File:
    """A JSON file of a run: its name, the schema of what it holds, and what reads it.

    Attributes:
        place: entry of the file that holds it, such as a cell's result; empty: all of it.
        unread: entries whose values only say whether the file is current.
    """

    name: str
    schema: type
    read: Callable[[Path], Any]
    place: str = ""
    unread: tuple[str, ...] = ()


def result(schema: type) -> File:
    """Return the file with the result of a cell."""
    return File("state.json", schema, lambda run: result_of(schema, run, "", read_state(run, "")), "result")


FILES = [
    File("environment.json", RunEnvironment, lambda run: RunFolder(run).read_environment()),
    File("training.json", TrainingSummary, lambda run: RunFolder(run).read_summary()),
    File("decode.json", DecodeRecord, lambda run: read_as(DecodeRecord, run / "decode.json")),
    File("score.json", ScoreSummary, read_score, unread=("hypotheses", "options")),
    File("cell.json", Cell, lambda run: read_cell(run, "")),
    File("state.json", State, lambda run: read_state(run, "")),
    *map(result, (TrainingResult, TimingResult, LabelScore)),
]


def entries(kind: Any) -> Iterator[tuple[tuple[Any, ...], Any, bool]]:
    """Yield path, type and whether it may be absent, of every entry of a schema and of those within it."""
    parts = typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        for x in dataclasses.fields(kind):
            own = typing.get_type_hints(kind)[x.name]
            yield (x.name,), own, not (x.default is x.default_factory is dataclasses.MISSING)
            yield from (((x.name, *path), *rest) for path, *rest in entries(own))
    elif typing.get_origin(kind) is list:
        yield from (((0, *path), *rest) for path, *rest in entries(parts[0]))
    elif parts and isinstance(kind, types.UnionType):
        yield from entries(parts[0])


ENTRIES = [(file, *entry) for file in FILES for entry in entries(file.schema)]


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
    """Return whether JSON data is of an annotated type; written apart from `build`."""
    parts = typing.get_args(kind)
    match typing.get_origin(kind) or kind:
        case types.UnionType:
            return any(fits(part, value) for part in parts)
        case typing.Literal:
            return value in parts
        case builtin if builtin is list:
            return isinstance(value, list) and all(fits(parts[0], x) for x in value)
        case builtin if builtin is tuple:
            pair = isinstance(value, list) and len(value) == len(parts)
            return pair and all(fits(part, x) for part, x in zip(parts, value, strict=True))
        case builtin if builtin is dict:
            return isinstance(value, dict) and all(fits(parts[1], x) for x in value.values())
        case builtin if builtin is Any:
            return True
        case builtin if builtin is float:
            return type(value) in (int, float)
        case builtin if builtin in (str, int, bool, types.NoneType):
            return type(value) is builtin
    return False  # a dataclass


def write_file(file: File, folder: Path, path: tuple[Any, ...] = (), value: Any = None) -> None:
    """Write a file with all entries of its schema, one of them replaced or absent."""
    values = sample(file.schema) | {"of_another_version": 1}
    if file.schema is ScoreSummary:
        (folder / "hyp.jsonl").write_bytes(b"")
        values |= {"hypotheses": "e3b0c44298fc", "options": {}}
    if path:
        place = functools.reduce(operator.getitem, path[:-1], values)
        if value is ABSENT:
            del place[path[-1]]
        else:
            place[path[-1]] = value
    if file.place:
        values = {"status": "done", file.place: values}
    (folder / file.name).write_text(json.dumps(values))


def check_line(error: UserError, path: Path, *words: str) -> None:
    line = str(error)
    assert line.startswith((f"{path}: expected ", f"{path}: {words[0]}: "))
    assert "\n" not in line
    assert all(word in line for word in words)


@pytest.mark.parametrize("file", [x for x in FILES if not x.place], ids=lambda x: x.name)
def test_a_file_that_holds_no_object_is_one_line(file: File, tmp_path: Path) -> None:
    write_file(file, tmp_path)
    for content in ("[1]", "[]", "null", "3", '"text"', "true", "", "{", '{"a', "\x00"):
        (tmp_path / file.name).write_text(content)
        with pytest.raises(UserError) as caught:
            file.read(tmp_path)
        check_line(caught.value, tmp_path / file.name, "expected")


def test_a_missing_entry_has_a_default_or_is_named(tmp_path: Path) -> None:
    for file, path, _, optional in ENTRIES:
        write_file(file, tmp_path)
        found = file.read(tmp_path)
        write_file(file, tmp_path, path, ABSENT)
        if not optional:
            with pytest.raises(UserError) as caught:
                file.read(tmp_path)
            words = ("result",) * bool(file.place) + tuple(x for x in path[:-1] if isinstance(x, str))
            check_line(caught.value, tmp_path / file.name, *words, f"expected {path[-1]}, found none")
        elif isinstance(found, dict):
            if len(path) == 1:
                assert file.read(tmp_path) == {key: x for key, x in found.items() if key != path[0]}
        elif len(path) == 1:
            (field,) = (x for x in dataclasses.fields(file.schema) if x.name == path[0])
            default = field.default if field.default is not dataclasses.MISSING else field.default_factory()
            assert file.read(tmp_path) == dataclasses.replace(found, **{path[0]: default})


@pytest.mark.slow
@settings(
    max_examples=400,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.sampled_from(ENTRIES), JSON)
def test_an_entry_of_another_type_is_named(tmp_path: Path, entry: tuple[Any, ...], value: Any) -> None:
    """`asr report` and `asr compare` ended with tracebacks such as `KeyError: 'run'`, long after the runs."""
    file, path, kind, _ = entry
    write_file(file, tmp_path, path, value)
    if fits(kind, value):
        if path[0] not in file.unread:  # a score of other hypotheses or options
            file.read(tmp_path)
        return
    with pytest.raises(UserError) as caught:
        file.read(tmp_path)
    words = ("result",) * bool(file.place) + tuple(x for x in path if isinstance(x, str))
    check_line(caught.value, tmp_path / file.name, *words)


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
