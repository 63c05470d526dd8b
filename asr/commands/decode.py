"""`asr decode`: decode a split with a trained recogniser."""

from dataclasses import dataclass
from pathlib import Path

from asr.errors import UserError
from asr.recognizer import Recognizer
from asr.scoring.run import rates_line
from asr.search.decode import DecodeOptions
from asr.shards import ShardOptions, parse_shard

POSITIONAL = "<run folder or checkpoint>"


@dataclass
class Options(ShardOptions, DecodeOptions):
    """Options of `asr decode`."""

    def check(self) -> None:
        """Raise UserError if every shard would tune the weights."""
        if self.shard and self.tune:
            raise UserError(f"tune={self.tune}: tune before dividing the work with shard={self.shard}")


def run(paths: list[Path], options: Options) -> None:
    """Decode a split; print the folder with the hypotheses, and their error rates."""
    if len(paths) != 1:
        raise UserError(f"asr decode takes one run folder or checkpoint, found {len(paths)}")
    recognizer = Recognizer.load_as(paths[0], options)
    shard = parse_shard(options.shard)
    folder = recognizer.decode(options, shard=shard)
    if shard:
        return
    print(f"hypotheses: {folder}")
    print(f"error rates: {rates_line(folder)}")
