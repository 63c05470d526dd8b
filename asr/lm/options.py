"""Options of n-gram language models."""

from dataclasses import dataclass

from asr.config import option

TEXT_HELP = "texts (one sentence per line, optionally .gz), manifests or prepared folders, comma-separated"


@dataclass
class TrainOptions:
    """Options of `asr lm train`."""

    text: str = option("", help=TEXT_HELP, affects="result")
    split: str = option("train", help="split of prepared folders", affects="result")
    order: int = option(3, help="order of the model", affects="result", minimum=2, maximum=6)
    out: str = option("", help="ARPA file to write; gzipped if the name ends in .gz", affects="place")
    lexicon: str = option(
        "",
        help="lexicon or word list that defines the vocabulary; empty: all words of the text",
        affects="result",
    )
    model: str = option(
        "",
        help="run folder or checkpoint of a recogniser: model its labels (e.g. phones) instead of words",
        affects="result",
    )
    heldout: str = option(
        "", help="held-out texts, manifests or prepared folders (split dev), for perplexity", affects="result"
    )


@dataclass
class PerplexityOptions:
    """Options of `asr lm score`."""

    lm: str = option("", help="language model: ARPA or KenLM binary file", affects="result")
    text: str = option("", help=TEXT_HELP, affects="result")
    split: str = option("test", help="split of prepared folders", affects="result")
    lexicon: str = option(
        "", help="lexicon whose words to check against the model's vocabulary", affects="result"
    )
