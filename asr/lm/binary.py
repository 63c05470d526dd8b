"""Checks KenLM's binary files for what KenLM itself doesn't check, so that damage is an error, not a crash.

KenLM compares header and size, and maps the rest: word numbers and pointers in a damaged file may lead it to
invalid memory. The layout follows KenLM's binary_format.cc, vocab.cc, trie.cc and quantize.cc.
"""

import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from asr.errors import UserError

KENLM_MAGIC = b"mmap lm http://kheafield.com/code"
HEADER = struct.Struct("<88x B 3x f I ? 3x I")  # order, multiplier of the hash table, type, words, version
PROBING = (0, 1)  # types: hash tables
TRIE, QUANTISED_TRIE = 2, 3  # sorted arrays; 4 and 5 have compressed pointers
QUANTISED = (QUANTISED_TRIE, 5)
AT_ONCE = 1 << 20  # pointers checked at a time


def is_binary(path: str | Path) -> bool:
    """Whether a file is a KenLM binary."""
    with open(path, "rb") as file:
        return file.read(len(KENLM_MAGIC)) == KENLM_MAGIC


def check_binary(path: str | Path) -> None:
    """Raise UserError if word numbers or pointers in a KenLM binary lead outside it.

    In tries with compressed pointers (`build_binary -a`), only those of single words are checked. Checking
    header and size is left to KenLM; probabilities aren't checked.
    """
    try:
        fault = _fault(np.memmap(path, np.uint8, "r"))
    except (struct.error, ValueError, IndexError, OverflowError):  # shorter than the header says
        return
    if fault:
        raise UserError(f"{path}: expected a KenLM binary as it was written, found {fault} (damaged?)")


def _fault(content: NDArray[np.uint8]) -> str:
    """Return a description of the first fault; empty if there is none."""
    order, multiplier, kind, _, _ = HEADER.unpack(content[: HEADER.size].tobytes())
    counts = np.frombuffer(content, "<u8", order, HEADER.size).tolist()
    words, start = counts[0], -(-(HEADER.size + 8 * order) // 8) * 8
    if kind in PROBING:
        buckets = max(words + 1, int(np.float32(multiplier) * np.float32(words)))
        table = np.frombuffer(content, [("key", "<u8"), ("word", "<u4")], buckets, start + 8)
        return "a word's number beyond the vocabulary" if (table["word"] >= words).any() else ""
    known = int(np.frombuffer(content, "<u8", 1, start)[0])
    if known > words or not _rises(np.frombuffer(content, "<u8", known, start + 8)):
        return "a vocabulary that is not sorted"
    start += 8 * (1 + words)
    bits = 63
    if kind in QUANTISED:
        probability, backoff = int(content[start + 1]), int(content[start + 2])
        start += 8 + 4 * (((order - 1) << probability) + ((order - 2) << backoff))
        bits = probability + backoff
    if not _points_into(np.frombuffer(content, "<u8", 2 * (words + 1), start)[1::2], counts[1]):
        return "a pointer beyond the 2-grams"
    start += 16 * (words + 2)
    if kind not in (TRIE, QUANTISED_TRIE):
        return ""
    for number in range(2, order):
        entries, following = counts[number - 1], counts[number]
        width = words.bit_length() + bits + following.bit_length()
        if not _packed_point_into(content, start, entries, width, following):
            return f"a pointer beyond the {number + 1}-grams"
        start += ((entries + 1) * width + 7) // 8 + 8
    return ""


def _packed_point_into(content: NDArray[np.uint8], start: int, entries: int, width: int, count: int) -> bool:
    """Return whether pointers, the last bits of entries of `width` bits, ascend and stay within `count`."""
    shape, size = (len(content) - 7,), count.bit_length()
    words: NDArray[np.uint64] = np.ndarray(shape, "<u8", content, strides=(1,))
    for first in range(0, entries + 1, AT_ONCE):
        bits = np.arange(first, min(first + AT_ONCE, entries) + 1, dtype=np.uint64) * width + (width - size)
        pointers = words[start + (bits >> 3)] >> (bits & 7) & ((1 << size) - 1)
        if not _rises(pointers) or pointers[-1] > count:
            return False
    return True


def _points_into(pointers: NDArray[np.uint64], count: int) -> bool:
    return _rises(pointers) and int(pointers[-1]) <= count


def _rises(values: NDArray[np.uint64]) -> bool:
    """Return whether no value is less than its predecessor."""
    return bool((values[1:] >= values[:-1]).all())
