"""What a manifest may contain, decided slowly: by lhotse's objects instead of the JSON."""

from pathlib import Path
from typing import Any

from lhotse import MonoCut, Recording

from asr.data.audio_file import SAMPLE_RATES
from asr.data.entries import ROUNDING_S, TOLERANCE_S, check_audio, check_fields, parse_cut
from asr.errors import UserError
from asr.text.files import CONTROL


def is_accepted(entry: dict[str, Any], folder: Path) -> bool:
    """Return whether lhotse reads an entry as an utterance in plain files."""
    try:
        check_audio(entry.get("recording"), "")
        check_fields({key: value for key, value in entry.items() if key != "recording"}, "")
        cut = parse_cut(entry, folder)
        return _times_fit(cut) and _is_sound(cut.recording) and _files_exist(cut.recording) and _is_plain(cut)
    except (UserError, LookupError, TypeError, ValueError, AttributeError, AssertionError, OverflowError):
        return False


def _is_real(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _times_fit(cut: MonoCut) -> bool:
    return (
        _is_real(cut.start)
        and cut.start >= 0
        and _is_real(cut.duration)
        and cut.duration > 0
        and type(cut.channel) is int
        and cut.channel >= 0
        and cut.start + cut.duration <= cut.recording.duration + TOLERANCE_S
    )


def _is_sound(recording: Recording) -> bool:
    rate, samples, seconds = recording.sampling_rate, recording.num_samples, recording.duration
    return (
        type(rate) is type(samples) is int
        and SAMPLE_RATES[0] <= rate <= SAMPLE_RATES[1]
        and _is_real(seconds)
        and abs(samples / rate - seconds) < ROUNDING_S
        and isinstance(recording.id, str)
        and not CONTROL.search(recording.id)
    )


def _files_exist(recording: Recording) -> bool:
    files = [Path(source.source) for source in recording.sources]
    return all(file.is_file() and file.stat().st_size for file in files)


def _is_plain(cut: MonoCut) -> bool:
    [supervision] = cut.supervisions
    texts = [cut.id, *(x for x in (supervision.text, supervision.speaker) if x is not None)]
    return all(isinstance(x, str) and not CONTROL.search(x) for x in texts) and bool(
        (supervision.text or "").strip()
    )
