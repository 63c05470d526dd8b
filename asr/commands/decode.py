"""`asr decode`: decode a split with a trained recogniser."""

from pathlib import Path

from asr.errors import UserError
from asr.recognizer import Recognizer
from asr.search.decode import DecodeOptions

POSITIONAL = "<run folder or checkpoint>"
Options = DecodeOptions


def run(paths: list[Path], options: Options) -> None:
    """Decode a split and print the folder with the hypotheses."""
    if len(paths) != 1:
        raise UserError(f"asr decode takes one run folder or checkpoint, found {len(paths)}")
    recognizer = Recognizer.load_as(paths[0], options)
    print(f"hypotheses: {recognizer.decode(options)}")
