"""`asr segment`: divide a long recording and its text into utterances to train on."""

import io
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import soundfile
from torch import Tensor

from asr.console import duration, grouped_warnings, progress
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


def run(paths: list[Path], options: SegmentOptions) -> None:
    """Write a FLAC and a text file per utterance, and list those left out."""
    if len(paths) != 3:
        raise UserError(
            "asr segment takes a run folder, checkpoint or published model, a recording and its text file"
        )
    if options.text == "spoken" and options.language:
        check_numbers(options.language)
    source, recording, text = map(Path, paths)
    folder = Path(options.output or recording.with_name(f"{recording.stem}.segments"))
    unfinished = folder / UNFINISHED  # left by a kill
    if folder.is_dir() and any(path != unfinished for path in folder.iterdir()):
        raise UserError(f"{folder}: expected a new or empty folder (output=)")
    lines = [(line, normalise(line, options.text, options.language)) for line in sentences(read_text(text))]
    unsaid = [x for line, _ in lines for x in not_said(line, options.language)]
    if options.text == "spoken" and unsaid:
        signs = " ".join(sorted(set(unsaid)))
        print(f"{text}: {len(unsaid)} signs without words are left out: {signs}", file=sys.stderr)
    if not any(spoken for _, spoken in lines):
        raise UserError(f"{text}: expected the words of the recording, found none")
    check_writable(folder / LEFT_OUT)
    recognizer = Recognizer.load_as(source, options)
    model = recognizer.model
    if model.config.topology != "ctc":
        raise UserError(f"{source}: expected a model with CTC's topology, found {model.config.topology}")
    with grouped_warnings(), progress(counts=False) as bars:
        task = bars.add_task("encoding", total=1.0)

        def search(_: Sequence[Channel], log_probs: list[Tensor], advance: Advance) -> list[list[TimedText]]:
            bars.update(task, description="aligning", total=None)
            return [
                segment(
                    log_probs[0],
                    [line for line in lines if line[1]],
                    recognizer.tokenizer,
                    model.frame_s,
                    options.longest_s,
                    options.min_fit,
                    str(recording),
                )
            ]

        pipeline = Pipeline(model, options, search)
        ((_, outcome),) = pipeline([FileSource(recording)], [[0]], lambda share: bars.advance(task, share))
    if isinstance(outcome, Exception):
        raise UserError(failure(outcome, str(recording)))
    ((channel, segmented),) = outcome
    samples, found = channel.samples, segmented or []
    kept = [utterance for utterance in found if utterance.fit >= options.min_fit]
    if not kept:
        best = max(utterance.fit for utterance in found)
        raise UserError(
            f"{text}: the text doesn't fit {recording}: expected utterances with a fit of at least "
            f"min_fit={options.min_fit:g}, found at most {best:.3f}"
        )
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    for utterance in kept:
        spoken = normalise(utterance.text, options.text, options.language)
        _write(utterance, spoken, samples, model.sample_rate, unfinished / _name(recording, utterance))
    others = [x for x in found if x.fit < options.min_fit]
    rows = [(f"{x.start_s:.2f}", f"{x.end_s:.2f}", f"{x.fit:.3f}", x.text) for x in others]
    write_table(unfinished / LEFT_OUT, ["start", "end", "fit", "text"], rows)
    for path in sorted(unfinished.iterdir()):
        path.rename(folder / path.name)
    unfinished.rmdir()
    kept_s, whole_s = sum(x.end_s - x.start_s for x in kept), len(samples) / model.sample_rate
    print(f"{folder}: {len(kept)} utterances, {duration(kept_s)} of {duration(whole_s)}")
    if rows:
        print(f"left out {len(rows)} that don't fit: {folder / LEFT_OUT}", file=sys.stderr)
    print(f"next: asr prepare folder audio={folder}")


def _name(recording: Path, utterance: TimedText) -> str:
    return f"{recording.stem}-{round(1000 * utterance.start_s):08d}"


def _write(utterance: TimedText, spoken: str, samples: Samples, rate: int, path: Path) -> None:
    """Write `<path>.flac`, and the text as it is spoken to `<path>.txt`."""
    own = samples[round(utterance.start_s * rate) : round(utterance.end_s * rate)]
    flac = io.BytesIO()  # libsndfile's own error doesn't say that the disk is full
    soundfile.write(flac, own, rate, "PCM_16", format="FLAC")
    path.with_name(f"{path.name}.flac").write_bytes(flac.getvalue())
    write_text(spoken + "\n", path.with_name(f"{path.name}.txt"))
