"""`asr transcribe`: transcribe audio files as text, JSON, subtitles or TextGrid."""

import json
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path

from rich.progress import SpinnerColumn, TextColumn

from asr.console import grouped_warnings, progress
from asr.errors import UserError
from asr.library.transcribing import Transcription, live_words
from asr.transcription.options import TranscribeOptions
from asr.transcription.transcript import PAUSE_S


def run(paths: list[Path], options: TranscribeOptions) -> None:
    """Transcribe all files; errors are reported at the end."""
    if options.live:
        _live(paths, options)
        return
    work = Transcription(Path(paths[0]), [Path(path) for path in paths[1:]], options)
    if work.weights_from:
        print(f"decoder weights from {work.weights_from}", file=sys.stderr)
    # Encoding in one pass is a single step of the progress: the spinner shows that work continues.
    columns = SpinnerColumn(), TextColumn("{task.fields[file]}")
    names = [file.path.name for file in work.files]
    with grouped_warnings(), progress(*columns, counts=False) as bars:
        task = bars.add_task("transcribing", total=len(names), completed=len(work.done), file=names[0])
        for position, text in work.run(partial(bars.advance, task)):
            sys.stdout.write(text)
            sys.stdout.flush()
            following = names[min(position + 1, len(names) - 1)]
            bars.update(task, completed=len(work.results.found), file=following)
    if work.beside:
        print(f"transcripts are beside the recordings: {work.files[0].transcript}, …", file=sys.stderr)
    if options.output and not options.shard:
        print(f"transcripts: {options.output}", file=sys.stderr)
    work.finish()


def _live(paths: list[Path], options: TranscribeOptions) -> None:
    """Print the words of standard input as they become final; text after a pause begins a new line."""
    if [str(path) for path in paths[1:]] != ["-"]:
        raise UserError("live=true: expected a model and - (standard input)")
    last = None
    for word in live_words(Path(paths[0]), options):
        if options.format == "json":
            sys.stdout.write(json.dumps(asdict(word), ensure_ascii=False) + "\n")
        else:
            pause = last is not None and word.start_s - last.end_s >= PAUSE_S
            sys.stdout.write(("" if last is None else "\n" if pause else " ") + word.word)
        sys.stdout.flush()
        last = word
    if options.format == "text":
        sys.stdout.write("\n")
