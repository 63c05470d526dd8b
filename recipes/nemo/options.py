"""Options for NeMo manifests."""

from dataclasses import dataclass

from asr.config import option
from asr.preparation.options import OwnDataOptions


@dataclass
class Options(OwnDataOptions):
    """Location of the manifests."""

    source: str = option(
        "",
        help="a manifest, or a folder of manifests named after their split (train_….json, dev….jsonl)",
        affects="result",
    )
