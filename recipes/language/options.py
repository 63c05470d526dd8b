"""Options of language modelling."""

from dataclasses import dataclass

from asr.config import option
from asr.training.options import RecipeConfig

PACKAGE = "bible-kjv-text"  # Debian package with the default text
ENCODINGS = ("embedding", "convolution", "both")


@dataclass
class TaskOptions(RecipeConfig):
    """Options of language modelling."""

    name: str = option(
        "language", help="name of the recipe; the run folder is exp/<name>/<attention>", affects="result"
    )
    text: str = option(
        "data/language/bible.txt",
        help="text file, or folder with text8, wiki.{train,valid,test}.{tokens,raw} or {train,dev,test}.txt",
        affects="result",
    )
    length: int = option(
        128, help="length of a sequence", affects="result", unit="tokens", minimum=1, maximum=100_000
    )
    batch: int = option(32, help="sequences in a batch", affects="result", minimum=1, maximum=65_536)
    encoding: str = option(
        "embedding",
        help=f"order of the tokens: {' | '.join(ENCODINGS)}; embedding: of position and depth",
        affects="result",
        choices=ENCODINGS,
    )
    kernel: int = option(
        8,
        help="kernel size of the causal convolution",
        affects="result",
        only=("encoding", ("convolution", "both")),
        unit="tokens",
        minimum=1,
        maximum=1000,
    )
    dev_segments: int = option(
        500,
        help="development sequences, spread over the split; 0: all",
        affects="result",
        maximum=100_000_000,
    )


@dataclass
class Options:
    """Source of the text."""

    source: str = option(
        "",
        help=f"folder with the unpacked Debian package {PACKAGE}; empty: it is downloaded",
        affects="result",
    )
