"""The interface of decoders: a decoder is a dataclass of its options, and builds a search."""

import re
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

from asr.config import option

if TYPE_CHECKING:
    from torch import Tensor

    from asr.search.path import TokenPath
    from asr.text.hotwords import Hotword
    from asr.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Weights:
    """The tunable options of a `WeightedDecoder`."""

    lm_weight: float
    word_score: float
    size: int


class Search:
    """A function from log-probabilities to labels, built by a decoder."""

    @property
    def vocabulary(self) -> Collection[str] | None:
        """The words that can be found; None: all that the labels can spell."""
        return None

    @property
    def tunable(self) -> tuple[str, ...]:
        """Names of the weights, besides the size of the beam, that change the result."""
        return ()

    @property
    def reentrant(self) -> bool:
        """Whether several threads may call it at the same time."""
        return False

    def with_weights(self, weights: Weights) -> "Search":
        """Return a search with other weights that shares lexicon and language model."""
        raise NotImplementedError(f"{type(self).__name__} has no weights")

    def __call__(self, log_probs_BTV: "Tensor", lengths_B: "Tensor") -> "list[TokenPath]":
        """Search a batch.

        Args:
            log_probs_BTV: [B, T, V] log-probabilities, blank at index 0.
            lengths_B: [B] valid frames.

        Returns:
            The labels of each utterance, with their frames.
        """
        raise NotImplementedError


@dataclass
class Decoder:
    """A decoder with its options, which users write as `beam.<name>`.

    Help and completion import decoders, so PyTorch and the search itself are imported by `build`.

    Attributes:
        name: value of `decoder=`.
        meaning: what the search returns, for `--help`.
        streams: whether `start_stream` supports the search, with the topology `ctc`.
    """

    name: ClassVar[str]
    meaning: ClassVar[str]
    streams: ClassVar[bool] = False

    def build(self, tokenizer: "Tokenizer", topology: str = "ctc") -> Search:
        """Return the search for a model.

        Args:
            tokenizer: tokenizer of the model.
            topology: label topology of the model.

        Raises:
            UserError: an option doesn't fit the model, or a file can't be read.
        """
        raise NotImplementedError

    @property
    def label(self) -> str:
        """Name of the decoder in names of output folders."""
        return self.name

    @property
    def nbest(self) -> int:
        """Number of hypotheses to write per utterance."""
        return 1

    def files(self) -> dict[str, str]:
        """Return the files that the search reads, by option."""
        return {}

    def digests(self) -> dict[str, str]:
        """Return the digests of the files that the search reads, by option."""
        from asr.files import file_digest  # its import takes 15 ms, which help and completion avoid

        return {name: file_digest(path) for name, path in self.files().items()}

    def complete(self) -> Self:
        """Return the decoder with its usual weights in place of None."""
        return self


@dataclass
class WeightedDecoder(Decoder):
    """A decoder that keeps several hypotheses, and ranks them with a language model and hotwords.

    Attributes:
        usual_size: default size of the beam, unless set or tuned.
    """

    usual_size: ClassVar[int]

    size: int | None = option(
        None,
        help="number of hypotheses kept in each frame; null: the tuned number, else the decoder's default",
        affects="result",
        minimum=1,
        maximum=100_000,
    )
    tokens: int = option(
        0, help="most probable labels tried in a frame; 0: all", affects="result", maximum=1_000_000
    )
    lm: str = option("", help="n-gram language model, ARPA or KenLM binary; empty: none", affects="result")
    lm_weight: float | None = option(
        None,
        help="weight of the language model; null: the tuned one, else 2",
        affects="result",
        only=("lm",),
        minimum=-1000,
        maximum=1000,
    )
    word_score: float | None = option(
        None,
        help="score added per word, negative for fewer words; null: the tuned one, else -1",
        affects="result",
        unit="nats",
        minimum=-1000,
        maximum=1000,
    )
    hotwords: str = option(
        "",
        help="file of phrases to prefer, one per line, `phrase<TAB>boost` for another boost; empty: none",
        affects="result",
    )
    hotword_boost: float = option(
        1.0,
        help="score added per letter or phone of a hotword",
        affects="result",
        only=("hotwords",),
        unit="nats",
        maximum=1000,
    )
    nbest: int = option(
        1,
        help="number of hypotheses to write per utterance",
        affects="result",
        minimum=1,
        maximum=100_000,
    )

    @property
    def label(self) -> str:
        """Name of the decoder, its language model and its hotwords: `beam-3-gram.pruned-names`."""
        lm = re.sub(r"(\.(arpa|bin|binary|trie|klm|lm|gz))+$", "", Path(self.lm).name)
        hotwords = re.sub(r"\.(txt|tsv)$", "", Path(self.hotwords).name)
        return "-".join(filter(None, (self.name, lm, hotwords)))

    def files(self) -> dict[str, str]:
        """Return the language model and the hotwords, if given."""
        return {name: path for name in ("lm", "hotwords") if (path := getattr(self, name))}

    def weights(self) -> Weights:
        """Return the weights, with defaults in place of None."""
        return Weights(
            lm_weight=2.0 if self.lm_weight is None else self.lm_weight,
            word_score=-1.0 if self.word_score is None else self.word_score,
            size=self.usual_size if self.size is None else self.size,
        )

    def complete(self) -> Self:
        """Return the decoder with its usual weights in place of None."""
        return replace(self, **asdict(self.weights()))

    def phrases(self) -> "list[Hotword]":
        """Read the hotwords, except those with a boost of 0, which would still add words to the search."""
        from asr.text.hotwords import read_hotwords

        phrases = read_hotwords(self.hotwords, self.hotword_boost) if self.hotwords else []
        return [x for x in phrases if x.boost]
