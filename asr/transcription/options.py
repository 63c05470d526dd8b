"""Options of transcription, alignment and segmentation."""

from dataclasses import dataclass, field

from asr.config import option, refuse
from asr.errors import UserError
from asr.model.options import NORMALISATIONS, LoadOptions
from asr.preparation.options import TEXT_RULES
from asr.search.options import LEAST_FIT, BeamConfig
from asr.shards import ShardOptions

FORMATS = ("text", "json", "srt", "vtt", "textgrid")
MODES = ("auto", "onepass", "chunked")
LONGEST_CHUNK_S = 20.0
LONGER_THAN_TRAINING = 1.5  # ratio to the longest training audio above which mode=auto encodes in chunks


@dataclass
class EncodingOptions:
    """How a long recording is encoded."""

    mode: str = option(
        "auto",
        help="onepass: encode the whole recording at once | chunked: in overlapping chunks | auto: in one "
        "pass up to 1.5 times the longest training audio, longer recordings in chunks",
        choices=MODES,
    )
    chunk_s: float = option(
        0.0,
        help="length of a chunk; 0: length of the longest training audio, at most 20 s",
        unit="s",
        maximum=1e6,
    )
    overlap_s: float | None = option(
        None, help="overlap of successive chunks; null: a fifth of chunk_s", unit="s", maximum=1e6
    )

    def check(self) -> None:
        """Raise UserError for options of chunks in one pass, or chunks that overlap by more than half."""
        if self.mode == "onepass":
            refuse(self, ("chunk_s", "overlap_s"), f"with mode={self.mode}")
        if self.chunk_s and (self.overlap_s or 0) > self.chunk_s / 2:
            raise UserError(f"overlap_s={self.overlap_s}: expected at most half of chunk_s={self.chunk_s}")

    def in_chunks(self, duration_s: float, longest_s: float) -> bool:
        """Return whether to encode a recording in chunks, given the longest training audio (0: unknown)."""
        known_s = longest_s or LONGEST_CHUNK_S
        return self.mode == "chunked" or (
            self.mode == "auto" and duration_s > max(LONGER_THAN_TRAINING * known_s, self.chunk_s)
        )

    def sizes_s(self, longest_s: float) -> tuple[float, float]:
        """Return the chunk length and overlap in seconds, given the longest training audio (0: unknown)."""
        chunk_s = self.chunk_s or min(LONGEST_CHUNK_S, longest_s or LONGEST_CHUNK_S)
        return chunk_s, min(chunk_s / 5 if self.overlap_s is None else self.overlap_s, chunk_s / 2)


LOW_CONFIDENCE = 0.8


@dataclass
class TranscriptionConfig(EncodingOptions):
    """Options of transcription."""

    channels: str = option(
        "mix",
        help="mix: average the channels | separate: one transcript per channel",
        choices=("mix", "separate"),
    )
    decoder: str = option("greedy", help="greedy | beam | prefix", choices=("greedy", "beam", "prefix"))
    beam: BeamConfig = field(default_factory=BeamConfig)
    min_confidence: float = option(
        LOW_CONFIDENCE, help="mark recordings and segments with a lower confidence", maximum=1
    )

    def check(self) -> None:
        """Raise UserError for an n-best list, or options that the decoder doesn't use."""
        self.beam.check_used(self.decoder)
        if self.beam.nbest != 1:
            raise UserError(
                f"beam.nbest={self.beam.nbest}: expected 1, because a transcript has one text; for n-best "
                "lists use asr decode"
            )


SUFFIXES = {"text": ".txt", "json": ".json", "srt": ".srt", "vtt": ".vtt", "textgrid": ".TextGrid"}


@dataclass
class TranscribeOptions(TranscriptionConfig, LoadOptions, ShardOptions):
    """Options of `asr transcribe`."""

    normalise: str = option(
        "",
        help=f"feature normalisation: {' | '.join(NORMALISATIONS)}; empty: the one used in training",
        choices=("", *NORMALISATIONS),
    )
    format: str = option("text", help=" | ".join(FORMATS), choices=FORMATS)
    output: str = option(
        "",
        help="folder for one file per recording; empty: standard output, or beside each of several "
        "recordings for srt, vtt and textgrid",
    )
    engine: str = option("", help="ray: actors on a Ray cluster; empty: this process", choices=("", "ray"))
    actors: int = option(1, help="engine=ray: processes, each with the model", minimum=1, maximum=100_000)
    address: str = option("", help="engine=ray: address of the cluster; empty: this machine")

    def check(self) -> None:
        """Raise UserError if `output` is no folder, or the engine can't do what is asked."""
        if self.output.endswith(tuple(SUFFIXES.values())):
            raise UserError(f"output={self.output}: expected a folder, found the name of a file")
        if not self.engine:
            refuse(self, ("actors", "address"), "without engine=ray")
        elif not self.output:
            raise UserError(f"engine={self.engine}: expected output=<folder>, found none")
        else:
            refuse(self, ("shard",), f"with engine={self.engine}")


@dataclass
class AlignOptions(EncodingOptions, LoadOptions, ShardOptions):
    """Options of `asr align`."""

    split: str = option("test", help="split to align, unless an audio file is given")
    data: str = option("", help="prepared folder or manifest; empty: the run's first training folder")
    text: str = option("", help="transcript of the audio file; empty: the .txt file next to it")
    output: str = option("", help="folder; empty: <run>/align/<split>, or the audio file's folder")
    min_fit: float = option(
        LEAST_FIT, help="report and leave out transcripts whose fit to the audio is lower", maximum=1
    )


@dataclass
class SegmentOptions(EncodingOptions, LoadOptions):
    """Options of `asr segment`."""

    output: str = option("", help="folder; empty: <recording>.segments beside the recording")
    text: str = option(
        "words",
        help="how the model's texts were normalised: none | lower | words (lower-case, no punctuation)",
        choices=TEXT_RULES,
    )
    longest_s: float = option(15.0, help="divide longer lines in their pauses", unit="s", minimum=1)
    min_fit: float = option(LEAST_FIT, help="leave out and list utterances that fit less", maximum=1)
