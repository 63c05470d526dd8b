"""Reads sentences for language models from text files, manifests or prepared folders."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from asr.data.manifest import read_cuts
from asr.data.places import is_manifest, manifest_path
from asr.text.files import stream_lines
from asr.text.tokenizer import NOISE_WORD


def read_sentences(sources: list[str], split: str) -> Iterator[list[str]]:
    """Yield the words of each sentence, without `<NOISE>`.

    Args:
        sources: text files with a sentence per line (gzipped if the name ends in `.gz`), manifests
            (`*.jsonl.gz`, `*.jsonl`), or prepared folders.
        split: split to read from prepared folders.

    Raises:
        UserError: a source is missing or is not UTF-8 text.
    """
    for source in sources:
        path = Path(source)
        if path.is_dir() or is_manifest(path):
            lines: Iterable[str] = read_cuts(manifest_path(source, split)).texts
        else:
            lines = stream_lines(path, "a text, a manifest or a prepared folder")
        for line in lines:
            yield [word for word in line.split() if word != NOISE_WORD]
