"""Which recordings are transcribed already, so that an interrupted or repeated command skips them."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asr.files import file_state
from asr.records.keyed import KeyedRecord

JOURNAL = ".transcribed.jsonl"


class Finished:
    """The recordings whose transcripts were written by the same job, in a hidden journal.

    A recording isn't finished if it has changed since or its transcript is gone. Standard input never is.

    Args:
        job: model, options and digests of inputs: what determines the transcripts besides the recordings.
        folder: folder of the journal.
        files: (recording, its transcript) of all files.

    Attributes:
        positions: positions of the finished recordings in `files`.
    """

    def __init__(self, job: dict[str, Any], folder: Path, files: Sequence[tuple[Path, Path]]) -> None:
        self._journal = KeyedRecord(folder / JOURNAL, job)
        self._keys = [
            f"{file_state(file.absolute())} {place.absolute()}" if str(file) != "-" else ""
            for file, place in files
        ]
        self.positions = {x for x in self._journal.positions(self._keys) if files[x][1].exists()}
        if self.positions:
            print(f"{folder}: {len(self.positions)} of {len(files)} files are finished", file=sys.stderr)

    def add(self, position: int) -> None:
        """Store that the transcript of a recording is written."""
        if key := self._keys[position]:
            self._journal.add(key, None)

    def close(self) -> None:
        """Close the journal."""
        self._journal.close()
