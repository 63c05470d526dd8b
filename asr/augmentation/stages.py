"""Stages that change the waveform of a training utterance, each drawn for an utterance and an epoch."""

import io
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import soundfile
from lhotse.augmentation.compress import MP3_SUPPORTED_SAMPLING_RATES
from lhotse.augmentation.utils import next_fast_len

from asr.augmentation.options import GENERATED, WaveformConfig
from asr.augmentation.room import room_response
from asr.augmentation.sources import all_sources, noise_part, whole_response
from asr.data.audio import convert
from asr.data.audio_file import Samples
from asr.errors import UserError

TELEPHONE_HZ = 8000
ROOM_T60_S = (0.2, 0.6)  # reverberation time of living rooms and offices
# Format and subtype of libsndfile; MP3 keeps the model's rate.
FORMATS = {
    "narrow": ("WAV", "PCM_16"),
    "mu-law": ("WAV", "ULAW"),
    "gsm": ("WAV", "GSM610"),
    "mp3": ("MP3", "MPEG_LAYER_III"),
}

# A stage returns the changed [samples] and what it did, in words; no words if it did nothing.
Stage = Callable[[Samples, np.random.Generator], tuple[Samples, str]]


class Waveforms:
    """The stages of augmentation, in their natural order: speaker, room, noise, gain, channel.

    Random draws depend only on (seed, epoch, utterance, stage), not on workers, batches or other stages.

    Args:
        config: options.
        sample_rate: sample rate of the audio in Hz.
        seed: random seed.
        longest_s: duration of the longest training utterance in s; impulse responses must not be longer.

    Attributes:
        sources: recordings to augment with, by option.

    Raises:
        UserError: a folder is missing or empty, a recording is unreadable or too long, or the sample rate is
            too low for a codec.
    """

    def __init__(
        self,
        config: WaveformConfig,
        sample_rate: int,
        seed: int = 0,
        *,
        longest_s: float = float("inf"),
    ) -> None:
        self.config, self.sample_rate, self.seed = config, sample_rate, seed
        self.sources = all_sources(config, sample_rate)
        # The position of a stage is part of its random key, so stages without effect keep their positions.
        self.stages: list[tuple[float, Stage | None]] = [
            (1.0, self._tempo if config.tempo_factors != [1.0] else None),
            (config.share, self._room(longest_s)),
            (config.share, self._noise()),
            (1.0, self._gain if config.volume_db else None),
            (config.share, self._codec if config.codecs else None),
        ]
        if config.codecs and sample_rate < TELEPHONE_HZ:
            raise UserError(
                f"augment.codecs={config.codecs}: expected features.sample_rate of at least "
                f"{TELEPHONE_HZ} Hz, found {sample_rate} Hz"
            )

    def apply(self, samples: Samples, epoch: int, utterance: int) -> tuple[Samples, list[str]]:
        """Return the [samples] of an utterance after all stages, and a description of each change."""
        done = []
        for number, (share, stage) in enumerate(self.stages):
            if stage is None:
                continue
            rng = np.random.default_rng([self.seed, epoch, utterance, number])
            if rng.random() < share:
                samples, words = stage(samples, rng)
                done += [words] if words else []
        return samples, done

    def _tempo(self, samples: Samples, rng: np.random.Generator) -> tuple[Samples, str]:
        factor = float(rng.choice(self.config.tempo_factors))
        return (
            (samples, "") if factor == 1 else (tempo(samples, self.sample_rate, factor), f"tempo {factor:g}")
        )

    def _room(self, longest_s: float) -> Stage | None:
        folder = self.config.impulse_responses
        if not folder:
            return None
        if folder == GENERATED:
            return self._generated_room
        option = "augment.impulse_responses"
        sources = self.sources[option]
        for source in sources:
            if (own_s := source.samples / source.rate) > longest_s:
                raise UserError(
                    f"{option}={folder}: expected responses of at most {longest_s:.2f} s, the longest "
                    f"training utterance; {source.path} has {own_s:.2f} s"
                )
            if not whole_response(source, self.sample_rate).any():
                raise UserError(f"{option}={folder}: expected an impulse response, {source.path} is silent")

        def convolve(samples: Samples, rng: np.random.Generator) -> tuple[Samples, str]:
            source = sources[int(rng.integers(len(sources)))]
            name = Path(source.path).name
            return reverberate(samples, whole_response(source, self.sample_rate)), f"response {name}"

        return convolve

    def _generated_room(self, samples: Samples, rng: np.random.Generator) -> tuple[Samples, str]:
        t60_s = draw(rng, ROOM_T60_S)
        return reverberate(samples, room_response(rng, self.sample_rate, t60_s)), f"room {t60_s:.2f} s"

    def _noise(self) -> Stage | None:
        folder = self.config.noise
        if not folder:
            return None
        sources = self.sources.get("augment.noise", [])
        for source in sources:
            if source.is_silent():
                raise UserError(f"augment.noise={folder}: expected noise, {source.path} is silent")

        def add(samples: Samples, rng: np.random.Generator) -> tuple[Samples, str]:
            snr_db = draw(rng, self.config.noise_snr_db)
            if not sources:
                noise = rng.standard_normal(len(samples), dtype=np.float32)
                return mix(samples, noise, snr_db), f"white noise {snr_db:.1f} dB"
            source = sources[int(rng.integers(len(sources)))]
            noise = noise_part(source, rng, len(samples), self.sample_rate)
            return mix(samples, noise, snr_db), f"noise {Path(source.path).name} {snr_db:.1f} dB"

        return add

    def _gain(self, samples: Samples, rng: np.random.Generator) -> tuple[Samples, str]:
        gain_db = rng.uniform(-self.config.volume_db, self.config.volume_db)
        return samples * np.float32(10 ** (gain_db / 20)), f"gain {gain_db:+.1f} dB"

    def _codec(self, samples: Samples, rng: np.random.Generator) -> tuple[Samples, str]:
        codec = str(rng.choice(self.config.codecs))
        return transcode(samples, self.sample_rate, codec), codec


def draw(rng: np.random.Generator, limits: Sequence[float]) -> float:
    """Return a number between two limits."""
    low, high = limits
    return float(rng.uniform(low, high))


def tempo(samples: Samples, sample_rate: int, factor: float) -> Samples:
    """Return [samples / factor], spoken faster at the same pitch, by FFmpeg's `atempo` (WSOLA).

    Args:
        samples: [samples].
        sample_rate: sample rate in Hz.
        factor: speed factor, 0.5 … 2.
    """
    import av  # takes 40 ms, and few trainings need it

    base = Fraction(1, sample_rate)
    graph = av.filter.Graph()
    source = graph.add_abuffer(sample_rate=sample_rate, format="flt", layout="mono", time_base=base)
    graph.link_nodes(source, graph.add("atempo", str(factor)), graph.add("abuffersink")).configure()
    frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples)[None], format="flt", layout="mono")
    frame.sample_rate, frame.time_base, frame.pts = sample_rate, base, 0
    graph.push(frame)
    graph.push(None)
    parts: list[Samples] = []
    while True:
        try:
            parts.append(graph.pull().to_ndarray()[0])  # type: ignore[union-attr, unused-ignore]
        except (av.error.EOFError, av.error.BlockingIOError):
            break
    return _of_length(np.concatenate([samples[:0], *parts]), round(len(samples) / factor))


def reverberate(samples: Samples, response: Samples) -> Samples:
    """Return the convolution with an impulse response [taps], as long and as loud as before.

    The result is aligned at the response's peak, as in Kaldi (`--shift-output`), so that labels keep their
    times.
    """
    # NumPy's transform, because PyTorch's may depend on the number of threads.
    size = next_fast_len(len(samples) + len(response) - 1)
    wet = np.fft.irfft(np.fft.rfft(samples, size) * np.fft.rfft(response, size), size)
    peak = int(abs(response).argmax())
    wet = wet[peak : peak + len(samples)]
    power = np.square(wet).mean()
    scale = np.sqrt(np.square(samples, dtype=np.float64).mean() / power) if power else 1.0
    return (wet * scale).astype(np.float32)


def mix(samples: Samples, noise: Samples, snr_db: float) -> Samples:
    """Return [samples] plus noise [samples] at an SNR of the mean powers; silent noise adds nothing."""
    speech_power, power = (float(np.square(x, dtype=np.float64).mean()) for x in (samples, noise))
    if not power:
        return samples
    return samples + noise * np.float32(np.sqrt(speech_power / power) / 10 ** (snr_db / 20))


def transcode(samples: Samples, sample_rate: int, codec: str) -> Samples:
    """Return [samples] after encoding and decoding; values beyond full scale are clipped.

    Args:
        samples: [samples].
        sample_rate: sample rate in Hz, at least 8 kHz.
        codec: `narrow` (16 bits at 8 kHz) | `mu-law` | `gsm` (both at 8 kHz) | `mp3`.
    """
    rate = TELEPHONE_HZ
    if codec == "mp3":
        rate = max(x for x in MP3_SUPPORTED_SAMPLING_RATES if x <= sample_rate)
    kind, subtype = FORMATS[codec]
    file = io.BytesIO()
    soundfile.write(file, convert(samples, sample_rate, rate), rate, subtype, format=kind)
    file.seek(0)
    decoded, _ = soundfile.read(file, dtype="float32")
    return _of_length(convert(decoded, rate, sample_rate), len(samples))


def _of_length(samples: Samples, length: int) -> Samples:
    """Cut [samples], or append zeros."""
    return np.pad(samples[:length], (0, max(0, length - len(samples))))
