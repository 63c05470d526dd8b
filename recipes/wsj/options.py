"""Options of Wall Street Journal."""

from dataclasses import dataclass

from asr.config import option
from asr.preparation.options import TOKENIZERS_HELP, VERIFY_HELP, PreparationOptions


@dataclass
class Options(PreparationOptions):
    """Location of the corpus, and what to prepare."""

    corpus: str = option(
        "", help="folder with the discs (11-1.1 …, 13-1.1 …), or with wsj0 and wsj1", affects="result"
    )
    verify: bool = option(True, help=VERIFY_HELP, affects="result")
    language_models: bool = option(
        True, help="unpack the ARPA models and their training text", affects="result"
    )
    g2p: bool = option(
        True, help="pronounce words outside CMUdict with g2p_en, if installed", affects="result"
    )
    tokenizers: list[str] = option(["phone", "sentencepiece-500"], help=TOKENIZERS_HELP, affects="result")
