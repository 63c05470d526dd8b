"""`asr decode`: decode a split with a trained recogniser."""

from pathlib import Path

from asr.errors import UserError
from asr.recognizer import Recognizer
from asr.scoring.run import rates_line
from asr.search.decode import DecodeOptions

POSITIONAL = "<run folder or checkpoint>"
Options = DecodeOptions


def run(paths: list[Path], options: Options) -> None:
    """Decode a split; print the folder with the hypotheses, and their error rates."""
    if len(paths) != 1:
        raise UserError(f"asr decode takes one run folder or checkpoint, found {len(paths)}")
    recognizer = Recognizer.load_as(paths[0], options)
    folder = recognizer.decode(options)
    print(f"hypotheses: {folder}")
    print(f"error rates: {rates_line(folder)}")
