"""`asr transcribe`: transcribe audio files as text, JSON, subtitles or TextGrid."""

import contextlib
import json
import logging
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.progress import SpinnerColumn, TextColumn

from asr.config import option, refuse, to_dict
from asr.console import grouped_warnings, progress
from asr.errors import UserError
from asr.files import check_writable, file_digest, names_digest, write_text
from asr.model.checkpoint import LoadOptions
from asr.model.features import NORMALISATIONS, Normalisation
from asr.parallel import Journal
from asr.preparation.fingerprint import file_state
from asr.recognizer import Recognizer
from asr.shards import Result, ShardOptions, Work, job, parse_shard, write_shard
from asr.transcription.actors import LOST, on_actors
from asr.transcription.encoding import TOO_LONG, is_out_of_memory
from asr.transcription.formats import FORMATS, write_transcript
from asr.transcription.many import Outcome, Source, group_positions
from asr.transcription.run import TranscriptionConfig
from asr.transcription.transcript import Transcript

POSITIONAL = "<run folder or checkpoint> <audio file, folder or - for standard input> …"
SUFFIXES = {"text": ".txt", "json": ".json", "srt": ".srt", "vtt": ".vtt", "textgrid": ".TextGrid"}

log = logging.getLogger(__name__)


@dataclass
class Options(TranscriptionConfig, LoadOptions, ShardOptions):
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
    engine: str = option(
        "", help="ray: actors on a Ray cluster, which skip finished files; empty: here", choices=("", "ray")
    )
    actors: int = option(1, help="engine=ray: processes, each with the model", minimum=1, maximum=100_000)
    address: str = option("", help="engine=ray: address of the cluster; empty: this machine")

    def check(self) -> None:
        """Raise UserError if the engine can't do what is asked, or its options have no effect."""
        LoadOptions.check(self)
        ShardOptions.check(self)
        if not self.engine:
            refuse(self, ("actors", "address"), "without engine=ray")
        elif not self.output:
            raise UserError(f"engine={self.engine}: expected output=<folder>, found none")
        else:
            refuse(self, ("shard",), f"with engine={self.engine}")


def run(paths: list[Path], options: Options) -> None:
    """Transcribe all files; errors are reported at the end."""
    files = _audio_files(paths[1:], options)
    if not files:
        raise UserError("asr transcribe takes a run folder or checkpoint and at least one audio file")
    if options.shard and not options.output:
        raise UserError(f"shard={options.shard}: expected output=<folder>, where asr merge joins transcripts")
    odd = [_shown(file) for file, _ in files if _shown(file) != str(file)]
    if odd and (options.shard or options.engine):
        raise UserError(f"{odd[0]}: expected a UTF-8 file name with shard= or engine=")
    beside = len(files) > 1 and options.format not in ("text", "json") and not options.output
    to_files = beside or bool(options.output)
    if to_files:
        _check_places(files, replace=not beside)
    if options.engine:
        _on_ray(Path(paths[0]), files, options)
        return
    recognizer = _load(Path(paths[0]), options)
    decoder, source = recognizer.decoder(options)
    if source:
        print(f"decoder weights from {source}", file=sys.stderr)
    shard = parse_shard(options.shard)
    results: dict[int, Result] = {}
    # Encoding in one pass is one step: the spinner shows that work goes on.
    columns = SpinnerColumn(), TextColumn("{task.fields[file]}")
    with grouped_warnings(), progress(*columns, counts=False) as bars:
        task = bars.add_task("transcribing", total=len(files), file=files[0][0].name)
        audio = [sys.stdin.buffer if str(file) == "-" else file for file, _ in files]
        advance = partial(bars.advance, task)
        outcomes = recognizer.transcribe_each(audio, options, decoder, shard=shard, advance=advance)
        for position, outcome in outcomes:
            file, place = files[position]
            results[position] = _result(outcome, file)
            if isinstance(outcome, list) and shard:
                text = write_transcript(outcome, options.format, _shown(file))
                results[position].files[str(place.relative_to(options.output))] = text
            elif isinstance(outcome, list):
                _write(outcome, file, place if to_files else None, options, single=len(files) == 1)
            bars.update(task, completed=len(results), file=files[min(position + 1, len(files) - 1)][0].name)
    inputs = {"files": names_digest(str(file) for file, _ in files), "device": recognizer.model.device.type}
    work = Work(_job(recognizer, options, to_dict(options), **inputs), len(files), results, [])
    if shard:
        work.job["model"] = recognizer.model.digest()
        write_shard(shard, Path(options.output), work)
    if beside:
        print(f"transcripts are beside the recordings: {files[0][1]}, …", file=sys.stderr)
    work.report()


def _on_ray(model: Path, files: list[tuple[Path, Path]], options: Options) -> None:
    """Transcribe files with actors; a journal in the output folder names those that are finished."""
    if any(str(file) == "-" for file, _ in files):
        raise UserError("engine=ray: expected files, found - (standard input)")
    folder = Path(options.output)
    settings = to_dict(options) | {"actors": 0, "address": "", "output": "", "device": ""}
    recognizer = _load(model, options)
    identity = _job(recognizer, options, settings, model=recognizer.model.digest())
    journal = Journal(folder / ".transcribed.jsonl", json.dumps(identity, sort_keys=True))
    results: dict[int, Result] = {}
    keys = [file_state(file) for file, _ in files]
    left = [i for i, (_, place) in enumerate(files) if keys[i] not in journal.stored or not place.exists()]
    if done := len(files) - len(left):
        print(f"{folder}: {done} of {len(files)} files are finished", file=sys.stderr)
    sizes = [files[i][0].stat().st_size if files[i][0].is_file() else 0 for i in left]
    groups = [
        [(left[i], files[left[i]][0].absolute(), str(files[left[i]][0])) for i in group]
        for group in group_positions([Source("", size, list) for size in sizes])
    ]
    resources = {"num_gpus": 1} if options.device.startswith("cuda") else {"num_cpus": 1}
    found = on_actors(
        partial(_set_up, model.absolute(), options),
        groups,
        actors=options.actors,
        address=options.address,
        resources=resources,
    )
    with contextlib.closing(journal), progress() as bars:
        task = bars.add_task("transcribing", total=len(files), completed=len(files) - len(left))
        for (position, _, shown), result in found:
            text, error = result or (None, f"{shown}: {LOST}")
            results[position] = Result(error=error)
            if text is not None:
                write_text(text, files[position][1])
                journal.add(keys[position], None)
            bars.advance(task)
    Work(identity, len(files), results, []).report()


def _job(
    recognizer: Recognizer, options: Options, settings: Mapping[str, Any], **inputs: str
) -> dict[str, Any]:
    """Return what identifies the work, with the weights that the search uses and the language model."""
    beam, _ = recognizer.weights(options)
    if beam.lm:
        inputs["lm"] = file_digest(Path(beam.lm))
    return job("transcribe", {**settings, "beam": to_dict(beam)}, **inputs)


def _set_up(
    model: Path, options: Options
) -> Callable[[list[tuple[int, Path, str]]], list[tuple[str | None, str | None]]]:
    """Load a model; return a function that transcribes a group of files: text or error of each."""
    recognizer = _load(model, options)
    decoder, _ = recognizer.decoder(options)

    def transcribe(group: list[tuple[int, Path, str]]) -> list[tuple[str | None, str | None]]:
        paths = [path for _, path, _ in group]
        found = []
        for (_, path, shown), (_, outcome) in zip(
            group, recognizer.transcribe_each(paths, options, decoder), strict=True
        ):
            error = _result(outcome, path).error
            text = write_transcript(outcome, options.format, shown) if isinstance(outcome, list) else None
            found.append((text, error))
        return found

    return transcribe


def _shown(file: Path) -> str:
    """Return a path as valid text: bytes of its name that are not UTF-8 become escapes."""
    return str(file).encode(errors="backslashreplace").decode()


def _result(outcome: Outcome, file: Path) -> Result:
    """Return the error of a recording, if it has one; raise errors that are not the recording's."""
    if isinstance(outcome, list):
        return Result()
    if isinstance(outcome, UserError):
        return Result(error=outcome.line)
    if not is_out_of_memory(outcome):
        raise outcome
    return Result(error=f"{file}: {TOO_LONG}")


def _audio_files(paths: list[Path], options: Options) -> list[tuple[Path, Path]]:
    """Return (audio file, its transcript) of all files in `paths` and their folders.

    Transcripts and hidden files are left out. Subfolders are kept in the output folder. The transcript of
    `x.wav` is `x.srt`, or `x.wav.srt` where `x.flac` is transcribed, too.
    """
    files: list[tuple[Path, Path]] = []  # audio file, and its place with the audio's suffix
    for path in map(Path, paths):
        root = Path(options.output) if options.output else path if path.is_dir() else path.parent
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


def _check_places(files: list[tuple[Path, Path]], *, replace: bool) -> None:
    """Raise UserError if a transcript can't be written or would replace another, or a file that is there."""
    written: dict[Path, Path] = {}
    for file, place in files:
        if place in written:
            raise UserError(
                f"{written[place]} and {file}: expected different transcripts, found {place} for both"
            )
        written[place] = file
        if place.exists() and not replace:
            raise UserError(f"{place}: expected no such file yet; write to a folder with output=<folder>")
        check_writable(place)


def _load(path: Path, options: Options) -> Recognizer:
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


def _write(
    transcripts: list[Transcript], file: Path, place: Path | None, options: Options, single: bool
) -> None:
    if place:
        try:
            write_text(write_transcript(transcripts, options.format, _shown(file)), place)
        except OSError as error:
            raise UserError(f"{place}: can't be written ({error.strerror})") from None
    elif options.format == "text" and not (single and len(transcripts) == 1):
        for transcript in transcripts:
            channel = "" if transcript.channel is None else f"\t{transcript.channel}"
            print(f"{_shown(file)}{channel}\t{transcript.text}", flush=True)
    else:
        sys.stdout.write(write_transcript(transcripts, options.format, _shown(file)))
        sys.stdout.flush()
