"""The King James Bible of 1611, which is in the public domain, in Debian's package bible-kjv-text."""

import itertools
import re
import struct
import subprocess
from pathlib import Path

from asr_recipes.language.options import PACKAGE

from asr.errors import UserError
from asr.files import require_file

DATA = Path("usr/lib/bible.data")
MAGIC = b"EC02Compressed Data File"
HEADER = 0x54  # offset of the block size and the number of blocks, which precede the offsets of the blocks
COMPRESS = b"\x1f\x9d\x90"  # header of Unix compress, which the blocks lack
VERSES = 31_102
REFERENCE = re.compile(r"[A-Z0-9][A-Za-z0-9]*?\d+:\d+ ")


def read_verses(path: Path) -> list[str]:
    """Return the verses without their references, in order.

    Args:
        path: the package's `bible.data`: blocks of 64 KiB, each packed with Unix compress.

    Raises:
        UserError: the file is missing or damaged, or gzip isn't installed.
    """
    require_file(path, f"the text of the package {PACKAGE}")
    data = path.read_bytes()
    try:
        if not data.startswith(MAGIC):
            raise ValueError("another kind of file")
        _, count = struct.unpack_from(">2I", data, HEADER)
        starts = [*struct.unpack_from(f">{count}I", data, HEADER + 8), len(data)]
        text = b"".join(_unpacked(data[start:end]) for start, end in itertools.pairwise(starts))
    except FileNotFoundError:
        raise UserError("gzip is not installed: it unpacks the text") from None
    except (ValueError, struct.error, subprocess.CalledProcessError) as error:
        raise UserError(f"{path}: expected the text of the package {PACKAGE}, found {error}") from None
    lines = text.decode("ascii", errors="replace").splitlines()
    verses = [REFERENCE.sub("", line, count=1) for line in lines if REFERENCE.match(line)]
    if len(verses) != VERSES:
        raise UserError(f"{path}: expected {VERSES} verses, found {len(verses)}")
    return verses


def _unpacked(block: bytes) -> bytes:
    # Python has no decoder for Unix compress, but gzip has.
    done = subprocess.run(["gzip", "-dc"], input=COMPRESS + block, capture_output=True, check=True)
    return done.stdout
