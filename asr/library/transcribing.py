"""Transcription of the audio files that aren't finished, in this process or on a Ray cluster; live audio."""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO

from asr.attention import given_name
from asr.config import to_dict, values_affecting
from asr.data.live import container_blocks, raw_blocks
from asr.errors import UserError
from asr.files import digest, file_state, write_text
from asr.model.hub import local_folder
from asr.recognizer import Recognizer
from asr.records.job import Job, identity
from asr.records.options import parse_shard
from asr.records.results import Result, Results
from asr.search.path import TimedWord
from asr.transcription.actors import LOST, on_actors
from asr.transcription.batches import groups_in_order
from asr.transcription.formats import write_transcript
from asr.transcription.options import TranscribeOptions
from asr.transcription.places import audio_files, check_places, root_of
from asr.transcription.posteriors import failure, identity_of
from asr.transcription.stream import check_streamed
from asr.transcription.transcript import Outcome

JOURNAL = ".transcribed.jsonl"  # hidden, beside the transcripts
Text = tuple[str | None, str | None]  # a transcript, or its error message


class Transcription:
    """The work of `asr transcribe`.

    Args:
        model: run folder, checkpoint or published model.
        paths: audio files, folders, or `-` for standard input.
        options: options of the command.

    Attributes:
        files: audio files with the paths of their transcripts.
        beside: whether transcripts are written beside the recordings.
        results: results by position of the file, including those of an earlier start.
        weights_from: source of the decoder's tuned weights; None: there are none.

    Raises:
        UserError: there are no files, options contradict each other, transcripts would have the same path,
            or the model can't be loaded.
    """

    def __init__(self, model: Path, paths: Sequence[Path], options: TranscribeOptions) -> None:
        self.model, self.options = model, options
        self.files = audio_files(paths, options.output, options.format)
        if not self.files:
            raise UserError(f"{paths[0]}: expected audio files, found none")
        self._check_names()
        text = options.format in ("text", "json")
        self.beside = len(self.files) > 1 and not text and not options.output
        self.folder = Path(options.output) if options.output else root_of(paths[0]) if self.beside else None
        if self.folder:
            check_places(self.files)
        # A folder with the journal of any model is one of transcripts.
        new = self.folder and not options.shard and not (self.folder / JOURNAL).exists()
        self.recognizer = Recognizer.load_as(model, options)
        self.results = self._begin()
        self.done = frozenset(self.results.found)
        for position, file in enumerate(self.files if self.beside or new else []):
            if file.transcript.exists() and position not in self.done and not file.is_input:
                where = f"{'another' if options.output else 'a'} folder with output=<folder>"
                raise UserError(f"{file.transcript}: expected no such file yet; write to {where}")
        if new:
            self.results.job.begin()
        self.search, self.weights_from = None, None
        if not options.engine:  # with an engine, each actor loads it
            self.search, self.weights_from = self.recognizer.search(options)

    def _check_names(self) -> None:
        """Raise UserError for files that can't be named in a shard or to an actor."""
        options = self.options
        if options.shard and not options.output:
            raise UserError(
                f"shard={options.shard}: expected output=<folder>, where asr merge joins transcripts"
            )
        odd = [file.name for file in self.files if file.name != str(file.path)]
        if odd and (options.shard or options.engine):
            raise UserError(f"{odd[0]}: expected a UTF-8 file name with shard= or engine=")
        if options.engine and any(file.is_input for file in self.files):
            raise UserError("engine=ray: expected files, found - (standard input)")

    def _begin(self) -> Results:
        """Return the results of an earlier start.

        If transcripts are written to files, a hidden journal stays beside them. A recording is transcribed
        again if it has changed or its transcript has been deleted; standard input always is.
        """
        if not self.folder:
            return Results(Job(None, {"command": "transcribe"}), [""] * len(self.files))
        decoder, _ = self.recognizer.decoder(self.options)
        settings = values_affecting(self.options, "result") | {"beam": to_dict(decoder)}
        inputs = identity_of(self.recognizer.model) | decoder.digests()
        if shard := parse_shard(self.options.shard):
            inputs["files"] = digest("\0".join(str(file.path) for file in self.files))
            job = Job.in_folder(self.folder, identity("transcribe", settings, **inputs), shard)
            return Results(job, [str(i) for i in range(len(self.files))])
        job = Job(self.folder / JOURNAL, identity("transcribe", settings, **inputs))
        keys = [
            "" if file.is_input else f"{file_state(file.path.absolute())} {file.transcript.absolute()}"
            for file in self.files
        ]
        for key, file in zip(keys, self.files, strict=True):
            if not file.transcript.exists():
                job.stored.pop(key, None)
        return Results(job, keys)

    def run(self, advance: Callable[[float], None]) -> Iterator[tuple[int, str]]:
        """Transcribe the files left; yield each file's position and the text for standard output.

        Args:
            advance: called with the fraction of a file done since the last call.
        """
        texts = self._on_ray() if self.options.engine else self._here(advance)
        for position, (text, error) in texts:
            if position in self.done:  # read again, because it shares a group with others
                continue
            place, result = self.files[position].transcript, Result(error=error)
            if text is not None and self.options.shard:
                result.files[str(place.relative_to(self.options.output))] = text
            elif text is not None and self.folder:
                _write(text, place)
            self.results.add(position, result)
            yield position, "" if self.folder else text or ""

    def finish(self) -> None:
        """Close the journal, and raise UserError if files could not be transcribed."""
        if self.options.shard:
            self.results.job.finish({})
        self.results.job.close()
        self.results.report()

    def _here(self, advance: Callable[[float], None]) -> Iterator[tuple[int, Text]]:
        """Yield the position and result of each file, transcribed in this process."""
        audio = [_standard_input() if file.is_input else file.path for file in self.files]
        shard = parse_shard(self.options.shard)
        outcomes = self.recognizer.transcribe_each(
            audio, self.options, self.search, shard=shard, done=self.done, advance=advance
        )
        for position, outcome in outcomes:
            several = len(self.files) > 1 or (isinstance(outcome, list) and len(outcome) > 1)
            table = several and self.options.format == "text" and not self.options.output
            yield position, _text(outcome, self.files[position].name, self.options, table=table)

    def _on_ray(self) -> Iterator[tuple[int, Text]]:
        """Yield the position and result of each file, transcribed by actors."""
        left = [(i, file.path) for i, file in enumerate(self.files) if i not in self.done]
        sizes = [path.stat().st_size if path.is_file() else 0 for _, path in left]
        items = [(i, path.absolute(), str(path)) for i, path in left]
        groups = [[items[i] for i in group] for group in groups_in_order(sizes)]
        # Without its path: actors have another working folder, and receive the code that is loaded here.
        given = self.options
        options = replace(given, attention=given.attention and given_name(given.attention))
        outcomes = on_actors(
            partial(_set_up, local_folder(self.model).absolute(), options),
            groups,
            actors=options.actors,
            address=options.address,
            resources={"num_gpus": 1} if options.device.startswith("cuda") else {"num_cpus": 1},
        )
        for (position, _, shown), result in outcomes:
            yield position, result or (None, f"{shown}: {LOST}")


def _set_up(model: Path, options: TranscribeOptions) -> Callable[[list[tuple[int, Path, str]]], list[Text]]:
    """Load a model; return a function that transcribes a group of files."""
    recognizer = Recognizer.load_as(model, options)
    search, _ = recognizer.search(options)

    def transcribe(group: list[tuple[int, Path, str]]) -> list[Text]:
        outcomes = recognizer.transcribe_each([path for _, path, _ in group], options, search)
        return [
            _text(outcome, shown, options)
            for (_, _, shown), (_, outcome) in zip(group, outcomes, strict=True)
        ]

    return transcribe


def live_words(model: Path, options: TranscribeOptions) -> Iterator[TimedWord]:
    """Return the words of standard input as they become final.

    Raises:
        UserError: standard input is closed, or the look-ahead of model or search is unbounded.
    """
    pipe = _standard_input()
    recognizer = Recognizer.load_as(model, options)
    check_streamed(recognizer.model, str(model))
    rate, blocks = (options.rate, raw_blocks(pipe)) if options.rate else container_blocks(pipe, "-")
    return recognizer.stream_as(options, rate).words(blocks)


def _standard_input() -> IO[bytes]:
    if sys.stdin is None:
        raise UserError("-: expected audio on standard input, found it closed")
    return sys.stdin.buffer


def _text(outcome: Outcome, file: str, options: TranscribeOptions, *, table: bool = False) -> Text:
    """Return the text or the error of a recording; raise errors that have other causes.

    Args:
        outcome: transcripts of the channels, or an error.
        file: name of the recording.
        options: options with the format.
        table: return a line per channel with the names of file and channel.
    """
    if isinstance(outcome, Exception):
        return None, failure(outcome, file)
    if not table:
        return write_transcript(outcome, options.format, file), None
    channels = ["" if x.channel is None else f"\t{x.channel}" for x in outcome]
    return "".join(f"{file}{channel}\t{x.text}\n" for channel, x in zip(channels, outcome, strict=True)), None


def _write(text: str, place: Path) -> None:
    try:
        write_text(text, place)
    except OSError as error:
        raise UserError(f"{place}: can't be written ({error.strerror})") from None
