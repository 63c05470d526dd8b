"""The options that every recipe's preparation has."""

from dataclasses import dataclass

from asr.config import option

TOKENIZERS_HELP = "vocabularies to make: phone, where there is a lexicon | character | sentencepiece-<pieces>"


@dataclass
class PreparationOptions:
    """What a recipe's `Options` extends."""

    workers: int = option(0, help="processes; 0: one per available core")
    allow_partial: bool = option(
        False, help="go on without what is missing or broken, and list it in problems.tsv"
    )
    tokenizers: list[str] = option(["phone"], help=TOKENIZERS_HELP)
