"""Makes lhotse recordings and cuts of utterances."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # lhotse loads PyTorch, which takes seconds
    from lhotse import MonoCut, Recording


def recording(name: str, path: str | Path, samples: int, sample_rate: int, channels: int = 1) -> "Recording":
    """Return a lhotse recording of an audio file; the utterances of one file can share it."""
    from lhotse import AudioSource, Recording

    source = AudioSource("file", list(range(channels)), str(path))
    return Recording(name, [source], sample_rate, samples, samples / sample_rate)


def utterance_cut(
    name: str,
    source: "Recording",
    text: str,
    speaker: str,
    *,
    start_s: float = 0.0,
    duration_s: float | None = None,
    channel: int = 0,
    language: str = "en",
) -> "MonoCut":
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
    from lhotse import MonoCut, SupervisionSegment

    duration_s = source.duration - start_s if duration_s is None else duration_s
    supervision = SupervisionSegment(
        name, source.id, 0.0, duration_s, channel, text=text, speaker=speaker, language=language
    )
    return MonoCut(name, start_s, duration_s, channel, [supervision], recording=source)
