"""Options of the search: decoders, their weights, and the decoding of a split."""

from dataclasses import asdict, dataclass, field, replace

from asr.config import option
from asr.errors import UserError
from asr.model.options import LoadOptions
from asr.records.options import ShardOptions

# Below this fit, a text isn't what was said. docs/long-recordings.md has the hit rates.
LEAST_FIT = 0.2
DECODERS = ["greedy", "beam", "prefix"]
WEIGHTED = ("beam", "prefix")  # decoders with tunable weights
SIZES = {"greedy": 1, "beam": 300, "prefix": 50}


@dataclass(frozen=True)
class Weights:
    """The tunable options of `BeamConfig`."""

    lm_weight: float
    word_score: float
    size: int


@dataclass
class BeamConfig:
    """Options of all decoders but `greedy`."""

    size: int | None = option(
        None,
        help="hypotheses kept in each frame; null: the tuned number, else 300 for beam, 50 for prefix",
        affects="result",
        only=("decoder", WEIGHTED),
        minimum=1,
        maximum=100_000,
    )
    tokens: int = option(
        0,
        help="most probable labels tried in a frame; 0: all",
        affects="result",
        only=("decoder", WEIGHTED),
        maximum=1_000_000,
    )
    token_threshold: float = option(
        10.0,
        help="skip labels this much below the best label of the frame",
        affects="result",
        only=("decoder", "prefix"),
        unit="nats",
        maximum=1e6,
    )
    lexicon: str = option(
        "",
        help="words to recognise: a word list, or `word PH PH …` lines for phone models; empty: the "
        "model's lexicon, else the words of lm",
        affects="result",
        only=("decoder", "beam"),
    )
    lm: str = option(
        "",
        help="n-gram language model, ARPA or KenLM binary; empty: none",
        affects="result",
        only=("decoder", WEIGHTED),
    )
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
        only=("decoder", WEIGHTED),
        unit="nats",
        minimum=-1000,
        maximum=1000,
    )
    hotwords: str = option(
        "",
        help="file of phrases to prefer, one per line, `phrase<TAB>boost` for another boost; empty: none",
        affects="result",
        only=("decoder", WEIGHTED),
    )
    hotword_boost: float = option(
        1.0,
        help="score added per letter or phone of a hotword",
        affects="result",
        only=("hotwords",),
        unit="nats",
        maximum=1000,
    )
    label_score: float = option(
        0.0,
        help="score added per label, positive against deletions",
        affects="result",
        only=("decoder", "prefix"),
        unit="nats",
        minimum=-1000,
        maximum=1000,
    )
    nbest: int = option(
        1,
        help="number of hypotheses to write per utterance",
        affects="result",
        only=("decoder", WEIGHTED),
        minimum=1,
        maximum=100_000,
    )

    def check_words(self, decoder: str) -> None:
        """Raise UserError for a word score with `prefix` and no language model: only the latter has words."""
        given = self.complete(decoder).word_score != BeamConfig().complete(decoder).word_score
        if decoder == "prefix" and given and (not self.lm or self.lm_weight == 0):
            found = "with beam.lm_weight=0" if self.lm else "without beam.lm"
            raise UserError(f"beam.word_score={self.word_score:g}: has no effect with decoder=prefix {found}")

    def weights(self, decoder: str) -> Weights:
        """Return the tunable options, with a decoder's defaults in place of None."""
        return Weights(
            lm_weight=2.0 if self.lm_weight is None else self.lm_weight,
            word_score=-1.0 if self.word_score is None else self.word_score,
            size=SIZES.get(decoder, 1) if self.size is None else self.size,
        )

    def digests(self) -> dict[str, str]:
        """Return the digests of the files that are given, by option."""
        from asr.files import file_digest  # takes 15 ms to import, which help and completion need not

        given = {"lm": self.lm, "lexicon": self.lexicon, "hotwords": self.hotwords}
        return {name: file_digest(path) for name, path in given.items() if path}

    def complete(self, decoder: str) -> "BeamConfig":
        """Return the options with a decoder's defaults in place of None."""
        return replace(self, **asdict(self.weights(decoder)))


@dataclass
class SearchOptions:
    """Options of the search, shared by `asr decode` and `asr compare`."""

    decoder: str = option("greedy", help=" | ".join(DECODERS), affects="result", choices=DECODERS)
    beam: BeamConfig = field(default_factory=BeamConfig)
    tune: str = option(
        "",
        help="split (e.g. dev) or manifest to tune beam.lm_weight, beam.word_score and beam.size on first; "
        "asr decode stores the result in the run folder; empty: the stored weights (asr compare: defaults)",
        affects="result",
    )
    tune_utterances: int = option(
        300,
        help="maximum number of utterances to tune on, drawn at random; 0: all",
        affects="result",
        only=("tune",),
    )
    jobs: int = option(
        1,
        help="number of search processes; 1: search in the main process",
        affects="cost",
        minimum=1,
        maximum=1024,
    )

    def check(self) -> None:
        """Raise UserError for words or weights that have no effect."""
        self.beam.check_words(self.decoder)
        if self.tune and self.decoder not in WEIGHTED:
            raise UserError(
                f"tune={self.tune}: decoder={self.decoder} has no weights to tune; use beam or prefix"
            )


@dataclass
class DecodeOptions(SearchOptions, LoadOptions):
    """Options of `asr decode`: model, data, search and output."""

    split: str = option("test", help="split of the data", affects="result")
    data: str = option(
        "", help="prepared folder or manifest; empty: the run's first training folder", affects="place"
    )
    output: str = option(
        "",
        help="folder; empty: <run>/decode/<split>/<attention>[-frames-…]-<decoder>[-<lm>][-<hotwords>]",
        affects="place",
    )
    frames_per_batch: int = option(
        20000,
        help="maximum number of feature frames per batch, padding included",
        affects="result",
        unit="frames",
        minimum=1,
    )
    resample: bool = option(
        True, help="resample audio with another sample rate; false: stop with an error", affects="result"
    )
    g2p: bool = option(
        True,
        help="phone models: pronounce reference words that neither the model's lexicon nor the data's has "
        "with g2p_en, if installed",
        affects="result",
    )


@dataclass
class DecodePartOptions(ShardOptions, DecodeOptions):
    """Options of `asr decode`, whose work can be divided."""

    def check(self) -> None:
        """Raise UserError if every shard would tune the weights."""
        if self.shard and self.tune:
            raise UserError(f"tune={self.tune}: tune before dividing the work with shard={self.shard}")
