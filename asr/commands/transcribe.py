"""`asr transcribe`: transcribe audio files as text, JSON, subtitles or TextGrid."""

import logging
import sys
from dataclasses import dataclass
from pathlib import Path

from rich.progress import SpinnerColumn, TextColumn

from asr.config import option
from asr.console import progress
from asr.errors import UserError
from asr.files import check_writable, write_text
from asr.model.checkpoint import LoadOptions
from asr.model.features import NORMALISATIONS
from asr.recognizer import Recognizer
from asr.transcription.formats import FORMATS, write_transcript
from asr.transcription.run import TranscriptionConfig, is_out_of_memory
from asr.transcription.transcript import Transcript

POSITIONAL = "<run folder or checkpoint> <audio file or folder> …"
SUFFIXES = {"text": ".txt", "json": ".json", "srt": ".srt", "vtt": ".vtt", "textgrid": ".TextGrid"}

log = logging.getLogger(__name__)


@dataclass
class Options(TranscriptionConfig, LoadOptions):
    """Options of `asr transcribe`."""

    normalise: str = option(
        "",
        help=f"feature normalisation: {' | '.join(NORMALISATIONS)}; empty: the one used in training",
        choices=("", *NORMALISATIONS),
    )
    format: str = option("text", help=" | ".join(FORMATS), choices=FORMATS)
    output: str = option("", help="folder for one file per recording; empty: standard output")


def run(paths: list[Path], options: Options) -> None:
    """Transcribe all files; errors are reported at the end."""
    files = _audio_files(paths[1:], options)
    if not files:
        raise UserError("asr transcribe takes a run folder or checkpoint and at least one audio file")
    if len(files) > 1 and options.format not in ("text", "json") and not options.output:
        raise UserError(
            f"format={options.format} with {len(files)} files: expected a folder to write to, output=<folder>"
        )
    if options.output:
        _check_places(files)
    recognizer = _load(Path(paths[0]), options)
    decoder, source = recognizer.decoder(options)
    if source:
        print(f"decoder weights from {source}", file=sys.stderr)
    errors = []
    # A long recording is one step: the spinner shows that work goes on.
    with progress(SpinnerColumn(), TextColumn("{task.fields[file]}")) as bars:
        task = bars.add_task("transcribing", total=len(files), file="")
        for file, place in files:
            bars.update(task, file=file.name)
            try:
                transcripts = recognizer.transcribe_channels(file, options, decoder)
            except UserError as error:
                errors.append(error.line)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                errors.append(f"{file}: out of memory: use mode=chunked or a linear attention mechanism")
            else:
                _write(transcripts, file, place, options, single=len(files) == 1)
            bars.advance(task)
    if len(files) == 1 and errors:
        raise UserError(errors[0])
    for line in errors:
        print(f"asr: {line}", file=sys.stderr)
    if errors:
        raise UserError(f"{len(errors)} of {len(files)} files could not be transcribed")


def _audio_files(paths: list[Path], options: Options) -> list[tuple[Path, Path]]:
    """Return (audio file, its transcript in the output folder) of all files in `paths` and their folders.

    Transcripts and hidden files are left out. Subfolders are kept in the output folder.
    """
    suffix = SUFFIXES[options.format]
    files: list[tuple[Path, Path]] = []
    for path in map(Path, paths):
        if not path.is_dir():
            files.append((path, Path(options.output, path.name + suffix)))
            continue
        found = sorted(file for file in path.rglob("*") if file.is_file())
        others = (*SUFFIXES.values(), ".ctm", ".jsonl")
        audio = [x for x in found if not x.name.startswith(".") and x.suffix not in others]
        if len(audio) < len(found):
            log.warning("%s: skipped %d transcripts or hidden files", path, len(found) - len(audio))
        files += [(file, Path(options.output, f"{file.relative_to(path)}{suffix}")) for file in audio]
    return files


def _check_places(files: list[tuple[Path, Path]]) -> None:
    """Raise UserError if a transcript can't be written, or two transcripts have the same path."""
    written: dict[Path, Path] = {}
    for file, place in files:
        if place in written:
            raise UserError(
                f"{written[place]} and {file}: expected different transcripts, found {place} for both"
            )
        written[place] = file
        check_writable(place)


def _load(path: Path, options: Options) -> Recognizer:
    recognizer = Recognizer.load_as(path, options)
    trained = recognizer.model.config.features.normalise
    kind = options.normalise or trained
    if kind == "corpus" and trained != kind:
        raise UserError("normalise=corpus: expected a model trained with it")
    recognizer.model.normalisation.kind = kind
    return recognizer


def _write(transcripts: list[Transcript], file: Path, place: Path, options: Options, single: bool) -> None:
    if options.output:
        try:
            write_text(write_transcript(transcripts, options.format, str(file)), place)
        except OSError as error:
            raise UserError(f"{place}: can't be written ({error.strerror})") from None
    elif options.format == "text" and not (single and len(transcripts) == 1):
        for transcript in transcripts:
            channel = "" if transcript.channel is None else f"\t{transcript.channel}"
            print(f"{file}{channel}\t{transcript.text}", flush=True)
    else:
        sys.stdout.write(write_transcript(transcripts, options.format, str(file)))
        sys.stdout.flush()
