"""ARPA files: writes an estimated model; checks a file and reads its vocabulary."""

import math
import mmap
from collections.abc import Iterable, Iterator
from pathlib import Path

from asr.errors import UserError
from asr.files import atomic_binary, require_file
from asr.lm.binary import check_binary, is_binary
from asr.lm.kneser_ney import BEGIN, NgramEstimate
from asr.text.files import stream_lines

NEVER = -99.0  # log10 probability of <s>, which is never predicted


def write_arpa(model: NgramEstimate, path: str | Path) -> None:
    """Write a model as ARPA text, gzipped if the name ends in `.gz`; the file appears when it is complete."""
    with atomic_binary(path, zipped=Path(path).suffix == ".gz") as file:
        file.writelines(line.encode() for line in _arpa_lines(model))


def _arpa_lines(model: NgramEstimate) -> Iterator[str]:
    yield "\\data\\\n"
    for order, table in enumerate(model.tables, start=1):
        yield f"ngram {order}={len(table)}\n"
    for order, table in enumerate(model.tables, start=1):
        yield f"\n\\{order}-grams:\n"
        columns = zip(model.ngrams(order), table.probability.tolist(), table.backoff.tolist(), strict=True)
        for words, probability, backoff in columns:
            log_probability = NEVER if words == (BEGIN,) else math.log10(probability)
            tail = f"\t{math.log10(backoff):.7g}" if order < len(model.tables) else ""
            yield f"{log_probability:.7g}\t{' '.join(words)}{tail}\n"
    yield "\n\\end\\\n"


def read_vocabulary(path: str | Path) -> frozenset[str] | None:
    """Read the words of an ARPA file, gzipped or not, or of a KenLM binary; None for a binary without words.

    Raises:
        UserError: the file is missing, truncated, damaged or in another format.
    """
    path = Path(path)
    require_file(path, "an ARPA or KenLM file")
    if is_binary(path):
        check_binary(path)
        return _binary_words(path)
    return _arpa_words(stream_lines(path, "an ARPA or KenLM file"), path)


def _arpa_words(lines: Iterable[str], path: Path) -> frozenset[str]:
    """Return the words in the unigrams; check the header's counts against the lines of all sections."""
    expected: list[int] = []
    counts: list[int] = []
    words: list[str] = []
    section = None
    for line in lines:
        line = line.strip()
        if not line:
            continue
        if section is None:
            if line == "\\data\\":
                section = 0
            elif not line.startswith("#"):
                raise UserError(f"{path}: expected an ARPA or KenLM file, found {line[:60]!r}")
        elif line == "\\end\\":
            section = -1
            break
        elif line.startswith("\\") and line.endswith("-grams:"):
            section += 1
            counts.append(0)
        elif section == 0:
            name, _, number = line.partition("=")
            if not number.strip().isdecimal():
                raise UserError(f"{path}: expected `{name}=<number>`, found {line[:60]!r}")
            expected.append(int(number))
        else:
            counts[-1] += 1
            if section == 1:
                fields = line.split()
                if len(fields) < 2:
                    raise UserError(f"{path}: expected a probability and a word, found {line[:60]!r}")
                words.append(fields[1])
    if section is None:
        raise UserError(f"{path}: expected an ARPA or KenLM file, found no \\data\\ section")
    if section != -1 or counts != expected:
        raise UserError(
            f"{path}: the language model is truncated: expected {_counts(expected)} n-grams and \\end\\, "
            f"found {_counts(counts)}{'' if section == -1 else ' and no end'}"
        )
    return frozenset(words)


def _counts(counts: list[int]) -> str:
    return "+".join(map(str, counts)) or "no"


def _binary_words(path: Path) -> frozenset[str] | None:
    """Return the words that `build_binary` appends to the file: NUL-terminated, `<unk>` first."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        begin = content.rfind(b"<unk>\0")
        if begin < 0 or content[-1] != 0:
            return None
        try:
            return frozenset(content[begin:-1].decode().split("\0"))
        except UnicodeDecodeError:
            return None
