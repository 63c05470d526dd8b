"""Unpack the language models on disc 13-32.1: ARPA files and newspaper text of 1987 to 1989."""

import gzip
import shutil
import subprocess
import zlib
from collections.abc import Iterator
from pathlib import Path

from asr.errors import UserError
from asr.files import GZIP_MAGIC, atomic_binary, require_file
from asr.text.files import unreadable

from .layout import Distribution

DISC = "13-32.1"
FOLDER = "wsj1/doc/lng_modl"
# Bigrams and trigrams of 20,000 words (open vocabulary) and of 5,000 words (bigrams open, trigrams closed).
MODELS = ("bcb20onp", "tcb20onp", "bcb05onp", "tcb05cnp")
TEXT = f"{FOLDER}/lm_train/np_data/"
YEARS = ("87", "88", "89")


def model_files(distribution: Distribution) -> tuple[dict[str, Path], list[str]]:
    """Return the packed models by name, and the paths of missing models."""
    files, missing = {}, []
    for name in MODELS:
        place = f"{FOLDER}/base_lm/{name}.z"
        if path := distribution.find(DISC, place):
            files[name] = Path(path)
        else:
            missing.append(place)
    return files, missing


def write_model(path_and_target: tuple[Path, Path]) -> bool:
    """Unpack an ARPA model to a gzip file, without the text before `\\data\\`, and return True.

    Raises:
        UserError: the file can't be unpacked, or is not a complete ARPA model.
    """
    path, target = path_and_target
    last = b""
    with atomic_binary(target) as raw, gzip.GzipFile("", "wb", 6, raw, mtime=0) as packed:
        for line in packed_lines(path):
            if last or line.strip() == b"\\data\\":
                packed.write(line)
                last = line.strip() or last
        if last != b"\\end\\":
            expected = "\\end\\" if last else "\\data\\"
            raise UserError(f"{path}: expected an ARPA language model, found no line {expected} in it")
    return True


def text_files(distribution: Distribution) -> list[Path]:
    """Return the files of newspaper text, ordered by name."""
    places = [f"{DISC}/{TEXT}{year}/" if distribution.discs else f"{TEXT}{year}/" for year in YEARS]
    texts = [(name, path) for name, path in distribution.ending(".z") if name.startswith(tuple(places))]
    return [Path(path) for _, path in sorted(texts)]


def sentences(path: Path) -> Iterator[str]:
    """Yield the sentences of newspaper text in upper case, without SGML lines (`<s.…>`, `</art>`).

    Raises:
        UserError: the file can't be unpacked, or isn't UTF-8.
    """
    for number, line in enumerate(packed_lines(path), start=1):
        if line.startswith(b"<") or not line.strip():
            continue
        try:
            yield " ".join(line.decode().upper().split())
        except UnicodeDecodeError:
            raise UserError(f"{path}:{number}: expected UTF-8 text, found other bytes") from None


def packed_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file packed by compress(1) or gzip, or not packed.

    Raises:
        UserError: the file is broken, or needs gzip and it is not installed.
    """
    require_file(path, "a packed file")
    with open(path, "rb") as file:
        magic = file.read(2)
    if magic == GZIP_MAGIC:
        try:
            with gzip.open(path) as file:
                yield from file
        except (OSError, EOFError, zlib.error) as error:
            raise unreadable(path, error) from None
    elif magic[:1] == b"\x1f":
        yield from _through_gzip(path)
    else:
        with open(path, "rb") as file:
            yield from file


def _through_gzip(path: Path) -> Iterator[bytes]:
    """Unpack compress(1)'s format with the program gzip, since Python can't read it."""
    program = shutil.which("gzip")
    if program is None:
        raise UserError(f"{path}: expected the program gzip to unpack it, found none: install gzip")
    command = [program, "-d", "-c"]
    with (
        open(path, "rb") as file,
        subprocess.Popen(command, stdin=file, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process,
    ):
        assert process.stdout is not None
        assert process.stderr is not None
        yield from process.stdout
        complaint = process.stderr.read().decode(errors="replace").strip()
    if process.returncode:
        raise UserError(f"{path}: expected a file packed by compress(1), found another ({complaint})")
