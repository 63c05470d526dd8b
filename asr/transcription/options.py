"""Options of transcription, alignment and segmentation."""

from dataclasses import dataclass

from asr.config import option, refuse
from asr.errors import UserError
from asr.model.options import LoadOptions
from asr.preparation.options import TEXT_RULES
from asr.records.options import ShardOptions
from asr.search.options import LEAST_FIT, DecoderChoice

FORMATS = ("text", "json", "srt", "vtt", "textgrid")
MODES = ("auto", "onepass", "chunked")
LONGEST_CHUNK_S = 20.0  # also the assumed longest training audio of models that don't record it
# Ratio to the longest training audio above which mode=auto encodes in chunks: in one pass, a model makes
# several times as many errors in recordings much longer than its training audio.
LONGER_THAN_TRAINING = 1.5
LEAST_CHUNK_S = 0.1  # as long as a short word


@dataclass
class EncodingOptions:
    """How a long recording is encoded."""

    mode: str = option(
        "auto",
        help="onepass: encode the whole recording at once | chunked: in overlapping chunks | auto: in one "
        "pass up to 1.5 times the longest training audio, longer recordings in chunks",
        affects="result",
        choices=MODES,
    )
    chunk_s: float = option(
        0.0,
        help="length of a chunk; 0: length of the longest training audio, at most 20 s",
        affects="result",
        only=("mode", ("auto", "chunked")),
        unit="s",
        maximum=1e6,
    )
    overlap_s: float | None = option(
        None,
        help="overlap of successive chunks; null: a fifth of chunk_s",
        affects="result",
        only=("mode", ("auto", "chunked")),
        unit="s",
        maximum=1e6,
    )

    def check(self) -> None:
        """Raise UserError for chunks that are shorter than a word, or overlap by more than half."""
        if 0 < self.chunk_s < LEAST_CHUNK_S:
            raise UserError(f"chunk_s={self.chunk_s:g}: expected 0, or {LEAST_CHUNK_S:g} or more seconds")
        self._check_overlap(self.chunk_s or LONGEST_CHUNK_S)

    def in_chunks(self, duration_s: float, longest_s: float) -> bool:
        """Return whether to encode a recording in chunks, given the longest training audio (0: unknown)."""
        known_s = longest_s or LONGEST_CHUNK_S
        return self.mode == "chunked" or (
            self.mode == "auto" and duration_s > max(LONGER_THAN_TRAINING * known_s, self.chunk_s)
        )

    def sizes_s(self, longest_s: float) -> tuple[float, float]:
        """Return the chunk length and overlap in seconds, given the longest training audio (0: unknown).

        Raises:
            UserError: `overlap_s` is more than half of the default chunk.
        """
        chunk_s = self.chunk_s or min(LONGEST_CHUNK_S, longest_s or LONGEST_CHUNK_S)
        self._check_overlap(chunk_s)
        return chunk_s, chunk_s / 5 if self.overlap_s is None else self.overlap_s

    def _check_overlap(self, chunk_s: float) -> None:
        if (self.overlap_s or 0) > chunk_s / 2:
            raise UserError(
                f"overlap_s={self.overlap_s:g}: expected at most half of a chunk, chunk_s={chunk_s:g}"
            )


LOW_CONFIDENCE = 0.8


@dataclass
class TranscriptionConfig(EncodingOptions, DecoderChoice):
    """Options of transcription."""

    channels: str = option(
        "mix",
        help="mix: average the channels | separate: one transcript per channel",
        affects="result",
        choices=("mix", "separate"),
    )
    min_confidence: float = option(
        LOW_CONFIDENCE,
        help="mark recordings and segments with a lower confidence",
        affects="result",
        maximum=1,
    )

    def check(self) -> None:
        """Raise UserError if `beam.nbest` asks for an n-best list."""
        if (nbest := self.chosen_decoder.nbest) != 1:
            raise UserError(
                f"beam.nbest={nbest}: expected 1, because a transcript has one text; for n-best "
                "lists use asr decode"
            )


SUFFIXES = {"text": ".txt", "json": ".json", "srt": ".srt", "vtt": ".vtt", "textgrid": ".TextGrid"}


@dataclass
class TranscribeOptions(TranscriptionConfig, LoadOptions, ShardOptions):
    """Options of `asr transcribe`."""

    format: str = option("text", help=" | ".join(FORMATS), affects="result", choices=FORMATS)
    output: str = option(
        "",
        help="folder for one file per recording; empty: standard output, or beside each of several "
        "recordings for srt, vtt and textgrid",
        affects="place",
    )
    live: bool = option(
        False,
        help="recognise standard input as it arrives, and write each word once it is final; needs a model "
        "with bounded look-ahead",
        affects="result",
    )
    rate: int = option(
        0,
        help="sample rate of standard input without header, 16-bit samples of one channel; 0: audio with a "
        "header, such as WAV",
        affects="result",
        only=("live",),
        unit="Hz",
        maximum=1_000_000,
    )
    engine: str = option(
        "", help="ray: actors on a Ray cluster; empty: this process", affects="place", choices=("", "ray")
    )
    actors: int = option(
        1,
        help="processes, each with the model",
        affects="place",
        only=("engine", "ray"),
        minimum=1,
        maximum=100_000,
    )
    address: str = option(
        "",
        help="address of the cluster; empty: this machine",
        affects="place",
        only=("engine", "ray"),
    )

    def check(self) -> None:
        """Raise UserError if `output` isn't a folder, or other options contradict `engine` or `live`."""
        if self.output.endswith(tuple(SUFFIXES.values())):
            raise UserError(f"output={self.output}: expected a folder, found the name of a file")
        if self.engine and not self.output:
            raise UserError(f"engine={self.engine}: expected output=<folder>, found none")
        if self.engine:
            refuse(self, ("shard",), f"with engine={self.engine}")
        if self.live:
            unused = (
                "mode",
                "chunk_s",
                "overlap_s",
                "channels",
                "min_confidence",
                "output",
                "shard",
                "engine",
            )
            refuse(self, unused, "with live=true")
            if self.format not in ("text", "json"):
                raise UserError(f"format={self.format}: expected text or json with live=true")


@dataclass
class AlignOptions(EncodingOptions, LoadOptions, ShardOptions):
    """Options of `asr align`."""

    split: str = option("test", help="split to align, unless an audio file is given", affects="result")
    data: str = option(
        "", help="prepared folder or manifest; empty: the run's first training folder", affects="place"
    )
    text: str = option(
        "", help="transcript of the audio file; empty: the .txt file next to it", affects="result"
    )
    output: str = option(
        "", help="folder; empty: <run>/align/[<data>/]<split>, or the audio file's folder", affects="place"
    )
    min_fit: float = option(
        LEAST_FIT,
        help="minimum fit of transcripts to their audio; others are reported and left out",
        affects="result",
        maximum=1,
    )


@dataclass
class SegmentOptions(EncodingOptions, LoadOptions):
    """Options of `asr segment`."""

    output: str = option("", help="folder; empty: <recording>.segments beside the recording", affects="place")
    text: str = option(
        "spoken",
        help="how the model's texts were normalised: none | lower | words (lower-case, no punctuation) | "
        "spoken (as words, and numbers as they are spoken)",
        affects="result",
        choices=TEXT_RULES,
    )
    language: str = option(
        "", help="language code of the text, for numbers (empty: en) and case", affects="result"
    )
    longest_s: float = option(
        15.0, help="longer lines are divided at pauses", affects="result", unit="s", minimum=1
    )
    min_fit: float = option(
        LEAST_FIT, help="leave out and list utterances that fit less", affects="result", maximum=1
    )
