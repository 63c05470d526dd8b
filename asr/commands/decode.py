"""`asr decode`: decode a split with a trained recogniser."""

from pathlib import Path

from asr.library import decode_model
from asr.search.options import DecodePartOptions


def run(paths: list[Path], options: DecodePartOptions) -> None:
    """Decode a split; print the folder with the hypotheses, and their error rates."""
    decode_model(paths[0], options)
