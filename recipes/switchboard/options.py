"""Options of Switchboard."""

from dataclasses import dataclass

from asr.config import option
from asr.preparation.options import TOKENIZERS_HELP, VERIFY_HELP, PreparationOptions

DEVELOPMENT = 4_000  # utterances held out, as in Kaldi's recipe


@dataclass
class Options(PreparationOptions):
    """Location of the corpora."""

    corpus: str = option(
        "", help="folder with LDC97S62 (*.sph) and, usually, swb_ms98_transcriptions", affects="result"
    )
    transcripts: str = option("", help="folder with swb_ms98_transcriptions, if elsewhere", affects="result")
    eval2000: str = option(
        "", help="folder with LDC2002S09 (audio, PEM) and LDC2002T43; empty: no test set", affects="result"
    )
    eval2000_transcripts: str = option("", help="folder with LDC2002T43, if elsewhere", affects="result")
    call_table: str = option(
        "",
        help="call_con_tab.csv, which names the callers; empty: each conversation side is a speaker",
        affects="result",
    )
    dev_utterances: int = option(
        DEVELOPMENT,
        help="number of first utterances held out for validation (train_dev)",
        affects="result",
        maximum=10_000_000,
    )
    lexicon: str = option(
        "auto",
        help="auto | ms98 | cmudict; auto: sw-ms98-dict.text if present, else CMUdict",
        affects="result",
        choices=("auto", "ms98", "cmudict"),
    )
    verify: bool = option(False, help=VERIFY_HELP, affects="result")
    tokenizers: list[str] = option(
        ["phone", "character", "sentencepiece-1000"], help=TOKENIZERS_HELP, affects="result"
    )
