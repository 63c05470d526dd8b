"""Options of LibriSpeech."""

from dataclasses import dataclass

from asr.config import option
from asr.preparation.options import TOKENIZERS_HELP, VERIFY_HELP, PreparationOptions

from .parts import SUBSETS


@dataclass
class Options(PreparationOptions):
    """Which parts to prepare, and where they come from."""

    subset: str = option(
        "clean-100",
        help="training data: mini | clean-100 | clean-360 | clean-460 | other-500 | 960",
        affects="result",
        choices=SUBSETS,
    )
    evaluation: list[str] = option(
        [],
        help="dev and test parts; empty: dev-clean-2 for mini, else dev-clean, dev-other, test-clean and "
        "test-other",
        affects="result",
    )
    corpus: str = option(
        "", help="LibriSpeech folder of a local copy; empty: <folder>/corpus/LibriSpeech", affects="result"
    )
    download: bool = option(False, help="download missing parts from OpenSLR (mini: 0.5 GB)", affects="place")
    mirror: str = option(
        "https://www.openslr.org/resources", help="download server", affects="place", only=("download", True)
    )
    keep_archives: bool = option(
        False, help="keep the downloaded archives after unpacking", affects="place", only=("download", True)
    )
    lexicon: str = option(
        "", help="lexicon file, e.g. OpenSLR 11's librispeech-lexicon.txt; empty: CMUdict", affects="result"
    )
    verify: bool = option(True, help=VERIFY_HELP, affects="result")
    tokenizers: list[str] = option(["phone", "sentencepiece-500"], help=TOKENIZERS_HELP, affects="result")
