"""Memory-efficient cuts of manifests: compressed lines, parsed into lhotse's cuts on access."""

import json
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from asr.data.entries import parse_cut
from asr.data.transcripts import Texts, Transcripts

if TYPE_CHECKING:  # lhotse loads PyTorch, which takes seconds
    from lhotse import MonoCut, Recording

# Lines compressed together: more of them save memory, but loading an utterance unpacks all of them.
BLOCK = 32


class PackedLines:
    """Lines of text in compressed blocks of one bytes object, so that forked processes share the memory.

    Example:
        >>> lines = PackedLines()
        >>> for line in ["one", "", "three"]:
        ...     lines.append(line)
        >>> len(lines), lines[2]
        (3, 'three')
    """

    def __init__(self) -> None:
        self._pending: list[str] = []
        self._packed = bytearray()
        self._ends = array("q", [0])
        self._latest: tuple[int, list[str]] = -1, []  # one object, so that threads can share it

    def __len__(self) -> int:
        return BLOCK * (len(self._ends) - 1) + len(self._pending)

    def append(self, line: str) -> None:
        """Add a line, which must not contain a line break."""
        self._pending.append(line)
        if len(self._pending) == BLOCK:
            self._packed += zlib.compress("\n".join(self._pending).encode(), 1)
            self._ends.append(len(self._packed))
            self._pending = []

    def __getitem__(self, index: int) -> str:
        number, place = divmod(index, BLOCK)
        if number == len(self._ends) - 1:
            return self._pending[place]
        latest = self._latest
        if latest[0] != number:
            block = self._packed[self._ends[number] : self._ends[number + 1]]
            latest = self._latest = number, zlib.decompress(block).decode().split("\n")
        return latest[1][place]


class Manifest:
    """The cuts of a manifest.

    Args:
        folder: folder to which paths of audio files are relative.

    Attributes:
        lines: JSON of each cut, checked.
        transcripts: transcript of each cut.
        durations_s: duration of each cut in seconds.
        rates: sample rates of the recordings in Hz.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lines = PackedLines()
        self.transcripts = Transcripts()
        self.durations_s = array("d")
        self.rates: set[int] = set()

    def append(self, line: str, entry: dict[str, Any]) -> None:
        """Add a checked line of a manifest; `entry` is its content."""
        self.lines.append(line)
        self.transcripts.append(entry["supervisions"][0].get("text") or "")
        self.durations_s.append(entry["duration"])
        self.rates.add(entry["recording"]["sampling_rate"])


class Cuts(Sequence["MonoCut"]):
    """Cuts of one or several manifests; audio paths are absolute.

    A cut is parsed at each access; durations and transcripts are available without parsing.

    Args:
        manifests: manifests that contain the cuts.
        transcripts: transcripts of all manifests.
        rows: [cuts] numbers of the cuts, counted across all manifests; None: all.

    Attributes:
        rows: [cuts] numbers of the cuts.
        durations_s: [cuts] durations in seconds.
        rates: sample rates of the manifests' recordings in Hz.
    """

    def __init__(
        self, manifests: Sequence[Manifest], transcripts: Transcripts, rows: NDArray[np.int64] | None = None
    ) -> None:
        self._manifests, self._transcripts = manifests, transcripts
        self._starts = np.cumsum([0, *(len(manifest.lines) for manifest in manifests)]).tolist()
        self.rows = np.arange(self._starts[-1]) if rows is None else rows
        self.durations_s = np.concatenate([manifest.durations_s for manifest in manifests])[self.rows]
        self.rates = set().union(*(manifest.rates for manifest in manifests))

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> "MonoCut": ...
    @overload
    def __getitem__(self, index: slice) -> "Cuts": ...
    def __getitem__(self, index: int | slice) -> "MonoCut | Cuts":
        if isinstance(index, slice):
            return self.select(np.arange(len(self))[index])
        manifest, row = self.place(int(self.rows[index]))
        return parse_cut(json.loads(manifest.lines[row]), manifest.folder)

    def __iter__(self) -> Iterator["MonoCut"]:
        before: Manifest | None = None
        last: tuple[Any, Recording | None] = None, None  # successive cuts of one recording share the object
        for manifest, row in map(self.place, self.rows.tolist()):
            entry = json.loads(manifest.lines[row])
            cut = parse_cut(entry, manifest.folder, last if manifest is before else (None, None))
            before, last = manifest, (entry["recording"], cut.recording)
            yield cut

    def select(self, indices: ArrayLike) -> "Cuts":
        """Return some of the cuts; both share their memory."""
        return Cuts(self._manifests, self._transcripts, self.rows[np.asarray(indices, dtype=np.int64)])

    def ids(self) -> Iterator[str]:
        """Yield the utterance ids in order, without building cuts."""
        for manifest, row in map(self.place, self.rows.tolist()):
            yield json.loads(manifest.lines[row])["id"]

    @property
    def texts(self) -> Texts:
        """The transcripts in order, assembled in each iteration."""
        return Texts(self._transcripts, self.rows)

    def place(self, row: int) -> tuple[Manifest, int]:
        """Return the manifest of one of `rows`, and the cut's number in it."""
        number = bisect_right(self._starts, row) - 1
        return self._manifests[number], row - self._starts[number]

    @staticmethod
    def joined(several: "Sequence[Cuts]") -> "Cuts":
        """Return all cuts in the given order; the manifests' lines are shared, not copied."""
        if len(several) == 1:
            return several[0]
        transcripts = Transcripts()
        for cuts in several:
            transcripts.extend(cuts._transcripts)
        firsts = np.cumsum([0, *(cuts._starts[-1] for cuts in several[:-1])])
        rows = [cuts.rows + first for cuts, first in zip(several, firsts, strict=True)]
        return Cuts([x for cuts in several for x in cuts._manifests], transcripts, np.concatenate(rows))
