"""Results of items, which make up the output files, from one process or joined from shards."""

import sys
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path

from asr.console import counted
from asr.errors import UserError
from asr.files import write_text
from asr.records.job import Job

# Description of failed items, by command.
FAILED = {
    "decode": "utterances could not be decoded",
    "align": "utterances could not be aligned",
    "transcribe": "files could not be transcribed",
}


@dataclass
class Result:
    """The result of an item.

    Attributes:
        files: the item's text in each output file, by path relative to the output folder.
        error: message of the item's error, if any.
        seconds: durations by name, which are summed over the items.
    """

    files: dict[str, str] = field(default_factory=dict)
    error: str | None = None
    seconds: dict[str, float] = field(default_factory=dict)


class Results:
    """Results of a job's items by position.

    Args:
        job: job that stores them.
        keys: key of each item, over all shards; an item with an empty key never counts as finished.
        again: whether to retry items that failed before.

    Attributes:
        found: results by position.
    """

    def __init__(self, job: Job, keys: Sequence[str], *, again: bool = True) -> None:
        self.job, self.keys = job, keys
        stored = {position: Result(*value) for position, value in job.positions(keys).items()}
        self.found = {i: result for i, result in stored.items() if result.error is None or not again}
        if self.found and job.path:
            total = len(job.shard.of(keys) if job.shard else keys)
            print(f"{job.path}: {len(self.found)} of {counted(total, 'item')} finished", file=sys.stderr)

    def add(self, position: int, result: Result) -> None:
        """Store the result of an item."""
        if key := self.keys[position]:
            # The copy that the job stores, so that texts are in memory once.
            result = Result(*self.job.add(key, astuple(result)))
        self.found[position] = result

    def files(self) -> dict[str, str]:
        """Return the text of each output file: the items' texts in order; CTM files are sorted."""
        texts: dict[str, list[str]] = {}
        for _, result in sorted(self.found.items()):
            for name, text in result.files.items():
                texts.setdefault(name, []).append(text)
        return {
            name: "".join(sort_ctm("".join(parts)) if name.endswith(".ctm") else parts)
            for name, parts in texts.items()
        }

    def seconds(self) -> dict[str, float]:
        """Return the sums of the items' durations by name."""
        sums: dict[str, float] = {}
        for result in self.found.values():
            for name, seconds in result.seconds.items():
                sums[name] = sums.get(name, 0.0) + seconds
        return sums

    def write(self, folder: Path) -> None:
        """Write the output files."""
        for name, text in self.files().items():
            write_text(text, folder / name)

    def report(self) -> None:
        """Print the errors of the items in order, and raise UserError if there are any."""
        errors = [result.error for _, result in sorted(self.found.items()) if result.error is not None]
        if len(self.found) == 1 and errors:
            raise UserError(errors[0])
        for line in errors:
            print(f"asr: {line}", file=sys.stderr)
        if errors:
            failed = FAILED[self.job.identity["command"]]
            raise UserError(f"{len(errors)} of {len(self.found)} {failed}")


def sort_ctm(text: str) -> list[str]:
    """Return the lines of a CTM file sorted by recording, channel and start, as sclite requires."""
    lines = text.splitlines(keepends=True)
    return sorted(lines, key=lambda line: (*line.split(" ")[:2], float(line.split(" ")[2])))
