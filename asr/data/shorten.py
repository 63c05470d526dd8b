"""Decoder for the lossless audio compression shorten, including µ-law, which FFmpeg does not support.

Implements versions 1 and 2 of the format: Robinson, *SHORTEN: simple lossless and near-lossless waveform
compression*, CUED/F-INFENG/TR.156 (1994). A minute of a two-channel telephone conversation takes about a
second, which is too slow for audio that is read often.
"""

from collections.abc import Iterator
from functools import cache

import numpy as np
from numpy.typing import NDArray

MAGIC = b"ajkg"
# Sample types: 16 bits, big- or little-endian, and lossless µ-law. In MULAW_WITH_MINUS_ZERO, −1 stands for
# minus zero, and all lower numbers are one less than in MULAW.
INT16 = (3, 5)
MULAW, MULAW_WITH_MINUS_ZERO = 0, 8
MINUS_ZERO = 0x7F
DIFFERENCES, QUIT, BLOCK_SIZE, BIT_SHIFT, LINEAR_PREDICTION, ZERO, VERBATIM = range(4), 4, 5, 6, 7, 8, 9
# Number of low bits in the Rice code of each field.
COMMAND, ENERGY, SHIFT, ORDER, COEFFICIENT, SKIPPED, VERBATIM_BYTES, BYTE = 2, 3, 2, 2, 5, 7, 5, 8
MOST_SHIFT = {False: 15, True: 12}  # key: whether samples are µ-law

Block = NDArray[np.int64]


def decode(data: bytes, samples: int, mulaw: bool) -> NDArray[np.int64]:
    """Return the first samples of all channels, or fewer if the data end earlier.

    Args:
        data: compressed data, starting with the magic number.
        samples: number of samples per channel to decode.
        mulaw: whether µ-law is expected; false: 16-bit samples.

    Returns:
        [channels, ≤ samples]: 16-bit samples, or 8-bit µ-law codes (G.711).

    Raises:
        ValueError: the data are not compressed by shorten, are broken, or have another sample type.
    """
    if not data.startswith(MAGIC) or len(data) < 6 or data[4] not in (1, 2):
        raise ValueError(f"expected shorten of version 1 or 2, found {data[:5]!r}")
    blocks: list[list[Block]] = []
    decoded = 0
    try:
        for block in _blocks(_Bits(data[5:]), data[4], mulaw):
            if not blocks:
                blocks = [[] for _ in block]
            for channel, part in zip(blocks, block, strict=True):
                channel.append(part)
            decoded += len(block[0])
            if decoded >= samples:
                break
    except EOFError:
        pass
    if not blocks:
        return np.zeros((0, 0), dtype=np.int64)
    return np.stack([np.concatenate(channel) for channel in blocks])[:, :samples]


def _blocks(bits: "_Bits", version: int, mulaw: bool) -> Iterator[list[Block]]:
    """Yield the samples of all channels, block by block."""
    kind, channels, size, order, means, skipped = (bits.number() for _ in range(6))
    if kind not in ((MULAW, MULAW_WITH_MINUS_ZERO) if mulaw else INT16):
        wanted = "lossless µ-law" if mulaw else "16-bit samples"
        raise ValueError(f"expected {wanted} compressed by shorten, found sample type {kind}")
    if not 0 < channels <= 64 or not 0 < size <= 1 << 16 or order > 64 or means > 1 << 10:
        raise ValueError(
            "expected a valid shorten header, found "
            f"{channels} channels, block size {size}, order {order}, {means} means"
        )
    for _ in range(skipped):
        bits.unsigned(SKIPPED)
    histories = [np.zeros(max(3, order), dtype=np.int64) for _ in range(channels)]
    offsets = [[0] * means for _ in range(channels)]
    shift = 0
    done: list[Block] = []
    while (command := bits.unsigned(COMMAND)) != QUIT:
        if command == BLOCK_SIZE:
            size = bits.number()
            if not 0 < size <= 1 << 16:
                raise ValueError(f"expected a block size of 1 to 65536, found {size}")
        elif command == BIT_SHIFT:
            shift = bits.unsigned(SHIFT)
            if shift > MOST_SHIFT[mulaw]:
                raise ValueError(f"expected a shift of at most {MOST_SHIFT[mulaw]} bits, found {shift}")
        elif command == VERBATIM:
            for _ in range(bits.unsigned(VERBATIM_BYTES)):
                bits.unsigned(BYTE)
        elif command in DIFFERENCES or command in (LINEAR_PREDICTION, ZERO):
            past, known = histories[len(done)], offsets[len(done)]
            block = _block(bits, command, size, past, _offset(known, shift, version), version)
            if known:
                mean = _quotient(int(block.sum()) + (size // 2 if version > 1 else 0), size)
                known[:] = [*known[1:], mean << shift if version > 1 else mean]
            past[:] = np.concatenate([past, block])[-len(past) :]
            done.append(_to_samples(block, kind, shift))
            if len(done) == channels:
                yield done
                done = []
        else:
            raise ValueError(f"expected a shorten command, found {command}")


def _block(bits: "_Bits", command: int, size: int, past: Block, offset: int, version: int) -> Block:
    """Decode a block, without its shift; `past` holds the preceding samples."""
    if command == ZERO:
        return np.zeros(size, dtype=np.int64)
    energy = bits.unsigned(ENERGY)
    if command == LINEAR_PREDICTION:
        coefficients = [int(bits.block(1, COEFFICIENT)[0]) for _ in range(bits.unsigned(ORDER))]
        if len(coefficients) > len(past):
            raise ValueError(f"expected at most {len(past)} coefficients, found {len(coefficients)}")
        residual = bits.block(size, energy).tolist()
        return _predicted(residual, (past - offset).tolist(), coefficients, 32 if version > 1 else 0) + offset
    block = bits.block(size, energy)
    if command == 0:
        return block + offset
    # A difference of order n is summed n times, each time starting from the last difference before the block.
    for differences in range(command - 1, -1, -1):
        block = np.cumsum(block) + np.diff(past, differences)[-1]
    return block


def _predicted(residual: list[int], past: list[int], coefficients: list[int], bias: int) -> Block:
    """Invert linear prediction with coefficients in 32nds."""
    joined = past[len(past) - len(coefficients) :]
    for value in residual:
        latest = reversed(joined[len(joined) - len(coefficients) :])
        weighted = sum(c * x for c, x in zip(coefficients, latest, strict=True))
        joined.append(value + ((bias + weighted) >> 5))
    return np.array(joined[len(coefficients) :], dtype=np.int64)


def _offset(means: list[int], shift: int, version: int) -> int:
    """Return the offset that DIFF0 and linear prediction subtract: the average of the last blocks' means."""
    if not means:
        return 0
    mean = _quotient(sum(means) + (len(means) // 2 if version > 1 else 0), len(means))
    return mean >> (shift - 1) >> 1 if version > 1 and shift else mean


def _quotient(value: int, by: int) -> int:
    """Divide, rounding towards zero."""
    return value // by if value >= 0 else -(-value // by)


def _to_samples(block: Block, kind: int, shift: int) -> Block:
    """Convert the numbers of a block to samples or µ-law codes."""
    if kind in INT16:
        return block << shift
    numbers = block + (block < -1) if kind == MULAW_WITH_MINUS_ZERO else block
    if numbers.min() < -128 or numbers.max() > 127:
        raise ValueError(
            "expected numbers of µ-law codes from -128 to 127 in data compressed by shorten, found "
            f"{numbers.min()} to {numbers.max()}"
        )
    codes = mulaw_codes(shift)[numbers + 128]
    return np.where(block == -1, MINUS_ZERO, codes) if kind == MULAW_WITH_MINUS_ZERO else codes


@cache
def mulaw_codes(shift: int) -> Block:
    """Return the µ-law codes [256] that the numbers −128 … 127 stand for in a block with this shift.

    Numbers follow the amplitude. With a shift, the codes of multiples of 2^shift steps of the finest segment
    are numbered first, from zero without gaps; all other codes follow.
    """

    def numbered(amplitudes: range) -> list[int]:
        first = list(dict.fromkeys(_magnitude(amplitude) for amplitude in amplitudes))
        return first + sorted(set(range(128)) - set(first))

    step = 8 << shift
    positive = [0xFF - magnitude for magnitude in numbered(range(0, 1 << 15, step))]
    negative = [0x7F - magnitude for magnitude in numbered(range(step, (1 << 15) + 1, step))]
    return np.array([*reversed(negative), *positive], dtype=np.int64)


def _magnitude(amplitude: int) -> int:
    """Return the lowest seven bits of the µ-law code of a 16-bit amplitude, before inversion."""
    biased = min(amplitude, 32635) + 132
    segment = biased.bit_length() - 8
    return 16 * segment + ((biased >> (segment + 3)) & 15)


def mulaw_samples(codes: NDArray[np.int64]) -> NDArray[np.int16]:
    """Expand µ-law codes to 16-bit samples (G.711)."""
    magnitude = ~codes & 0x7F
    amplitude = ((((magnitude & 15) << 3) + 132) << (magnitude >> 4)) - 132
    return np.where(codes & 0x80, amplitude, -amplitude).astype(np.int16)


class _Bits:
    """Reader of Rice codes, most significant bit first; raises `EOFError` at the end of the data.

    For one window of the data at a time, it tabulates the position of the next 1 after each bit and the
    32 bits starting at each byte.

    Args:
        data: bytes to read.
    """

    WINDOW = 1 << 14  # bytes

    def __init__(self, data: bytes) -> None:
        self._data = np.frombuffer(data, dtype=np.uint8)
        self._first, self._size, self._position = 0, 0, 0
        self._next_one: list[int] = []
        self._words = np.zeros(0, dtype=np.int64)
        self._unpack(0, self.WINDOW, 0)

    def unsigned(self, low: int) -> int:
        """Return a number: its high part as a count of zeros, a one, then `low` bits."""
        return int(self._codes(1, low)[0])

    def number(self) -> int:
        """Return a number preceded by its number of low bits."""
        return self.unsigned(self.unsigned(2))

    def block(self, count: int, low: int) -> Block:
        """Return `count` signed numbers, stored with the sign in the lowest bit."""
        codes = self._codes(count, low + 1)
        return (codes >> 1) ^ -(codes & 1)

    def _codes(self, count: int, low: int) -> Block:
        if low > 24:  # a 32-bit word holds 24 bits starting at any of its first eight
            raise ValueError(f"expected Rice codes with at most 24 low bits, found {low}")
        while True:
            try:
                return self._try_codes(count, low)
            except IndexError:
                self._move()

    def _try_codes(self, count: int, low: int) -> Block:
        ones, next_one = [], self._next_one
        position = self._position
        for _ in range(count):
            one = next_one[position]
            ones.append(one)
            position = one + 1 + low
        next_one[position]  # raises IndexError unless all codes lie in the window
        ends = np.array(ones)
        zeros = np.diff(ends, prepend=self._position - 1 - low) - 1 - low
        self._position = position
        after = ends + 1
        digits = self._words[after >> 3] >> (32 - low - (after & 7)) & ((1 << low) - 1)
        return (zeros << low) | digits

    def _move(self) -> None:
        """Move the window to the reading position, or double it if it starts there already."""
        if self._first + self._size >= len(self._data):
            raise EOFError
        first = self._first + self._position // 8
        size = 2 * self._size if first == self._first else self.WINDOW
        self._unpack(first, size, self._position % 8)

    def _unpack(self, first: int, size: int, position: int) -> None:
        self._first, self._size, self._position = first, size, position
        window = self._data[first : first + size]
        count = 8 * len(window)
        where = np.where(np.unpackbits(window), np.arange(count), count + 1)
        # The last entry is for the position after the last bit; a missing 1 lies outside the window.
        self._next_one = [*np.minimum.accumulate(where[::-1])[::-1].tolist(), count + 1]
        padded = np.append(window, np.zeros(4, dtype=np.uint8)).astype(np.int64)
        self._words = padded[:-3] << 24 | padded[1:-2] << 16 | padded[2:-1] << 8 | padded[3:]
