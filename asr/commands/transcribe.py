"""`asr transcribe`: transcribe audio files as text, JSON, subtitles or TextGrid."""

import json
import logging
import sys
from collections import Counter
from collections.abc import Callable, Container, Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import IO

from rich.progress import SpinnerColumn, TextColumn

from asr.attention import given_name
from asr.config import to_dict, values_affecting
from asr.console import grouped_warnings, progress
from asr.data.live import container_blocks, raw_blocks
from asr.errors import UserError
from asr.files import check_writable, digest, file_state, write_text
from asr.model.features import Normalisation
from asr.model.hub import local_folder
from asr.recognizer import Recognizer
from asr.records.job import Job, identity
from asr.records.options import parse_shard
from asr.records.results import Result, Results
from asr.search.decoder import Search
from asr.transcription.actors import LOST, on_actors
from asr.transcription.batches import groups_in_order
from asr.transcription.formats import write_transcript
from asr.transcription.options import SUFFIXES
from asr.transcription.options import TranscribeOptions as TranscribeOptions
from asr.transcription.posteriors import failure
from asr.transcription.stream import check_streamed
from asr.transcription.transcript import PAUSE_S, Outcome

log = logging.getLogger(__name__)

JOURNAL = ".transcribed.jsonl"


def run(paths: list[Path], options: TranscribeOptions) -> None:
    """Transcribe all files; errors are reported at the end."""
    if options.live:
        _live(paths, options)
        return
    files = _audio_files(paths[1:], options)
    if not files and len(paths) > 1:
        raise UserError(f"{paths[1]}: expected audio files, found none")
    if not files:
        raise UserError(
            "asr transcribe takes a run folder, checkpoint or published model and at least one audio file"
        )
    if options.shard and not options.output:
        raise UserError(f"shard={options.shard}: expected output=<folder>, where asr merge joins transcripts")
    odd = [_shown(file) for file, _ in files if _shown(file) != str(file)]
    if odd and (options.shard or options.engine):
        raise UserError(f"{odd[0]}: expected a UTF-8 file name with shard= or engine=")
    if options.engine and any(str(file) == "-" for file, _ in files):
        raise UserError("engine=ray: expected files, found - (standard input)")
    beside = len(files) > 1 and options.format not in ("text", "json") and not options.output
    folder = Path(options.output) if options.output else _root(Path(paths[1])) if beside else None
    if folder:
        _check_places(files)
    recognizer = _load(Path(paths[0]), options)
    work = _begin(recognizer, files, options, folder)
    done = frozenset(work.found)
    for position, (_, place) in enumerate(files if beside else []):
        if place.exists() and position not in done:
            raise UserError(f"{place}: expected no such file yet; write to a folder with output=<folder>")
    search = None
    if not options.engine:
        search, source = recognizer.search(options)
        if source:
            print(f"decoder weights from {source}", file=sys.stderr)
    # Encoding in one pass is one step: the spinner shows that work goes on.
    columns = SpinnerColumn(), TextColumn("{task.fields[file]}")
    with grouped_warnings(), progress(*columns, counts=False) as bars:
        task = bars.add_task("transcribing", total=len(files), completed=len(done), file=files[0][0].name)
        if options.engine:
            texts = _on_ray(Path(paths[0]), files, options, done)
        else:
            texts = _here(recognizer, search, files, options, done, partial(bars.advance, task))
        for position, text, error in texts:
            if position in done:
                continue
            place = files[position][1]
            result = Result(error=error)
            if text is not None and options.shard:
                result.files[str(place.relative_to(options.output))] = text
            elif text is not None and folder:
                _write(text, place)
            elif text is not None:
                sys.stdout.write(text)
                sys.stdout.flush()
            work.add(position, result)
            following = files[min(position + 1, len(files) - 1)][0].name
            bars.update(task, completed=len(work.found), file=following)
    if beside:
        print(f"transcripts are beside the recordings: {files[0][1]}, …", file=sys.stderr)
    if options.shard:
        work.job.finish({})
    work.job.close()
    work.report()


def _live(paths: list[Path], options: TranscribeOptions) -> None:
    """Write the words of standard input as they become final; after a pause, text goes on in a new line."""
    if [str(path) for path in paths[1:]] != ["-"]:
        raise UserError("live=true: expected a model and - (standard input)")
    pipe = _standard_input()
    recognizer = _load(paths[0], options)
    check_streamed(recognizer.model, str(paths[0]))
    rate, blocks = (options.rate, raw_blocks(pipe)) if options.rate else container_blocks(pipe, "-")
    last = None
    for word in recognizer.stream_as(options, rate).words(blocks):
        if options.format == "json":
            sys.stdout.write(json.dumps(asdict(word), ensure_ascii=False) + "\n")
        else:
            pause = last is not None and word.start_s - last.end_s >= PAUSE_S
            sys.stdout.write(("" if last is None else "\n" if pause else " ") + word.word)
        sys.stdout.flush()
        last = word
    if options.format == "text":
        sys.stdout.write("\n")


def _standard_input() -> IO[bytes]:
    if sys.stdin is None:
        raise UserError("-: expected audio on standard input, found it closed")
    return sys.stdin.buffer


def _begin(
    recognizer: Recognizer, files: list[tuple[Path, Path]], options: TranscribeOptions, folder: Path | None
) -> Results:
    """Return the results of an earlier start.

    Where transcripts are written to files, their hidden journal stays in `folder`. A recording isn't finished
    if it has changed since or its transcript is gone; standard input never is.
    """
    if not folder:
        return Results(Job(None, {"command": "transcribe"}), [""] * len(files))
    decoder, _ = recognizer.decoder(options)
    settings = values_affecting(options, "result") | {"beam": to_dict(decoder)}
    model = recognizer.model
    inputs = {"model": model.digest(), "device": model.device.type, "computed": model.precision.name}
    inputs |= decoder.digests()
    if shard := parse_shard(options.shard):
        inputs["files"] = digest("\0".join(str(file) for file, _ in files))
        job = Job.in_folder(folder, identity("transcribe", settings, **inputs), shard)
        return Results(job, [str(i) for i in range(len(files))])
    job = Job(folder / JOURNAL, identity("transcribe", settings, **inputs))
    keys = [
        f"{file_state(file.absolute())} {place.absolute()}" if str(file) != "-" else ""
        for file, place in files
    ]
    for key, (_, place) in zip(keys, files, strict=True):
        if not place.exists():
            job.stored.pop(key, None)
    return Results(job, keys)


def _here(
    recognizer: Recognizer,
    search: Search | None,
    files: list[tuple[Path, Path]],
    options: TranscribeOptions,
    done: Container[int],
    advance: Callable[[float], None],
) -> Iterator[tuple[int, str | None, str | None]]:
    """Yield the position, text and error of each file, transcribed in this process."""
    audio = [_standard_input() if str(file) == "-" else file for file, _ in files]
    shard = parse_shard(options.shard)
    outcomes = recognizer.transcribe_each(audio, options, search, shard=shard, done=done, advance=advance)
    for position, outcome in outcomes:
        several = len(files) > 1 or (isinstance(outcome, list) and len(outcome) > 1)
        table = several and options.format == "text" and not options.output
        yield position, *_text(outcome, _shown(files[position][0]), options, table=table)


def _on_ray(
    model: Path, files: list[tuple[Path, Path]], options: TranscribeOptions, done: Container[int]
) -> Iterator[tuple[int, str | None, str | None]]:
    """Yield the position, text and error of each file, transcribed by actors."""
    left = [position for position in range(len(files)) if position not in done]
    sizes = [files[i][0].stat().st_size if files[i][0].is_file() else 0 for i in left]
    groups = [
        [(left[i], files[left[i]][0].absolute(), str(files[left[i]][0])) for i in group]
        for group in groups_in_order(sizes)
    ]
    # Without a path: actors have another working folder, and get the code that is loaded here.
    options = replace(options, attention=options.attention and given_name(options.attention))
    found = on_actors(
        partial(_set_up, local_folder(model).absolute(), options),
        groups,
        actors=options.actors,
        address=options.address,
        resources={"num_gpus": 1} if options.device.startswith("cuda") else {"num_cpus": 1},
    )
    for (position, _, shown), result in found:
        yield position, *(result or (None, f"{shown}: {LOST}"))


def _set_up(
    model: Path, options: TranscribeOptions
) -> Callable[[list[tuple[int, Path, str]]], list[tuple[str | None, str | None]]]:
    """Load a model; return a function that transcribes a group of files: text or error of each."""
    recognizer = _load(model, options)
    search, _ = recognizer.search(options)

    def transcribe(group: list[tuple[int, Path, str]]) -> list[tuple[str | None, str | None]]:
        outcomes = recognizer.transcribe_each([path for _, path, _ in group], options, search)
        return [
            _text(outcome, shown, options)
            for (_, _, shown), (_, outcome) in zip(group, outcomes, strict=True)
        ]

    return transcribe


def _text(
    outcome: Outcome, file: str, options: TranscribeOptions, *, table: bool = False
) -> tuple[str | None, str | None]:
    """Return the text or the error of a recording; raise errors that are not the recording's.

    Args:
        outcome: transcripts of the channels, or an error.
        file: the recording as shown to users.
        options: format.
        table: write a line per channel with the names of file and channel.
    """
    if isinstance(outcome, Exception):
        return None, failure(outcome, file)
    if not table:
        return write_transcript(outcome, options.format, file), None
    channels = ["" if x.channel is None else f"\t{x.channel}" for x in outcome]
    return "".join(f"{file}{channel}\t{x.text}\n" for channel, x in zip(channels, outcome, strict=True)), None


def _shown(file: Path) -> str:
    """Return a path as valid text: bytes of its name that are not UTF-8 become escapes."""
    return str(file).encode(errors="backslashreplace").decode()


def _audio_files(paths: list[Path], options: TranscribeOptions) -> list[tuple[Path, Path]]:
    """Return (audio file, its transcript) of all files in `paths` and their folders.

    Transcripts and hidden files are left out. Subfolders are kept in the output folder. The transcript of
    `x.wav` is `x.srt`, or `x.wav.srt` where `x.flac` is transcribed, too.
    """
    files: list[tuple[Path, Path]] = []  # audio file, and its place with the audio's suffix
    for path in map(Path, paths):
        root = Path(options.output) if options.output else _root(path)
        if not path.is_dir():
            files.append((path, root / (path.name if str(path) != "-" else "standard-input")))
            continue
        found = sorted(file for file in path.rglob("*") if file.is_file())
        others = (*SUFFIXES.values(), ".ctm", ".jsonl")
        audio = [x for x in found if not x.name.startswith(".") and x.suffix not in others]
        if len(audio) < len(found):
            log.warning("%s: skipped %d transcripts or hidden files", path, len(found) - len(audio))
        files += [(file, root / file.relative_to(path)) for file in audio]
    same = Counter(place.with_suffix("") for _, place in files)
    stems = [place if same[place.with_suffix("")] > 1 else place.with_suffix("") for _, place in files]
    suffix = SUFFIXES[options.format]
    return [(file, stem.with_name(stem.name + suffix)) for (file, _), stem in zip(files, stems, strict=True)]


def _root(path: Path) -> Path:
    """Return the folder beside whose recordings transcripts are written."""
    return path if path.is_dir() else path.parent


def _check_places(files: list[tuple[Path, Path]]) -> None:
    """Raise UserError if a transcript can't be written, or is that of two recordings."""
    written: dict[Path, Path] = {}
    for file, place in files:
        if place in written:
            raise UserError(
                f"{written[place]} and {file}: expected different transcripts, found {place} for both"
            )
        written[place] = file
        check_writable(place)


def _load(path: Path, options: TranscribeOptions) -> Recognizer:
    recognizer = Recognizer.load_as(path, options)
    kind, normalisation = options.normalise, recognizer.model.normalisation
    if not kind:
        return recognizer
    if not isinstance(normalisation, Normalisation):
        raise UserError(f"normalise={kind}: expected a model of filter banks, found a pretrained encoder")
    if kind == "corpus" and normalisation.kind != kind:
        raise UserError("normalise=corpus: expected a model trained with it")
    normalisation.kind = kind
    return recognizer


def _write(text: str, place: Path) -> None:
    try:
        write_text(text, place)
    except OSError as error:
        raise UserError(f"{place}: can't be written ({error.strerror})") from None
