"""`asr decode`: decode a split with a trained recogniser."""

from pathlib import Path

from asr.errors import UserError
from asr.recognizer import Recognizer
from asr.records.options import parse_shard
from asr.scoring.run import rates_line
from asr.search.options import DecodePartOptions


def run(paths: list[Path], options: DecodePartOptions) -> None:
    """Decode a split; print the folder with the hypotheses, and their error rates."""
    if len(paths) != 1:
        raise UserError(f"asr decode takes one run folder, checkpoint or published model, found {len(paths)}")
    recognizer = Recognizer.load_as(paths[0], options)
    shard = parse_shard(options.shard)
    folder = recognizer.decode(options, shard=shard)
    if shard:
        return
    print(f"hypotheses: {folder}")
    print(f"error rates: {rates_line(folder)}")
