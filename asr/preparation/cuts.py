"""Audio headers, and lhotse recordings and cuts built from them."""

from pathlib import Path

import soundfile
from lhotse import AudioSource, MonoCut, Recording, SupervisionSegment

from asr.data.sphere import SUFFIXES, is_sphere, read_header
from asr.errors import UserError


def audio_facts(path: str | Path) -> tuple[int, int, int]:
    """Return (samples per channel, sample rate in Hz, channels) from an audio file's header.

    Raises:
        UserError: the file is missing, empty, or neither SPHERE nor readable by libsndfile.
    """
    if str(path).lower().endswith(SUFFIXES) and is_sphere(path):
        header = read_header(path)
        return header.samples, header.sample_rate, header.channels
    try:
        info = soundfile.info(str(path))
    except soundfile.LibsndfileError as error:
        if not Path(path).is_file():
            raise UserError(f"{path}: expected an audio file, found none") from None
        if Path(path).stat().st_size == 0:
            raise UserError(f"{path}: expected audio, found an empty file") from None
        reason = str(error).rpartition(": ")[2].rstrip(".")
        raise UserError(f"{path}: expected an audio file, found one that can't be read ({reason})") from None
    if info.frames <= 0:
        raise UserError(f"{path}: expected audio, found no samples")
    return info.frames, info.samplerate, info.channels


def recording(name: str, path: str | Path, samples: int, sample_rate: int, channels: int = 1) -> Recording:
    """Return a lhotse recording of an audio file; the utterances of one file can share it."""
    source = AudioSource("file", list(range(channels)), str(path))
    return Recording(name, [source], sample_rate, samples, samples / sample_rate)


def utterance_cut(
    name: str,
    source: Recording,
    text: str,
    speaker: str,
    *,
    start_s: float = 0.0,
    duration_s: float | None = None,
    channel: int = 0,
    language: str = "en",
) -> MonoCut:
    """Return the manifest entry of an utterance.

    Args:
        name: utterance id.
        source: recording that contains the utterance.
        text: normalised transcript.
        speaker: speaker id.
        start_s: start time in the recording.
        duration_s: duration; None: to the end of the recording.
        channel: channel of the recording.
        language: language code of the transcript.
    """
    duration_s = source.duration - start_s if duration_s is None else duration_s
    supervision = SupervisionSegment(
        name, source.id, 0.0, duration_s, channel, text=text, speaker=speaker, language=language
    )
    return MonoCut(name, start_s, duration_s, channel, [supervision], recording=source)
