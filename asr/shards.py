"""Shards: a command's work divided among processes or machines, and the union of their results.

A shard leaves its results in `<output>/shards/<i>-of-<n>.jsonl`: a line that identifies the job, then a line
per item with its position among all items and its text in each output file. `asr merge` writes the files.
"""

import json
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from asr.config import option
from asr.environment import git_commit
from asr.errors import UserError
from asr.files import atomic_text, build, parse_json, write_text

FOLDER = "shards"
# Options that the results don't depend on, and those whose content `job` identifies.
UNKEYED = ("shard", "output", "device", "jobs", "workers", "data", "checkpoint")

FAILED = {"align": "utterances could not be aligned", "transcribe": "files could not be transcribed"}

Item = TypeVar("Item")


@dataclass
class ShardOptions:
    """The option of commands whose work can be divided."""

    shard: str = option(
        "", help="i/n: do the i-th of n parts of the work; asr merge joins them; empty: all of it"
    )

    def check(self) -> None:
        """Raise UserError unless the shard is i/n with 1 ≤ i ≤ n."""
        parse_shard(self.shard)


@dataclass(frozen=True)
class Shard:
    """Part `index` (1 … count) of `count`."""

    index: int
    count: int

    def of(self, items: Sequence[Item]) -> list[Item]:
        """Return the items of this shard: every `count`-th."""
        return list(items[self.index - 1 :: self.count])

    def path(self, folder: Path) -> Path:
        """Return the file of the shard's results."""
        return folder / FOLDER / f"{self.index}-of-{self.count}.jsonl"


def parse_shard(text: str) -> Shard | None:
    """Return the shard that `i/n` names; None for an empty text.

    Example:
        >>> parse_shard("2/3").of("abcdefg")
        ['b', 'e']
    """
    if not text:
        return None
    found = re.fullmatch(r"([1-9]\d{0,5})/([1-9]\d{0,5})", text)
    if not found or int(found[1]) > int(found[2]):
        raise UserError(f"shard={text}: expected i/n with 1 ≤ i ≤ n, e.g. 2/4")
    return Shard(int(found[1]), int(found[2]))


@dataclass
class Result:
    """Texts of an item by output file, relative to the output folder, and the error that it raised."""

    files: dict[str, str] = field(default_factory=dict)
    error: str | None = None


@dataclass
class Work:
    """Results of one or all shards.

    Attributes:
        job: command, options and digests of its inputs; the same for all shards.
        total: number of items of all shards.
        results: results by position among all items.
        records: further data of each shard.
    """

    job: dict[str, Any]
    total: int
    results: dict[int, Result]
    records: list[dict[str, Any]]

    def files(self) -> dict[str, str]:
        """Return the text of each output file: that of the items in order; CTM files are sorted."""
        texts: dict[str, list[str]] = {}
        for _, result in sorted(self.results.items()):
            for name, text in result.files.items():
                texts.setdefault(name, []).append(text)
        return {
            name: "".join(sort_ctm("".join(parts)) if name.endswith(".ctm") else parts)
            for name, parts in texts.items()
        }

    def write(self, folder: Path) -> None:
        """Write the output files."""
        for name, text in self.files().items():
            write_text(text, folder / name)

    def report(self) -> None:
        """Print the errors of the items in order, and raise UserError if there are any."""
        errors = [result.error for _, result in sorted(self.results.items()) if result.error is not None]
        if len(self.results) == 1 and errors:
            raise UserError(errors[0])
        for line in errors:
            print(f"asr: {line}", file=sys.stderr)
        if errors:
            raise UserError(f"{len(errors)} of {len(self.results)} {FAILED[self.job['command']]}")


def sort_ctm(text: str) -> list[str]:
    """Return the lines of a CTM file sorted by recording, channel and start, as sclite requires."""
    lines = text.splitlines(keepends=True)
    return sorted(lines, key=lambda line: (*line.split(" ")[:2], float(line.split(" ")[2])))


def job(command: str, options: Mapping[str, Any], **inputs: str) -> dict[str, Any]:
    """Return what identifies a command's work, with digests of its inputs."""
    kept = {name: value for name, value in options.items() if name not in UNKEYED}
    return {"command": command, "commit": git_commit(), "options": kept, **inputs}


def write_shard(shard: Shard, folder: Path, work: Work) -> None:
    """Write the results of a shard and say how to join them."""
    path = shard.path(folder)
    head = {"shard": [shard.index, shard.count], "job": work.job, "total": work.total, "record": work.records}
    with atomic_text(path) as file:
        file.write(json.dumps(head, ensure_ascii=False) + "\n")
        for position, result in sorted(work.results.items()):
            file.write(json.dumps([position, result.files, result.error], ensure_ascii=False) + "\n")
    print(f"shard {shard.index} of {shard.count}: {path}; once all are there: asr merge {folder}")


def read_shards(folder: Path) -> Work:
    """Return the union of the shards in a folder.

    Raises:
        UserError: there is no shard, one is missing, broken or of another job.
    """
    paths = sorted((folder / FOLDER).glob("*-of-*.jsonl"))
    if not paths:
        raise UserError(f"{folder}: expected {FOLDER}/1-of-….jsonl, written with shard=1/…, found none")
    union: Work | None = None
    for path in paths:
        shard, own = _read(path)
        if union is None:
            union, first, count = own, path, shard.count
            continue
        if shard.count != count:
            raise UserError(f"{path}: expected a shard of {count} like {first}, found one of {shard.count}")
        if differing := _difference(union.job | {"total": union.total}, own.job | {"total": own.total}):
            raise UserError(f"{path}: expected the job of {first}, found another: {differing}")
        union.results |= own.results
        union.records += own.records
    assert union is not None
    for index in range(1, count + 1):
        if (path := Shard(index, count).path(folder)) not in paths:
            raise UserError(f"{path}: expected shard {index} of {count}, found none")
    if sorted(union.results) != list(range(union.total)):
        raise UserError(f"{folder / FOLDER}: expected {union.total} items, found {len(union.results)}")
    return union


def remove_shards(folder: Path) -> None:
    """Remove the results of all shards of a folder."""
    shutil.rmtree(folder / FOLDER)


def _read(path: Path) -> tuple[Shard, Work]:
    try:
        with path.open(encoding="utf-8") as file:
            head, *lines = [parse_json(line, f"{path}:{i}") for i, line in enumerate(file, start=1)]
        index, count = build(list[int], head["shard"], str(path))
        results = {position: Result(files, error) for position, files, error in lines}
        for name in {name for result in results.values() for name in result.files}:
            if Path(name).is_absolute() or ".." in Path(name).parts:
                raise ValueError(f"a file outside the folder: {name}")
        work = Work(head["job"], head["total"], results, head["record"])
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: expected the results of a shard, found something else: {error}") from None
    if path != Shard(index, count).path(path.parent.parent):
        raise UserError(f"{path}: expected the shard of its name, found {index} of {count}")
    return Shard(index, count), work


def _difference(expected: Any, found: Any, name: str = "") -> str:
    """Return the first difference between two jobs; empty if there is none."""
    if isinstance(expected, dict) and isinstance(found, dict):
        for key in expected | found:
            if text := _difference(expected.get(key), found.get(key), f"{name}.{key}".removeprefix(".")):
                return text
        return ""
    return "" if expected == found else f"{name} is {found!r} instead of {expected!r}"
