"""A job: work that resumes after any interruption, identified by all that its results depend on.

Its journal is a JSON Lines file: a format mark with the identity of the job, then each item's key, result and
digest; a last line marks it as done, or says why it failed. A job may be divided into shards, each with a
journal of its own, `shards/<i>-of-<n>.jsonl` in the output folder; `asr merge` joins them. A job without
items, such as a training of a comparison, is one call: `Job.run`.
"""

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TextIO, TypeVar

from filelock import Timeout

from asr.config import flat, user_code
from asr.console import counted
from asr.environment import source_digest
from asr.errors import UserError, in_words
from asr.files import WITHOUT_LOCKS, atomic_text, checked_entries, digest, lock_on
from asr.records.options import FOLDER, Shard

Schema = TypeVar("Schema")
Status = Literal["missing", "running", "done", "failed"]

FORMAT = "clustered-asr job 1"
BEGUN = "begun"  # key of a line by `Job.run`
DONE = "done"  # key of the last line
DIGITS = 8  # of a line's digest


def identity(function: str, settings: Mapping[str, Any], **inputs: Any) -> dict[str, Any]:
    """Return the identity of work: function, program, options that affect the results, digests of the inputs.

    The program is included, because results of two versions must not be mixed; this loses the work of at most
    one interrupted command. Work that must outlive a commit, such as training, passes another `program`.

    Args:
        function: name of the work, e.g. of a command.
        settings: options that affect the results, as plain data.
        inputs: digests of everything else that the results depend on.
    """
    code = user_code.all_digests()
    program = {"program": source_digest(), **({"code": code} if code else {})}
    return {"command": function, **program, "options": dict(settings), **inputs}


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the entries in which two descriptions of work differ, by dotted name: before and now.

    A missing entry equals None, so a new option with the default None makes no difference.

    Example:
        >>> differences({"seed": 0, "beam": {"size": 5}}, {"seed": 0, "beam": {"size": 8}, "lm": "3-gram"})
        {'beam.size': (5, 8), 'lm': (None, '3-gram')}
    """
    old, new = flat(before), flat(now)
    return {name: (old.get(name), new.get(name)) for name in old | new if old.get(name) != new.get(name)}


class Job:
    """Results of items by key, stored one by one; a job with the same identity reuses them.

    A key identifies an item: its position in a list that the job's inputs determine, the path and state of a
    file (`file_state`), or a description.

    Args:
        path: journal; None: results stay in memory. The journal of another job is replaced.
        identity: all that the results depend on, as plain data; see `identity`.
        shard: part of the items; its journal is locked until this object or the process ends.
        beside: further data that another process needs for the work, but that doesn't affect the results.

    Attributes:
        stored: results so far, by key.
        record: further data of a job that is done; None before.

    Raises:
        UserError: another process works on the shard.

    Example:
        >>> job = Job(None, identity("count", {"from": 3}))
        >>> job.obtain("a", lambda: (3, 4)), job.positions(["b", "a"])
        ([3, 4], {1: [3, 4]})
    """

    def __init__(
        self,
        path: Path | None,
        identity: Mapping[str, Any],
        shard: Shard | None = None,
        beside: Mapping[str, Any] | None = None,
    ) -> None:
        self.path, self.shard, self.beside = path, shard, beside
        self.identity: dict[str, Any] = json.loads(json.dumps(identity))
        self.stored: dict[str, Any] = {}
        self.record: dict[str, Any] | None = None
        self._file: TextIO | None = None
        self._whole = False  # whether the file is known to contain all of `stored`
        if path and shard:
            self._lock(path)
        if path and path.exists():
            self._resume(path)

    @classmethod
    def in_folder(cls, folder: Path, identity: Mapping[str, Any], shard: Shard | None = None) -> "Job":
        """Return the job, or a shard of it, with its journal in an output folder."""
        return cls((shard or Shard(1, 1)).path(folder), identity, shard)

    @property
    def key(self) -> str:
        """Hash of the identity, 16 hex digits."""
        return digest(json.dumps(self.identity, sort_keys=True), 16)

    def _lock(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._locked = lock_on(path.with_suffix(".lock"))
        try:
            self._locked.acquire(blocking=False)
        except Timeout:
            raise UserError(f"{path}: another process works on this shard") from None
        except OSError as error:
            if error.errno not in WITHOUT_LOCKS:
                raise

    def _resume(self, path: Path) -> None:
        """Read the results in the journal; print a line if some can't be used."""
        journal = Journal(path)
        changed = differences(journal.identity, self.identity)
        if journal.identity and not changed:
            self.stored = journal.stored
            if journal.damaged:
                print(f"{path}: {journal.damaged}; what follows is done again", file=sys.stderr)
            return
        reason = "another version of the program wrote it"
        if journal.identity:
            name, (was, now) = next(iter(changed.items()))
            reason = f"{name} was {was!r:.60}, is now {now!r:.60}"
        print(f"{path}: begun anew: {reason}", file=sys.stderr)

    def add(self, key: str, result: Any) -> Any:
        """Store a result (JSON data), and return it as it would be read back: tuples become lists."""
        line = json.dumps([key, result])
        if self.path:
            # Line-buffered, so that a killed process loses nothing. No fsync, which would take longer than
            # computing many results: after a power failure, the last ones are computed again.
            self._open(self.path).write(_marked(line))
        self.stored[key] = entry = json.loads(line)[1]
        return entry

    def _open(self, path: Path) -> TextIO:
        if self._file is None:
            if not self._whole:  # the last line may be incomplete
                with atomic_text(path) as file:
                    shard = self.shard and [self.shard.index, self.shard.count]
                    head = {"format": FORMAT, "job": self.identity, "shard": shard}
                    file.write(json.dumps(head | ({"beside": self.beside} if self.beside else {})) + "\n")
                    file.writelines(_marked(json.dumps(entry)) for entry in self.stored.items())
                self._whole = True
            self._file = open(path, "a", encoding="utf-8", buffering=1)  # noqa: SIM115
        return self._file

    def obtain(self, key: str, compute: Callable[[], Any]) -> Any:
        """Return the stored result, or compute and store it."""
        return self.stored[key] if key in self.stored else self.add(key, compute())

    def positions(self, keys: Iterable[str]) -> dict[int, Any]:
        """Return the stored results by position of their keys; equal keys share a result."""
        return {position: self.stored[key] for position, key in enumerate(keys) if key in self.stored}

    def close(self) -> None:
        """Flush the journal to disk and close it."""
        if self._file is not None:
            os.fsync(self._file.fileno())
            self._file.close()
            self._file = None

    def finish(self, record: Mapping[str, Any]) -> None:
        """Mark a shard as done, and print how to join the shards; remove the journal of undivided work.

        Args:
            record: further data for `read_shards`.
        """
        if self.shard is None:
            self.record = dict(record)
            self.remove()
            return
        self.end(**record)
        assert self.path is not None
        print(
            f"shard {self.shard.index} of {self.shard.count}: {self.path}; once all are there: "
            f"asr merge {self.path.parent.parent}"
        )

    def begin(self) -> None:
        """Replace the journal by one without results, for another process that will do the job."""
        self.stored.clear()
        if self.path:
            self._open(self.path)
            self.close()

    def run(self, work: Callable[[], Mapping[str, Any]]) -> None:
        """Do a job without items; record an exception as its error.

        The record has the `result`, for `Journal.result`, or the `error` in one line; and `seconds`.
        """
        self.add(BEGUN, None)
        started = time.monotonic()
        try:
            outcome: dict[str, Any] = {"result": work()}
        except Exception as error:
            traceback.print_exc()
            outcome = {"error": in_words(error)}
        self.end(**outcome, seconds=time.monotonic() - started)

    def end(self, **record: Any) -> None:
        """Mark the job as done, or, with an `error` in the record, as failed."""
        self.record = record
        if self.path:
            self._open(self.path).write(_marked(json.dumps([DONE, record])))
            self.close()

    def remove(self) -> None:
        """Remove the journal, after the results have been written elsewhere."""
        self.close()
        self._whole = False
        if self.path:
            self.path.unlink(missing_ok=True)
            if self.path.parent.name == FOLDER:
                with suppress(OSError):  # the folder has shards of other work
                    self.path.parent.rmdir()


class Journal:
    """The content of a journal; empty without a file.

    Args:
        path: file; may be missing.

    Attributes:
        identity, shard, beside: arguments of its `Job`; empty or None if another version or program wrote the
            file.
        stored: results by key, up to a damaged line.
        record: further data of a job that is done or has failed; None before.
        damaged: description of damage; an incomplete last line is an interruption, not damage.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.identity: dict[str, Any] = {}
        self.shard: Shard | None = None
        self.beside: dict[str, Any] = {}
        self.stored: dict[str, Any] = {}
        self.record: dict[str, Any] | None = None
        self.damaged = ""
        if path is None or not path.exists():
            return
        head, *lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
        try:
            first = json.loads(head)
            if first["format"] == FORMAT:
                self.identity, self.shard = first["job"], first["shard"] and Shard(*first["shard"])
                self.beside = first.get("beside", {})
        except (ValueError, TypeError, KeyError, RecursionError):
            pass
        if not self.identity:
            return
        for line in lines[:-1]:
            unmarked = f"{line[: -DIGITS - 5]}]"
            if line != _marked(unmarked)[:-1]:
                self.damaged = f"damaged after {counted(len(self.stored), 'item')}"
                break
            key, value = json.loads(unmarked)
            if key == DONE:
                self.record = value
            else:
                self.stored[key] = value

    @property
    def status(self) -> Status:
        """State of a job without items."""
        if self.record is None:
            return "running" if self.stored else "missing"
        return "failed" if "error" in self.record else "done"

    @property
    def error(self) -> str | None:
        """Reason why the job failed, in one line; None if it didn't."""
        return (self.record or {}).get("error")

    @property
    def seconds(self) -> float:
        """Duration of the job in seconds; 0 until it is done."""
        return float((self.record or {}).get("seconds", 0.0))

    def result(self, schema: type[Schema]) -> Schema:
        """Return the result of a finished job without items, as the dataclass `schema`.

        Entries that the dataclass lacks are ignored.
        """
        assert self.record is not None
        return schema(**checked_entries(schema, self.record["result"], f"{self.path}: result"))


def _marked(line: str) -> str:
    """Return the line of an entry, a JSON list, with its digest appended.

    >>> _marked('["a", 3]')
    '["a", 3, "2fd5d831"]\\n'
    """
    return f'{line[:-1]}, "{digest(line, DIGITS)}"]\n'


def read_shards(folder: Path) -> Job:
    """Return the union of the shards in a folder, with the record of the first.

    Raises:
        UserError: there are no shards, or one is missing, unfinished, damaged or belongs to another job.
    """
    paths = sorted((folder / FOLDER).glob("*-of-*.jsonl"))
    if not paths:
        raise UserError(f"{folder}: expected {FOLDER}/1-of-….jsonl, written with shard=1/…, found none")
    union: Job | None = None
    for path in paths:
        own = Journal(path)
        if not own.identity or not own.shard or own.damaged or path != own.shard.path(folder):
            reason = own.damaged or "another file, or one of another version"
            raise UserError(f"{path}: expected a shard, found {reason}: repeat its command")
        if own.record is None:
            raise UserError(
                f"{path}: expected a finished shard, found {counted(len(own.stored), 'item')}: repeat its "
                "command"
            )
        if union is None:
            union, first, count = Job(None, own.identity), path, own.shard.count
            union.record = own.record
        if own.shard.count != count:
            raise UserError(
                f"{path}: expected a shard of {count} like {first}, found one of {own.shard.count}"
            )
        for name, (expected, found) in differences(union.identity, own.identity).items():
            differing = f"{name} is {found!r} instead of {expected!r}"
            raise UserError(f"{path}: expected the job of {first}, found another: {differing}")
        union.stored |= own.stored
    assert union is not None
    for index in range(1, count + 1):
        if (path := Shard(index, count).path(folder)) not in paths:
            raise UserError(f"{path}: expected shard {index} of {count}, found none")
    return union
