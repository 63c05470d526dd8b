"""Results of long work, stored item by item, so that it can resume and several machines can share it.

`<output>/shards/<i>-of-<n>.jsonl` is the journal of a shard: a line that identifies the job, then a line per
item with its position among all items and its text in each output file; `<i>-of-<n>.lock` is its lock.
`asr merge` writes the files. Work that isn't divided is shard 1 of 1, and removes the journal when it has
written the files.
"""

import shutil
import sys
from contextlib import suppress
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

from filelock import Timeout

from asr.errors import UserError
from asr.files import WITHOUT_LOCKS, build, lock_on, parse_json, require_file, write_text
from asr.records.keyed import KeyedRecord, differences
from asr.records.options import FOLDER, Shard

RECORD = "record"  # key of the last line of a shard, after its items

# What the items that failed are, by the commands whose work can be divided.
FAILED = {
    "prepare": "files could not be prepared",
    "decode": "utterances could not be decoded",
    "align": "utterances could not be aligned",
    "transcribe": "files could not be transcribed",
}
# An item as `Result` and its line in a journal hold it.
ITEM = tuple[dict[str, str], str | None, dict[str, float]]


@dataclass
class Result:
    """The result of an item.

    Attributes:
        files: its text in each output file, by path relative to the output folder.
        error: message of the error that it raised.
        seconds: durations by name, which are summed over the items.
    """

    files: dict[str, str] = field(default_factory=dict)
    error: str | None = None
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ShardHeader:
    """First line of a shard.

    Attributes:
        shard: index (from 1) and count.
        job: see `Work`.
        total: number of items of all shards.
    """

    shard: tuple[int, int]
    job: dict[str, Any]
    total: int

    def __post_init__(self) -> None:
        index, count = self.shard
        if not 1 <= index <= count:
            raise UserError(f"shard: expected i, n with 1 ≤ i ≤ n, found {index}, {count}")
        command = self.job.get("command")
        if not isinstance(command, str) or command not in FAILED:
            raise UserError(f"job: expected command {', '.join(FAILED)}, found {repr(command)[:40]}")


@dataclass
class Work:
    """Results of one or all shards.

    Attributes:
        job: command, options and digests of its inputs; the same for all shards.
        total: number of items of all shards.
        results: results by position among all items.
        record: further data of the first shard.
    """

    job: dict[str, Any]
    total: int
    results: dict[int, Result] = field(default_factory=dict)
    record: dict[str, Any] = field(default_factory=dict)

    def files(self) -> dict[str, str]:
        """Return the text of each output file: the items' texts in order; CTM files are sorted."""
        texts: dict[str, list[str]] = {}
        for _, result in sorted(self.results.items()):
            for name, text in result.files.items():
                texts.setdefault(name, []).append(text)
        return {
            name: "".join(sort_ctm("".join(parts)) if name.endswith(".ctm") else parts)
            for name, parts in texts.items()
        }

    def seconds(self) -> dict[str, float]:
        """Return the sums of the items' durations by name."""
        sums: dict[str, float] = {}
        for result in self.results.values():
            for name, seconds in result.seconds.items():
                sums[name] = sums.get(name, 0.0) + seconds
        return sums

    def add(self, position: int, result: Result) -> None:
        """Store the result of an item."""
        self.results[position] = result

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


class ResumableWork(Work):
    """The work of a shard, or all of it, with a journal from which a repeated command resumes.

    Results of another job are discarded, and items that failed are tried again.

    Args:
        folder: output folder.
        job: command, options and digests of its inputs: everything that determines the results.
        total: number of items of all shards.
        shard: shard; None: all items.

    Raises:
        UserError: another process works on the shard.
    """

    def __init__(self, folder: Path, job: dict[str, Any], total: int, shard: Shard | None) -> None:
        super().__init__(job, total)
        self.shard = shard
        self.folder = folder
        part = shard or Shard(1, 1)
        self.path = part.path(folder)
        if shard:
            self._lock(shard)
        head = {"shard": [part.index, part.count], "job": job, "total": total}
        self._journal = KeyedRecord(self.path, head)
        stored = self._journal.positions(map(str, range(total)))
        found = {i: _result(value, folder, f"{self.path}: item {i}") for i, value in stored.items()}
        self.results = {position: result for position, result in found.items() if result.error is None}
        if self.results:
            own = len(part.of(range(total)))
            print(f"{self.path}: {len(self.results)} of {own} items are finished", file=sys.stderr)

    def _lock(self, shard: Shard) -> None:
        """Lock the shard until this object or the process ends."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._locked = lock_on(self.path.with_suffix(".lock"))
        try:
            self._locked.acquire(blocking=False)
        except Timeout:
            raise UserError(f"{self.path}: another process works on this shard") from None
        except OSError as error:
            if error.errno not in WITHOUT_LOCKS:
                raise

    def add(self, position: int, result: Result) -> None:
        """Store the result of an item, also in the journal."""
        # What is read back, so that texts are held in memory once.
        super().add(position, Result(*self._journal.add(str(position), astuple(result))))

    def finish(self) -> None:
        """Complete a shard's journal and say how to join the shards; remove the journal of undivided work."""
        if self.shard:
            self._journal.add(RECORD, self.record)
            self._journal.close()
            print(
                f"shard {self.shard.index} of {self.shard.count}: {self.path}; once all are there: "
                f"asr merge {self.folder}"
            )
            return
        self._journal.remove()
        with suppress(OSError):  # there is no such folder, or it has shards of other work
            self.path.parent.rmdir()


def read_shards(folder: Path) -> Work:
    """Return the union of the shards in a folder.

    Raises:
        UserError: there is no shard, one is missing, unfinished, broken or of another job.
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
        job, other = union.job | {"total": union.total}, own.job | {"total": own.total}
        for name, (expected, found) in differences(job, other).items():
            differing = f"{name} is {found!r} instead of {expected!r}"
            raise UserError(f"{path}: expected the job of {first}, found another: {differing}")
        union.results |= own.results
    assert union is not None
    for index in range(1, count + 1):
        if (path := Shard(index, count).path(folder)) not in paths:
            raise UserError(f"{path}: expected shard {index} of {count}, found none")
    if len(union.results) != union.total:
        raise UserError(f"{folder / FOLDER}: expected {union.total} items, found {len(union.results)}")
    return union


def remove_shards(folder: Path) -> None:
    """Remove the results of all shards of a folder."""
    shutil.rmtree(folder / FOLDER)


def _read(path: Path) -> tuple[Shard, Work]:
    """Read a shard through its schema; its names of files must stay within the folder."""
    require_file(path, "the results of a shard")
    try:
        lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: expected UTF-8 text, found {error}") from None
    head = build(ShardHeader, parse_json(lines[0], f"{path}:1"), f"{path}:1")
    if path != Shard(*head.shard).path(path.parent.parent):
        raise UserError(f"{path}: expected the shard of its name, found {head.shard[0]} of {head.shard[1]}")
    results: dict[int, Result] = {}
    record = None
    for number, line in enumerate(lines[1:], start=2):
        key, value = build(tuple[str, Any], parse_json(line, f"{path}:{number}"), f"{path}:{number}")
        if key == RECORD:
            record = build(dict[str, Any], value, f"{path}:{number}")
        else:
            position = _position(key, head, f"{path}:{number}")
            results[position] = _result(value, path.parent.parent, f"{path}:{number}")
    if record is None:
        raise UserError(f"{path}: expected a finished shard, found {len(results)} items: repeat its command")
    return Shard(*head.shard), Work(head.job, head.total, results, record)


def _position(key: str, head: ShardHeader, source: str) -> int:
    # A shard has every n-th item of the order of work, longest first, and not every n-th position.
    if key.isdecimal() and len(key) < 10 and int(key) < head.total:
        return int(key)
    raise UserError(f"{source}: expected the position of one of {head.total} items, found {key[:40]!r}")


def _result(value: Any, folder: Path, source: str) -> Result:
    result = Result(*build(ITEM, value, source))
    for name, text in result.files.items():
        path = Path(name)
        if (
            not path.parts
            or path.is_absolute()
            or ".." in path.parts
            or "\0" in name
            or not (folder / path).resolve().is_relative_to(folder.resolve())  # by a link in the folder
        ):
            raise UserError(f"{source}: expected a file in the folder, found {name[:60]!r}")
        if name.endswith(".ctm"):
            try:
                sort_ctm(text)
            except (IndexError, ValueError):
                raise UserError(f"{source}: expected lines of a CTM file, found {text[:60]!r}") from None
    return result
