"""Options of preparation."""

import re
from dataclasses import dataclass

from asr.config import option
from asr.errors import UserError
from asr.records.options import ShardOptions

TEXT_RULES = {
    "none": "nothing else is changed",
    "lower": "lower-cased",
    "words": "lower-cased, sounds in brackets and punctuation removed except apostrophes and hyphens within "
    "words",
    "spoken": "numbers and signs as they are spoken, lower-cased, sounds in brackets and punctuation removed "
    "except apostrophes and hyphens within words",
}
# Kinds of problems. Items with accepted problems are left out of the data and listed.
KINDS = {
    "missing_audio": "audio that is listed or transcribed, but not there",
    "truncated_audio": "empty audio files, and files with fewer samples than their headers state",
    "damaged_audio": "audio that can't be read, is silent, or has other rates or channels than expected",
    "missing_text": "audio without a transcript",
    "damaged_text": "lines of transcripts, tables and indices that can't be read",
    "missing_parts": "discs, indices, language models, and splits without utterances",
    "duplicates": "ids, lines and files that appear twice",
    "times": "utterances outside their audio",
    "counts": "numbers of files, utterances or words other than the official ones",
}
PARTIAL_HELP = f"kinds of problems to accept; affected items are left out and listed ({', '.join(KINDS)})"
TEXT_HELP = (
    "none: unchanged | lower: lower-case | words: lower-case without punctuation and [sounds] | spoken: as "
    "words, and numbers and signs as they are spoken | auto: spoken if the language's numbers are known, "
    "else words"
)
HOLD_OUT = ["auto", "speaker", "text"]
SHARE_RULE = "5 %, but at least 10 utterances, or a sixth of fewer than 60"
TOKENIZERS_HELP = "tokenizers to build: phone (needs a lexicon) | character | sentencepiece-<pieces>"
VERIFY_HELP = "decode every file to check that it is complete; false: read headers only"


@dataclass
class PreparationOptions(ShardOptions):
    """Options of every recipe; a recipe's `Options` extends them."""

    workers: int = option(0, help="processes; 0: one per available core", affects="cost", maximum=1024)
    allow_partial: list[str] = option([], help=PARTIAL_HELP, affects="result", choices=KINDS)
    tokenizers: list[str] = option(["phone"], help=TOKENIZERS_HELP, affects="result")


@dataclass
class OwnDataOptions(PreparationOptions):
    """Common options of the recipes for your own data."""

    text: str = option(
        "lower",
        help=TEXT_HELP,
        affects="result",
        choices=(*TEXT_RULES, "auto"),
    )
    lexicon: str = option(
        "", help="lexicon file, `word PH PH …`; empty: CMUdict for English, else none", affects="result"
    )
    language: str = option(
        "en",
        help="language code of the transcripts, written to the manifests; tr, az: lower-case I is ı",
        affects="result",
    )
    split: str = option(
        "",
        help="split of all utterances, e.g. test for a test set; empty: the data's, or see dev_share",
        affects="result",
    )
    dev_share: float | None = option(
        None,
        help=f"share held out for dev if the data has train but no dev, or no splits; null: {SHARE_RULE}",
        affects="result",
        maximum=0.49,
    )
    test_share: float | None = option(
        None,
        help="share held out for test if the data has no splits; null: as for dev",
        affects="result",
        maximum=0.49,
    )
    hold_out: str = option(
        "auto",
        help="speaker: hold out whole speakers | text: sentences | auto: speakers if there are 10 or more",
        affects="result",
        choices=HOLD_OUT,
    )
    verify: bool = option(True, help=VERIFY_HELP, affects="result")
    tokenizers: list[str] = option(["character", "phone"], help=TOKENIZERS_HELP, affects="result")

    def check(self) -> None:
        """Raise UserError if the manifest of `split` would lie in another folder, or for no language code."""
        check_language(self.language)
        if not is_split(self.split):
            raise UserError(f"split={self.split}: expected the name of a split")


def check_language(language: str) -> None:
    """Raise UserError for a language that isn't a code, such as `german`: no rule knows it."""
    if language and not re.fullmatch(r"[A-Za-z]{2,3}([-_][A-Za-z0-9]+)*", language):
        raise UserError(f"language={language}: expected a code such as en, de or pt-BR")


def is_split(name: str) -> bool:
    """Return whether a name can be a split's: its manifest must lie in the output folder."""
    return not re.search(r"^\.|[/\\]", name)
