"""Output formats for transcripts: plain text, JSON, SubRip, WebVTT and Praat's TextGrid."""

import html
import json
from collections.abc import Sequence
from dataclasses import asdict

from asr.transcription.transcript import SEGMENT_S, Segment, Transcript, subtitle_lines

LINGER_S = 0.4  # maximum time that a subtitle stays after its last word

Interval = tuple[float, float, str]  # start and end in seconds, label


def write_transcript(transcripts: Sequence[Transcript], format_name: str, file: str) -> str:
    """Return the transcripts of an audio file as text in the given format.

    Args:
        transcripts: transcript of each channel.
        format_name: one of FORMATS.
        file: name of the audio file, for JSON.
    """
    match format_name:
        case "json":
            entries = [{"file": file, **asdict(transcript)} for transcript in transcripts]
            return "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries)
        case "srt":
            return "\n".join(
                f"{number}\n{_clock(start, ',')} --> {_clock(end, ',')}\n{text}\n"
                for number, (start, end, text) in enumerate(_cues(transcripts), start=1)
            )
        case "vtt":
            cues = [
                f"{_clock(start, '.')} --> {_clock(end, '.')}\n{html.escape(text, quote=False)}\n"
                for start, end, text in _cues(transcripts)
            ]
            return "\n".join(["WEBVTT\n", *cues])
        case "textgrid":
            return textgrid(_tiers(transcripts), max(transcript.duration_s for transcript in transcripts))
    return "".join(transcript.text + "\n" for transcript in transcripts)


def _cues(transcripts: Sequence[Transcript]) -> list[tuple[float, float, str]]:
    """Return start, end and lines of each subtitle; with several channels, each starts with a dash."""
    cues = []
    for transcript in transcripts:
        following = [segment.start_s for segment in transcript.segments[1:]] + [transcript.duration_s]
        for segment, next_s in zip(transcript.segments, following, strict=False):  # silence has no segments
            end_s = min(segment.end_s + LINGER_S, next_s, segment.start_s + SEGMENT_S)
            end_s = max(segment.end_s, end_s)
            cues.append((segment.start_s, end_s, _lines(segment, "- " if len(transcripts) > 1 else "")))
    return sorted(cues)


def _lines(segment: Segment, prefix: str) -> str:
    text = prefix + segment.text + (" [?]" if segment.low_confidence else "")
    return "\n".join(subtitle_lines(text))


def _clock(seconds: float, point: str) -> str:
    """Return hours:minutes:seconds with milliseconds.

    Example:
        >>> _clock(3661.5, ",")
        '01:01:01,500'
    """
    milliseconds = round(1000 * seconds)
    minutes, milliseconds = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{milliseconds // 1000:02}{point}{milliseconds % 1000:03}"


def _tiers(transcripts: Sequence[Transcript]) -> dict[str, list[Interval]]:
    tiers = {}
    for transcript in transcripts:
        suffix = "" if transcript.channel is None else f" {transcript.channel}"
        words = [word for segment in transcript.segments for word in segment.words]
        tiers["segments" + suffix] = [(s.start_s, s.end_s, s.text) for s in transcript.segments]
        tiers["words" + suffix] = [(w.start_s, w.end_s, w.word) for w in words]
    return tiers


def textgrid(tiers: dict[str, list[Interval]], duration_s: float) -> str:
    """Return interval tiers as a TextGrid (Praat manual, "TextGrid file formats", long text format).

    Args:
        tiers: intervals of each tier by name, sorted and not overlapping; gaps become empty intervals.
        duration_s: end of every tier.
    """
    ends = [interval[1] for intervals in tiers.values() for interval in intervals]
    end_s = round(max([duration_s, *ends]), 6)
    lines = ['File type = "ooTextFile"', 'Object class = "TextGrid"', "", "xmin = 0", f"xmax = {end_s}"]
    lines += ["tiers? <exists>", f"size = {len(tiers)}", "item []:"]
    for number, (name, intervals) in enumerate(tiers.items(), start=1):
        filled = _filled(intervals, end_s)
        lines += [
            f"    item [{number}]:",
            '        class = "IntervalTier"',
            f"        name = {_quoted(name)}",
        ]
        lines += ["        xmin = 0", f"        xmax = {end_s}", f"        intervals: size = {len(filled)}"]
        for i, (start, end, label) in enumerate(filled, start=1):
            lines += [f"        intervals [{i}]:", f"            xmin = {start}", f"            xmax = {end}"]
            lines += [f"            text = {_quoted(label)}"]
    return "\n".join(lines) + "\n"


def _filled(intervals: Sequence[Interval], end_s: float) -> list[Interval]:
    """Fill the gaps from 0 to the end with empty intervals, as Praat requires."""
    filled: list[Interval] = []
    reached = 0.0
    for start, end, label in intervals:
        if start > reached:
            filled.append((reached, start, ""))
        filled.append((max(start, reached), end, label))
        reached = end
    return [*filled, (reached, end_s, "")] if reached < end_s else filled


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'
