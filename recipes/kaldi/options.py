"""Options for Kaldi data directories."""

from dataclasses import dataclass

from asr.config import option
from asr.preparation.options import OwnDataOptions


@dataclass
class Options(OwnDataOptions):
    """Location of the data directories."""

    source: str = option(
        "", help="a data directory, or a folder with one per split (train, dev, test)", affects="result"
    )
    root: str = option(
        "", help="base of relative paths in wav.scp; empty: the current folder", affects="result"
    )
