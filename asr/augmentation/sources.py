"""Folders of recordings to augment with: noises and impulse responses."""

import functools
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from asr.augmentation.options import WaveformConfig
from asr.data.audio import convert, notice_resampling
from asr.data.audio_file import Samples, Undecodable, checked_samples, is_silent, open_audio
from asr.data.facts import header_facts, recordings_among
from asr.errors import UserError
from asr.files import digest, near_path


@dataclass(frozen=True)
class Source:
    """A recording to augment with.

    Attributes:
        path: audio file.
        samples: samples per channel.
        rate: sample rate in Hz.
    """

    path: str
    samples: int
    rate: int

    def part(self, start: int, samples: int, sample_rate: int) -> Samples:
        """Return the mean of the channels, [samples], resampled.

        Args:
            start: first sample, at the file's rate.
            samples: number of samples at the file's rate.
            sample_rate: sample rate of the result in Hz.

        Raises:
            UserError: the file can't be decoded, or has samples that are not finite.
        """
        try:
            with open_audio(self.path) as file:
                if start:
                    file.seek(start)
                part = checked_samples(file.read(samples), self.path, start)
        except Undecodable as error:
            raise UserError(f"{self.path}: cannot read ({error})") from None
        return convert(np.ascontiguousarray(part.mean(axis=1)), self.rate, sample_rate)

    def is_silent(self) -> bool:
        """Return whether all samples are below −80 dB; raise UserError if the file can't be decoded."""
        try:
            with open_audio(self.path) as file:
                return all(map(is_silent, file.blocks(self.rate)))
        except Undecodable as error:
            raise UserError(f"{self.path}: cannot read ({error})") from None


def find_sources(option: str, folder: str, sample_rate: int) -> list[Source]:
    """Return the recordings in a folder and those below, sorted by path.

    Args:
        option: name of the option, for messages.
        folder: value of the option.
        sample_rate: sample rate of the model in Hz.

    Raises:
        UserError: the folder is missing or has no recordings, or a recording can't be read.
    """
    where = f"{option}={folder}"
    if not Path(folder).is_dir():
        raise UserError(f"{where}: expected a folder of recordings, found no such folder{near_path(folder)}")
    paths = list(recordings_among(sorted(map(str, Path(folder).rglob("*")))))
    if not paths:
        raise UserError(f"{where}: expected recordings, found none")
    sources = []
    for path in paths:
        try:
            samples, rate, _ = header_facts(path)
        except UserError as error:
            raise UserError(f"{where}: {error}") from None
        if rate != sample_rate:
            notice_resampling([rate], sample_rate)
        sources.append(Source(path, samples, rate))
    return sources


def sources_digests(config: WaveformConfig, sources: dict[str, list[Source]]) -> dict[str, str]:
    """Return a hash of the file names, lengths and rates in each folder, by option.

    Samples aren't hashed: they may take many gigabytes.

    Args:
        config: options.
        sources: recordings by option; see `all_sources`.
    """
    return {
        option: digest(
            "\n".join(f"{Path(x.path).relative_to(folder)} {x.samples} {x.rate}" for x in sources[option])
        )
        for option, folder in config.folders.items()
    }


def all_sources(config: WaveformConfig, sample_rate: int) -> dict[str, list[Source]]:
    """Return the recordings of each folder, by option; see `find_sources`."""
    return {option: find_sources(option, folder, sample_rate) for option, folder in config.folders.items()}


def noise_part(source: Source, rng: np.random.Generator, samples: int, sample_rate: int) -> Samples:
    """Return [samples] of a noise, from a random position, repeated if it is too short."""
    wanted = math.ceil(samples * source.rate / sample_rate) + 1
    start = int(rng.integers(max(1, source.samples - wanted + 1)))
    return np.resize(source.part(start, wanted, sample_rate), samples)


@functools.lru_cache(maxsize=256)
def whole_response(source: Source, sample_rate: int) -> Samples:
    """Return the [samples] of an impulse response."""
    return source.part(0, source.samples, sample_rate)
