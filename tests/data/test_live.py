"""Audio from a pipe: raw samples, and containers read from front to back."""

import io
from pathlib import Path

import numpy as np
import pytest
import soundfile

from asr import UserError
from asr.data.live import container_blocks, raw_blocks

SAMPLES = (0.3 * np.sin(np.arange(50_000) / 9)).astype(np.float32)


class Trickle(io.RawIOBase):
    """A pipe that returns a few bytes at a time, sometimes half a sample."""

    def __init__(self, content: bytes, size: int) -> None:
        self._rest, self._size = content, size

    def read(self, size: int = -1) -> bytes:
        """Return at most as many bytes as come at a time."""
        count = self._size if size < 0 else min(size, self._size)
        found, self._rest = self._rest[:count], self._rest[count:]
        return found


@pytest.mark.parametrize("size", [1, 3, 1000, 10**9])
def test_raw_samples(size: int) -> None:
    integers = np.round(32767 * SAMPLES[:2000]).astype("<i2")
    found = list(raw_blocks(Trickle(integers.tobytes(), size)))
    assert np.array_equal(np.concatenate(found), integers)
    assert found[0].dtype == np.int16


@pytest.mark.parametrize("size", [100, 3001, 10**9])
@pytest.mark.parametrize("name", ["a.wav", "two.wav", "a.flac"])
def test_containers_lose_no_sample(name: str, size: int, tmp_path: Path) -> None:
    """What FFmpeg reads to find the format counts; with its option `nobuffer`, it was lost."""
    sound = np.stack([SAMPLES, 0.5 * SAMPLES], axis=1) if name == "two.wav" else SAMPLES
    soundfile.write(tmp_path / name, sound, 8000, subtype="PCM_16")
    expected, _ = soundfile.read(tmp_path / name, dtype="float32", always_2d=True)
    rate, blocks = container_blocks(Trickle((tmp_path / name).read_bytes(), size), "-")
    assert rate == 8000
    assert np.array_equal(np.concatenate(list(blocks)), expected.mean(axis=1))


def test_blocks_come_before_the_end(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", np.tile(SAMPLES, 10), 16000)
    pipe = Trickle((tmp_path / "a.wav").read_bytes(), 3200)
    _, blocks = container_blocks(pipe, "-")
    next(blocks)
    assert len(pipe._rest) > 800_000


def test_what_is_no_audio_is_named(tmp_path: Path) -> None:
    for content in (b"", b"text" * 1000):
        with pytest.raises(UserError, match=r"-: expected audio with a header, .* or raw samples with rate="):
            container_blocks(Trickle(content, 100), "-")
    soundfile.write(tmp_path / "none.wav", SAMPLES[:0], 16000)
    with pytest.raises(UserError, match=r"-: expected audio|-: no samples"):
        list(container_blocks(Trickle((tmp_path / "none.wav").read_bytes(), 100), "-")[1])
