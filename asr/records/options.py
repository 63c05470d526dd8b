"""The option `shard` of commands whose work can be divided."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from asr.config import option
from asr.errors import UserError

FOLDER = "shards"  # folder for the results of all shards, in the output folder

Item = TypeVar("Item")


@dataclass
class ShardOptions:
    """The option `shard` of commands whose work can be divided."""

    shard: str = option(
        "",
        help="i/n: do the i-th of n parts of the work; asr merge joins them; empty: all of it",
        affects="place",
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
        # Not neighbours: items are often sorted by speaker or length, and shards should take equally long.
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
    match = re.fullmatch(r"([1-9]\d{0,5})/([1-9]\d{0,5})", text)
    if not match or int(match[1]) > int(match[2]):
        raise UserError(f"shard={text}: expected i/n with 1 ≤ i ≤ n, e.g. 2/4")
    return Shard(int(match[1]), int(match[2]))
