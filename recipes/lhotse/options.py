"""Options for lhotse manifests."""

from dataclasses import dataclass

from asr.config import option
from asr.preparation.options import OwnDataOptions


@dataclass
class Options(OwnDataOptions):
    """Location of the manifests."""

    source: str = option(
        "",
        help="a manifest of cuts, or a folder with <split>.cuts.jsonl.gz, x_cuts_<split>.jsonl.gz, or pairs "
        "x_recordings_<split>.jsonl.gz and x_supervisions_<split>.jsonl.gz",
        affects="result",
    )
