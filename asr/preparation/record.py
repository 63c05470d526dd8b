"""The job of a preparation, and the record in a prepared folder that tells whether it is up to date."""

import importlib.metadata
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asr import config
from asr.errors import UserError
from asr.files import contents_digest, digest, file_digest, file_state, read_as
from asr.preparation.outputs import UNFINISHED
from asr.records.job import Job, differences, identity

RECORD = "preparation.json"


@dataclass(frozen=True)
class Prepared:
    """The record of a prepared folder, preparation.json.

    Attributes:
        recipe: name of the recipe.
        options: options of the preparation that affect the output.
        fingerprint: hash of all that determines the outputs; empty while they are being written.
        problems: number of accepted problems by kind.
        outputs: hashes of the output files by name; a later preparation removes these files.
        audio: hashes of generated audio files by name.
        states: states of further files that the outputs depend on, by path; see `states_of`.
    """

    recipe: str
    options: dict[str, Any]
    fingerprint: str
    problems: dict[str, int]
    outputs: dict[str, str]
    audio: dict[str, str]
    states: dict[str, str] = field(default_factory=dict)


def effective_options(options: Any) -> dict[str, Any]:
    """Return the options that affect the output of a complete corpus, as plain data.

    `allow_partial` is left out: it affects the result of an incomplete corpus only, and then
    `Preparation.is_done` compares it with the accepted problems in the record.
    """
    values = config.values_affecting(options, "result")
    return {key: value for key, value in values.items() if key != "allow_partial"}


def recipe_identity(
    recipe: str, options: Any, sources: Iterable[Path], folder: Path, packages: Iterable[str] = ()
) -> dict[str, Any]:
    """Return all that determines the output of a preparation; see `asr.records.job.identity`.

    The program is identified by the code of the recipe and of this package; the corpus, by the names, sizes
    and modification times of the files in `sources`, except those in the output `folder`.
    """
    return identity(
        "prepare",
        config.values_affecting(options, "result"),
        recipe=recipe,
        program=program_digest(type(options)),
        packages=[importlib.metadata.version(name) for name in packages],
        data=[[str(source), state_digest(source, folder)] for source in sources],
    )


def fingerprint(recipe: dict[str, Any]) -> str:
    """Return the hash of a `recipe_identity`, without the accepted problems."""
    options = {key: value for key, value in recipe["options"].items() if key != "allow_partial"}
    return Job(None, {**recipe, "options": options}).key


def whole_job(folder: Path, recipe: dict[str, Any]) -> Job:
    """Return the job of an undivided preparation, which reuses results whatever the options.

    An item's key contains the state of its file, so results remain valid for another selection of files.
    """
    same = {name: recipe[name] for name in ("command", "recipe", "program")}
    path = folder / UNFINISHED / "items.jsonl"
    for other in set(path.parent.glob("*.jsonl")) - {path}:
        print(f"{other}: begun anew: another version of the program wrote it", file=sys.stderr)
    return Job(path, same)


def program_digest(options: type) -> str:
    """Return the hash of the files of this package and of the package that defines `options`."""
    file = getattr(sys.modules.get(options.__module__), "__file__", None) or __file__
    folders = sorted({Path(__file__).parent, Path(file).parent})
    return contents_digest(
        path for folder in folders for path in sorted([*folder.glob("*.py"), *folder.glob("*.txt")])
    )


def state_digest(source: Path, output: Path) -> str:
    """Return the hash of a file's size and modification time; for a folder, of all its files and paths.

    An output folder inside the source is left out.
    """
    ours = os.path.abspath(output)
    if source.is_file():
        state = source.stat()
        lines = [f"{state.st_size} {state.st_mtime_ns}\n"]
    else:
        lines = [
            file_state(os.path.join(folder, name)) + "\n"
            for folder, folders, names in os.walk(source, followlinks=True)
            if _without(folders, folder, ours)
            for name in names
        ]
    return digest(sorted(lines), 64)


def states_of(paths: Iterable[str]) -> dict[str, str]:
    """Return sizes and modification times of files by path; empty text for missing files."""
    return {path: file_state(path)[len(path) + 1 :] for path in paths}


def _without(folders: list[str], parent: str, ours: str) -> bool:
    """Remove the output folder `ours` from those that `os.walk` will enter; return True."""
    folders[:] = [name for name in folders if os.path.abspath(os.path.join(parent, name)) != ours]
    return True


def read_prepared(folder: Path) -> Prepared | None:
    """Return the folder's record; None if it is missing or damaged."""
    try:
        return read_as(Prepared, folder / RECORD)
    except UserError:  # the folder is prepared again, which repairs the record
        return None


def recorded_outputs(folder: Path) -> list[str]:
    """Return the names of the output files in the folder's record, except any outside the folder."""
    record = read_prepared(folder)
    names = [Path(name) for name in record.outputs] if record else []
    return [str(name) for name in names if not name.is_absolute() and ".." not in name.parts]


def _written(value: Any) -> Any:
    return "nothing" if value in ("", None, []) else value


def difference(folder: Path, record: Prepared, recipe: str, options: Any, digest: str) -> str:
    """Return the first reason why the folder has to be prepared again; empty if it is up to date."""
    if record.recipe != recipe:
        return f"prepared before by the recipe {record.recipe}"
    now = effective_options(options)
    before = {key: record.options.get(key) for key in now}
    if changed := differences(before, now):
        words = ", ".join(
            f"{key}={_written(was)} (now {_written(is_now)})" for key, (was, is_now) in changed.items()
        )
        return f"prepared before with {words}"
    if not record.fingerprint:
        return "an earlier preparation was interrupted"
    if record.fingerprint != digest:
        return "the corpus or the program has changed since the last preparation"
    for name, expected in {**record.outputs, **record.audio}.items():
        try:
            if file_digest(folder / name) != expected:
                return f"{name} has changed since the last preparation"
        except OSError:
            return f"{name} is missing"
    for path, state in record.states.items():
        if states_of([path])[path] != state:
            return f"{path} has changed since the last preparation"
    return ""
