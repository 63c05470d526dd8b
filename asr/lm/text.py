"""Sentences for language models, from text files, manifests or prepared folders."""

import gzip
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, cast

from asr.data.manifest import read_cuts
from asr.data.places import manifest_path
from asr.errors import UserError, in_words
from asr.files import require_file
from asr.text.tokenizer import NOISE_WORD


def read_sentences(sources: list[str], split: str) -> Iterator[list[str]]:
    """Yield the words of each sentence, without `<NOISE>`.

    Args:
        sources: text files with a sentence per line (gzipped if the name ends in `.gz`), manifests
            (`*.cuts.jsonl.gz`), or prepared folders.
        split: split to read from prepared folders.

    Raises:
        UserError: a source is missing or is not UTF-8 text.
    """
    for source in sources:
        path = Path(source)
        if path.is_dir() or ".jsonl" in path.name:
            lines: Iterable[str] = read_cuts(manifest_path(source, split)).texts
        else:
            lines = _lines(path)
        for line in lines:
            yield [word for word in line.split() if word != NOISE_WORD]


def _lines(path: Path) -> Iterator[str]:
    require_file(path, "a text, a manifest or a prepared folder")
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8-sig") as file:
            yield from cast(IO[str], file)
    except (EOFError, OSError, zlib.error) as error:
        raise UserError(f"{path}: the file can't be read ({in_words(error)})") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: expected UTF-8 text, found other bytes at byte {error.start}") from None
