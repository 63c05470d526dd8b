"""A shard of a preparation: the results of every n-th item, which `asr merge` turns into journals."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asr import config
from asr.records.keyed import job
from asr.records.options import Shard
from asr.records.shards import Result, ResumableWork


class ShardDone(Exception):
    """A shard's results are written: the recipe must not go on."""


class Division:
    """The results of a shard; an item is a file or folder that a recipe reads with `Preparation.map`.

    Args:
        shard: the shard.

    Attributes:
        total: number of items so far, of all shards.
    """

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.total = 0
        self._results: dict[int, Result] = {}

    def own(self, count: int) -> list[int]:
        """Return the indices of this shard's items among the next `count` ones."""
        return [i for i in range(count) if (self.total + i) % self.shard.count == self.shard.index - 1]

    def add(self, journal: Path, version: str, keys: Sequence[str], results: Sequence[Any]) -> None:
        """Add the results of the next items; those that failed are tried again when shards are joined.

        Args:
            journal: journal of one process's results, relative to the output folder.
            version: version of the journal.
            keys: keys of the items of all shards.
            results: results of the items; None for those of other shards, and for those that failed.
        """
        for i in self.own(len(keys)):
            lines: list[Any] = [version] if i == 0 else []
            if results[i] is not None:
                lines.append([keys[i], results[i]])
            text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
            self._results[self.total + i] = Result({str(journal): text})
        self.total += len(keys)

    def write(self, folder: Path, recipe: str, options: Any, digest: str) -> None:
        """Write the shard, and raise ShardDone."""
        identity = job("prepare", config.values_affecting(options, "result"), recipe=recipe, data=digest)
        self.shard.path(folder).unlink(missing_ok=True)
        work = ResumableWork(folder, identity, self.total, self.shard)
        for position, result in self._results.items():
            work.add(position, result)
        work.finish()
        raise ShardDone
