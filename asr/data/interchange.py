"""Exports manifests as lhotse cuts, which lhotse converts for Kaldi and NeMo reads, and as Lhotse Shar.

Lhotse's export to Shar isn't used: it rounds samples to 16 bits, passes names of SPHERE files to a shell
unquoted, and leaves half a folder behind when the disk is full.
"""

import contextlib
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from asr.data.audio import read_part
from asr.data.audio_file import Samples, open_audio
from asr.data.manifest import write_cuts
from asr.errors import UserError, in_words
from asr.files import FULL

if TYPE_CHECKING:  # lhotse loads PyTorch, which takes seconds
    from lhotse import MonoCut
    from lhotse.audio.backend import AudioBackend
    from lhotse.shar import SharWriter


Write = Callable[[], Path]
SHARD_UTTERANCES = 1000  # lhotse's default
ROUNDING = 1e-9  # energy of rounding noise relative to the signal's: −90 dB


def lhotse_export(cuts: "Sequence[MonoCut]", folder: Path, split: str) -> Write:
    """Return a function that writes `folder/lhotse_cuts_<split>.jsonl.gz` with absolute audio paths."""

    def write() -> Path:
        path = folder / f"lhotse_cuts_{split}.jsonl.gz"
        write_cuts(cuts, path, base=None)
        return path

    return write


def shar_export(cuts: "Sequence[MonoCut]", folder: Path, split: str) -> Write:
    """Return a function that writes the folder `folder/split` in Lhotse Shar format.

    Audio becomes FLAC of 16 or 24 bits, or wav of floats where these would change it.

    Raises:
        UserError: the folder exists; from the function: audio that can't be read, or a full disk.
    """
    target = folder / split
    if target.exists():
        raise UserError(f"{target}: expected no such folder, found one (choose another out=)")

    def write() -> Path:
        from lhotse.audio.backend import get_current_audio_backend, set_current_audio_backend
        from lhotse.shar import SharWriter

        folder.mkdir(parents=True, exist_ok=True)
        before = get_current_audio_backend()
        set_current_audio_backend(_our_reader())
        try:
            with tempfile.TemporaryDirectory(dir=folder, prefix=f".{split}-") as unfinished:
                shards = Path(unfinished, split)
                shards.mkdir()
                writer = SharWriter(shards, {"recording": "flac"}, shard_size=SHARD_UTTERANCES)
                writer.writers["recording"] = _our_writer(shards)
                with contextlib.ExitStack() as open_files:
                    # One by one: if one can't be closed, SharWriter would leave the others open.
                    for part in writer.writers.values():
                        open_files.enter_context(part)
                    for cut in cuts:
                        _write_shar(writer, cut)
                shards.rename(target)
        except OSError as error:
            if error.errno in FULL and error.filename is None:
                error.filename = str(target)
            raise
        finally:
            set_current_audio_backend(before)
        return target

    return write


def _write_shar(writer: "SharWriter", cut: "MonoCut") -> None:
    try:
        writer.write(cut)
    except Exception as error:  # lhotse raises exceptions of many kinds
        if isinstance(error, OSError) and error.errno in FULL:
            raise
        source = cut.recording.sources[0].source
        raise UserError(f"utterance {cut.id}: cannot read {source}: {in_words(error)}") from error


def _encoded(samples: Samples) -> tuple[Any, str, str]:
    """Return samples (full scale 1) for libsndfile, and the format and subtype that preserve them.

    FLAC has 16 or 24 bits. More precise samples are rounded if the noise stays below −90 dB of the signal;
    samples above full scale, or too quiet for 24 bits, stay in floating point.
    """
    for bits in (16, 24):
        scaled = samples.astype(np.float64) * 2.0 ** (bits - 1)
        rounded = np.clip(np.rint(scaled), -(2.0 ** (bits - 1)), 2.0 ** (bits - 1) - 1)
        noise = float(((scaled - rounded) ** 2).sum())
        if noise <= (ROUNDING * float((scaled**2).sum()) if bits == 24 else 0.0):
            # Integers, because libsndfile multiplies floats by 2^15 − 1, but divides by 2^15.
            return rounded.astype(np.int32) << (32 - bits), "flac", f"PCM_{bits}"
    return samples, "wav", "FLOAT"


def _our_writer(folder: Path) -> Any:
    """Return a lhotse writer of audio shards that chooses the format for each utterance."""
    from lhotse.shar.writers import AudioTarWriter

    class OurWriter(AudioTarWriter):
        def write(self, key: str, value: Samples, *others: Any, **named: Any) -> None:
            _, self.format, _ = _encoded(value)  # lhotse takes the file's suffix from it, too
            super().write(key, value, *others, **named)

    return OurWriter(f"{folder}/recording.%06d.tar", SHARD_UTTERANCES)


def _our_reader() -> "AudioBackend":
    """Return our audio reader as a lhotse backend: lhotse's run sph2pipe in a shell, with unquoted names."""
    from lhotse.audio.backend import LibsndfileBackend

    class OurReader(LibsndfileBackend):  # the base class writes FLAC
        def read_audio(
            self, path_or_fd: str, offset: float = 0.0, duration: float | None = None, **others: Any
        ) -> tuple[Samples, int]:
            with open_audio(path_or_fd) as audio:
                return read_part(audio, offset, duration).T, audio.rate

        def save_audio(self, dest: Any, src: Any, sampling_rate: int, *_: Any, **others: Any) -> None:
            values, format, encoding = _encoded(src)
            super().save_audio(dest, values, sampling_rate, format, encoding)

    return OurReader()


# Each function checks a split completely before anything is written.
FORMATS: "dict[str, Callable[[Sequence[MonoCut], Path, str], Write]]" = {
    "lhotse": lhotse_export,
    "shar": shar_export,
}
