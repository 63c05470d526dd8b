"""Options of scoring."""

from dataclasses import dataclass

from asr.config import option
from asr.errors import UserError
from asr.preparation.options import TEXT_RULES, check_language

# unit is the default because validation and tuning use it, so that a hypothesis has a single error rate.
COSTS = ("unit", "sclite")
# Kinds of arguments of `asr score`.
FOLDER, FOLDERS = "a decode folder", "several decode folders"
TRN, TEXT = "TRN files", "plain text"


@dataclass
class ScoreOptions:
    """How to score, and what to print and write."""

    details: bool = option(
        False, help="also print speakers, lengths and the worst utterances of each system", affects="cost"
    )
    align: str = option(
        "unit",
        help="unit: all errors cost the same, as in jiwer; sclite: 4 for a substitution, 3 for a deletion or "
        "insertion, always used for NIST's formats",
        affects="result",
        choices=COSTS,
    )
    samples: int = option(
        1000,
        help="number of bootstrap samples for the 95 % intervals",
        affects="result",
        minimum=1,
        maximum=1_000_000,
    )
    seed: int = option(0, help="random seed for the bootstrap", affects="result", maximum=2**32 - 1)
    text: str = option(
        "lower",
        help="how texts are compared: none: as they are | lower: without case, as in sclite | words: also "
        "without punctuation and [sounds] | spoken: as words, and numbers as they are spoken",
        affects="result",
        choices=tuple(TEXT_RULES),
    )
    language: str = option(
        "",
        help="language code of the words, English if empty; tr, az: lower-case I is ı, and İ is i",
        affects="result",
    )
    hotwords: str = option(
        "",
        help="file of phrases as for beam.hotwords: also recall and false alarms of their words, and the WER "
        "of all others",
        affects="cost",
        only=("paths", (FOLDER, FOLDERS)),
    )
    word_filter: bool = option(
        True,
        help="apply the recipe's scoring rules to references and hypotheses",
        affects="result",
        only=("paths", (FOLDER, FOLDERS)),
    )
    trn: bool = option(
        False,
        help="also write ref.trn and hyp.trn for NIST sclite",
        affects="place",
        only=("paths", (FOLDER, FOLDERS)),
    )
    ctm: bool = option(
        False,
        help="also write hyp.ctm and ref.stm with word times",
        affects="place",
        only=("paths", (FOLDER, FOLDERS)),
    )
    save: str = option(
        "",
        help="JSON file for the significance tests between systems; empty: print only",
        affects="place",
        only=("paths", FOLDERS),
    )
    common: bool = option(
        False,
        help="compare systems on the utterances that they have in common",
        affects="result",
        only=("paths", FOLDERS),
    )
    official: bool = option(
        False,
        help="also score with NIST's sclite, against the STM reference and mapping rules beside the manifest",
        affects="cost",
        only=("paths", (FOLDER, FOLDERS)),
    )

    def check(self) -> None:
        """Raise UserError for no language code, or one without effect, because texts aren't normalised."""
        check_language(self.language)
        if self.language and self.text == "none":
            raise UserError(f"language={self.language}: has no effect with text=none")
