"""`asr transcribe`: audio files to text."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import track

from asr.config import option
from asr.errors import UserError
from asr.recognizer import Recognizer
from asr.search.decoder import BeamConfig

HELP = "transcribe audio files: asr transcribe exp/demo/full recording.wav"
POSITIONAL = "<run folder or checkpoint> <audio file> …"
FORMATS = ("text", "json")


@dataclass
class Options:
    """How to transcribe."""

    attention: str = option("", help="attention mechanism; empty: the one of training")
    backend: str = option("auto", help="auto | reference | native")
    decoder: str = option("greedy", help="greedy | beam")
    beam: BeamConfig = field(default_factory=BeamConfig)
    checkpoint: str = option("auto", help="auto | average | best | last, or a file in checkpoints/")
    device: str = option("cpu", help="cpu | cuda")
    format: str = option("text", help=f"{' | '.join(FORMATS)}: a line for each file on standard output")


def run(paths: list[Path], options: Options) -> None:
    """Print the text of every file; files that can't be read are reported at the end."""
    if len(paths) < 2:
        raise UserError("asr transcribe takes a run folder or checkpoint and at least one audio file")
    if options.format not in FORMATS:
        raise UserError(f"format={options.format!r}: expected one of {FORMATS}")
    recognizer = Recognizer.load(paths[0], checkpoint=options.checkpoint, device=options.device)
    recognizer.set_attention(options.attention or recognizer.config.attention, options.backend)
    errors = []
    for name in track(paths[1:], "transcribing", console=Console(stderr=True), transient=True):
        try:
            transcript = recognizer.transcribe(name, decoder=options.decoder, beam=options.beam)
        except UserError as error:
            errors.append(str(error))
            continue
        if options.format == "json":
            print(json.dumps({"file": str(name), **asdict(transcript)}, ensure_ascii=False), flush=True)
        else:
            print(transcript.text if len(paths) == 2 else f"{name}\t{transcript.text}", flush=True)
    if errors:
        raise UserError("; ".join(errors))
