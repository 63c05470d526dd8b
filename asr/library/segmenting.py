"""Dividing a long recording and its text into utterances to train on."""

import io
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import soundfile
from torch import Tensor

from asr.data.audio_file import Samples
from asr.errors import UserError
from asr.files import check_writable, write_text
from asr.preparation.outputs import UNFINISHED
from asr.recognizer import Recognizer
from asr.text.files import read_text, write_table
from asr.text.normalise import normalise, not_said
from asr.text.numbers import check_numbers
from asr.transcription.options import SegmentOptions
from asr.transcription.pipeline import Advance, Channel, Pipeline
from asr.transcription.posteriors import failure
from asr.transcription.segmentation import TimedText, segment, sentences
from asr.transcription.sources import FileSource

LEFT_OUT = "left_out.tsv"


@dataclass(frozen=True)
class Segmented:
    """Utterances that a segmentation has written and left out.

    Attributes:
        kept: utterances written, each as a FLAC and a text file.
        left_out: utterances that don't fit, listed in the file `LEFT_OUT`.
        duration_s: duration of the recording in seconds.
    """

    kept: list[TimedText]
    left_out: list[TimedText]
    duration_s: float


class Segmentation:
    """The work of `asr segment`.

    Args:
        model: run folder, checkpoint or published model.
        recording: audio file.
        text: text file with the words of the recording.
        options: options of the command.

    Attributes:
        folder: folder of the utterances.
        unsaid: signs in the text that have no spoken form.

    Raises:
        UserError: the folder isn't empty, the text has no words, or the language isn't known.
    """

    def __init__(self, model: Path, recording: Path, text: Path, options: SegmentOptions) -> None:
        self.model, self.recording, self.text, self.options = model, recording, text, options
        spoken = options.text == "spoken"
        if spoken and options.language:
            check_numbers(options.language)
        self.folder = Path(options.output or recording.with_name(f"{recording.stem}.segments"))
        self._unfinished = self.folder / UNFINISHED  # left by a kill
        if self.folder.is_dir() and any(path != self._unfinished for path in self.folder.iterdir()):
            raise UserError(f"{self.folder}: expected a new or empty folder (output=)")
        written = sentences(read_text(text))
        self.lines = [pair for pair in ((line, self._spoken(line)) for line in written) if pair[1]]
        self.unsaid = [x for line in written for x in not_said(line, options.language)] if spoken else []
        check_writable(self.folder / LEFT_OUT)

    def _spoken(self, line: str) -> str:
        return normalise(line, self.options.text, self.options.language)

    def run(self, advance: Callable[[float], None], align: Callable[[], None]) -> Segmented:
        """Align the text and write the utterances.

        Args:
            advance: called with the fraction of the encoding done since the last call.
            align: called when the alignment begins.

        Raises:
            UserError: the text has no words or doesn't fit the recording, or the model can't be used.
        """
        if not self.lines:
            raise UserError(f"{self.text}: expected the words of the recording, found none")
        recognizer, options = Recognizer.load_as(self.model, self.options), self.options
        model = recognizer.model
        if model.config.topology != "ctc":
            raise UserError(
                f"{self.model}: expected a model with CTC's topology, found {model.config.topology}"
            )

        def search(_: Sequence[Channel], log_probs: list[Tensor], advance: Advance) -> list[list[TimedText]]:
            align()
            return [
                segment(
                    log_probs[0],
                    self.lines,
                    recognizer.tokenizer,
                    model.frame_s,
                    options.longest_s,
                    options.min_fit,
                    str(self.recording),
                )
            ]

        pipeline = Pipeline(model, options, search)
        ((_, outcome),) = pipeline([FileSource(self.recording)], [[0]], advance)
        if isinstance(outcome, Exception):
            raise UserError(failure(outcome, str(self.recording)))
        ((channel, texts),) = outcome
        return self._write(texts or [], channel.samples, model.sample_rate)

    def _write(self, texts: list[TimedText], samples: Samples, rate: int) -> Segmented:
        """Write the utterances that fit, and the list of the others."""
        least = self.options.min_fit
        kept = [x for x in texts if x.fit >= least]
        others = [x for x in texts if x.fit < least]
        if not kept:
            best = max(x.fit for x in texts)
            raise UserError(
                f"{self.text}: the text doesn't fit {self.recording}: expected utterances with a fit of at "
                f"least min_fit={least:g}, found at most {best:.3f}"
            )
        shutil.rmtree(self._unfinished, ignore_errors=True)
        self._unfinished.mkdir(parents=True)
        for x in kept:
            path = self._unfinished / f"{self.recording.stem}-{round(1000 * x.start_s):08d}"
            part = samples[round(x.start_s * rate) : round(x.end_s * rate)]
            flac = io.BytesIO()  # libsndfile's error wouldn't tell that the disk is full
            soundfile.write(flac, part, rate, "PCM_16", format="FLAC")
            path.with_name(f"{path.name}.flac").write_bytes(flac.getvalue())
            write_text(self._spoken(x.text) + "\n", path.with_name(f"{path.name}.txt"))
        rows = [(f"{x.start_s:.2f}", f"{x.end_s:.2f}", f"{x.fit:.3f}", x.text) for x in others]
        write_table(self._unfinished / LEFT_OUT, ["start", "end", "fit", "text"], rows)
        for path in sorted(self._unfinished.iterdir()):
            path.rename(self.folder / path.name)
        self._unfinished.rmdir()
        return Segmented(kept, others, len(samples) / rate)
