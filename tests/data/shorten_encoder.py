"""Encoders for shorten (versions 1 and 2) and SPHERE, so that tests can read back known samples.

Robinson, *Shorten: simple lossless and near-lossless waveform compression* (1994). They write every
function of the format that occurs in 16-bit and µ-law files: DIFF0 to DIFF3, QLPC, ZERO, BITSHIFT,
BLOCKSIZE, VERBATIM, QUIT. µ-law samples are given as 8-bit codes.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

TYPES = {"ulaw_first": 0, "int16_hl": 3, "int16_lh": 5, "ulaw": 8}
MINUS_ZERO = 0x7F
MOST_MULAW_SHIFT = 12
BLOCKSIZE = 256
MEANS = 4  # number of previous blocks whose means predict a block's offset
QUIT, NEW_BLOCKSIZE, BITSHIFT, QLPC, ZERO, VERBATIM = 4, 5, 6, 7, 8, 9
COMMAND, ENERGY, LPC_ORDER, LPC_COEFFICIENT, SHIFT = 2, 3, 2, 5, 2  # low bits in the Rice code of each field


class Bits:
    """Writer of Rice codes, most significant bit first."""

    def __init__(self) -> None:
        self.parts: list[str] = []

    def unsigned(self, value: int, bits: int) -> None:
        low = format(value & ((1 << bits) - 1), f"0{bits}b") if bits else ""
        self.parts.append("0" * (value >> bits) + "1" + low)

    def signed(self, value: int, bits: int) -> None:
        self.unsigned(value << 1 if value >= 0 else (~value << 1) | 1, bits + 1)

    def number(self, value: int) -> None:
        width = max(value.bit_length(), 1)
        self.unsigned(width, 2)
        self.unsigned(value, width)

    def packed(self) -> bytes:
        text = "".join(self.parts)
        text += "0" * (-len(text) % 32)  # shorten writes whole 32-bit words
        return int(text, 2).to_bytes(len(text) // 8, "big")


def shorten(
    samples: NDArray[np.int_],
    *,
    type: str = "int16_lh",
    lpc: int = 0,
    means: int = MEANS,
    verbatim: bytes = b"",
    version: int = 2,
) -> bytes:
    """Compress [samples] or [samples, channels]; odd blocks use linear prediction of order `lpc`."""
    columns = samples.reshape(len(samples), -1).T.astype(np.int64)
    bits = Bits()
    for value in (TYPES[type], len(columns), BLOCKSIZE, lpc, means, 0):
        bits.number(value)
    if verbatim:
        bits.unsigned(VERBATIM, COMMAND)
        bits.unsigned(len(verbatim), 5)
        for byte in verbatim:
            bits.unsigned(byte, 8)
    history = [[0] * max(3, lpc) for _ in columns]
    offsets = [[0] * means for _ in columns]
    size, shift = BLOCKSIZE, 0
    for start in range(0, columns.shape[1], BLOCKSIZE):
        blocks = columns[:, start : start + BLOCKSIZE]
        if blocks.shape[1] != size:
            size = blocks.shape[1]
            bits.unsigned(NEW_BLOCKSIZE, COMMAND)
            bits.number(size)
        wanted = _common_mulaw_shift(blocks, type) if "ulaw" in type else _common_shift(blocks)
        if wanted != shift:
            # Past samples stay in the units of the block that produced them.
            shift = wanted
            bits.unsigned(BITSHIFT, COMMAND)
            bits.unsigned(shift, SHIFT)
        for block, past, means_of in zip(blocks, history, offsets, strict=True):
            rule = Rule(version, shift, lpc if start // BLOCKSIZE % 2 else 0)
            values = (block >> shift).tolist()
            if "ulaw" in type:
                values = [mulaw_numbers(shift, type)[code] for code in block.tolist()]
            _write_block(bits, values, past, means_of, rule)
    bits.unsigned(QUIT, COMMAND)
    return b"ajkg" + bytes([version]) + bits.packed()


@dataclass(frozen=True)
class Rule:
    """Parameters of a block.

    Attributes:
        version: format version; version 2 rounds, version 1 truncates.
        shift: number of lowest bits that are not stored.
        lpc: order of linear prediction; 0: differences.
    """

    version: int
    shift: int
    lpc: int

    def rounding(self, divisor: int) -> int:
        """Return the number added before a division."""
        return divisor // 2 if self.version > 1 else 0


def _write_block(bits: Bits, block: list[int], past: list[int], means_of: list[int], rule: Rule) -> None:
    offset = 0
    if means_of:
        offset = _quotient(sum(means_of) + rule.rounding(len(means_of)), len(means_of))
        if rule.version > 1 and rule.shift:
            offset = offset >> (rule.shift - 1) >> 1
    if any(block):
        joined = past + block
        candidates = {order: _differences(joined, len(past), order, offset) for order in range(4)}
        order = min(candidates, key=lambda order: sum(map(abs, candidates[order])))
        residual = candidates[order]
        coefficients: list[int] = []
        if rule.lpc:
            order = QLPC
            coefficients = [40, -12, 5, 3, -2, 1][: rule.lpc]
            residual = _predicted(joined, len(past), coefficients, offset, 32 * (rule.version > 1))
        energy = max(0, int(np.log2(np.mean(np.abs(residual)) * 0.7 + 1)))
        bits.unsigned(order, COMMAND)
        bits.unsigned(energy, ENERGY)
        if order == QLPC:
            bits.unsigned(len(coefficients), LPC_ORDER)
            for coefficient in coefficients:
                bits.signed(coefficient, LPC_COEFFICIENT)
        for value in residual:
            bits.signed(value, energy)
    else:
        bits.unsigned(ZERO, COMMAND)
    if means_of:
        mean = _quotient(sum(block) + rule.rounding(len(block)), len(block))
        means_of[:] = [*means_of[1:], mean << rule.shift if rule.version > 1 else mean]
    past[:] = (past + block)[-len(past) :]


def _differences(joined: list[int], past: int, order: int, offset: int) -> list[int]:
    if order == 0:
        return [value - offset for value in joined[past:]]
    return np.diff(np.array(joined), order)[past - order :].tolist()


def _predicted(joined: list[int], past: int, coefficients: list[int], offset: int, bias: int) -> list[int]:
    """The residual of linear prediction with coefficients in 32nds, rounded down."""
    centred = [value - offset for value in joined]
    return [
        centred[i] - ((bias + sum(c * centred[i - 1 - j] for j, c in enumerate(coefficients))) >> 5)
        for i in range(past, len(centred))
    ]


def _quotient(value: int, by: int) -> int:
    """Divide, rounding towards zero."""
    return value // by if value >= 0 else -(-value // by)


def _common_shift(blocks: NDArray[np.int64]) -> int:
    together = int(np.bitwise_or.reduce(blocks, axis=None))
    return (together & -together).bit_length() - 1 if together else 0


@cache
def mulaw_numbers(shift: int, type: str) -> dict[int, int]:
    """Number µ-law codes by amplitude: first the codes that a shift can represent, then all others."""
    numbers = {}
    for sign, negative in ((0x80, False), (0, True)):
        ordered = [sign | (~magnitude & 0x7F) for magnitude in range(128)]
        first = [
            code
            for code in ordered
            if _is_representable(code, shift) and not (negative and code == MINUS_ZERO)
        ]
        others = [code for code in ordered if code not in first]
        for number, code in enumerate(first + others):
            numbers[code] = -1 - number if negative else number
    if type == "ulaw":
        numbers = {code: number - (number < 0) for code, number in numbers.items()} | {MINUS_ZERO: -1}
    return numbers


def _common_mulaw_shift(blocks: NDArray[np.int64], type: str) -> int:
    """The highest shift that can represent all codes; type `ulaw` has a separate number for minus zero."""
    codes = set(blocks.ravel().tolist()) - ({MINUS_ZERO} if type == "ulaw" else set())
    if type == "ulaw_first" and MINUS_ZERO in codes:
        return 0
    shifts = (
        shift for shift in range(MOST_MULAW_SHIFT, 0, -1) if all(_is_representable(c, shift) for c in codes)
    )
    return next(shifts, 0)


@cache
def _is_representable(code: int, shift: int) -> bool:
    """Whether a multiple of 2^shift finest steps is among the amplitudes with this code (G.711)."""
    segment, place = (~code >> 4) & 7, ~code & 15
    lowest = max(0, ((place + 16) << (segment + 3)) - 132)
    highest = ((place + 17) << (segment + 3)) - 133
    if segment == 7 and place == 15:  # the loudest code covers all higher amplitudes
        highest = 32768 if code < 0x80 else 32767
    step = 8 << shift
    return highest // step * step >= lowest


def sphere_header(
    samples: int, rate: int = 16000, channels: int = 1, coding: str = "pcm", width: int = 2, **more: str
) -> bytes:
    """Return a SPHERE header of 1,024 bytes."""
    fields = {
        "database_id": "-s4 mini",
        "sample_count": f"-i {samples}",
        "sample_rate": f"-i {rate}",
        "channel_count": f"-i {channels}",
        "sample_n_bytes": f"-i {width}",
        "sample_byte_format": "-s2 01" if width == 2 else "-s1 1",
        "sample_sig_bits": f"-i {8 * width}",
        "sample_coding": f"-s{len(coding)} {coding}",
        **more,
    }
    lines = "".join(f"{name} {value}\n" for name, value in fields.items())
    return f"NIST_1A\n   1024\n{lines}end_head\n".encode().ljust(1024, b" ")


def write_sphere(
    path: Path,
    samples: NDArray[np.int_],
    rate: int = 16000,
    *,
    compressed: bool = False,
    lpc: int = 0,
    version: int = 2,
) -> None:
    """Write 16-bit SPHERE, plain or with embedded shorten (version 1 without means)."""
    columns = samples.reshape(len(samples), -1)
    path.parent.mkdir(parents=True, exist_ok=True)
    if compressed:
        coding = {1: "pcm,embedded-shorten-v1.09", 2: "pcm,embedded-shorten-v2.00"}[version]
        header = sphere_header(len(samples), rate, columns.shape[1], coding)
        means = MEANS if version > 1 else 0
        path.write_bytes(header + shorten(samples, lpc=lpc, means=means, version=version))
    else:
        header = sphere_header(len(samples), rate, columns.shape[1])
        path.write_bytes(header + samples.astype("<i2").tobytes())
