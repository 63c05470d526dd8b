"""Options of the search: the decoder, the tuning of its weights, and the decoding of a split."""

from dataclasses import dataclass, field

from asr.config import check, option
from asr.errors import UserError
from asr.model.options import LoadOptions
from asr.records.options import ShardOptions
from asr.search.decoder import Decoder, WeightedDecoder
from asr.search.decoders import DECODERS, AllOptions, DecoderOptions

# With a lower fit, a text isn't what was said; hit rates: recipes/demo/results/archive.md, Cuts and texts.
LEAST_FIT = 0.2


@dataclass
class DecoderChoice:
    """The decoder and its options, as on a command line."""

    decoder: str = option(
        "greedy",
        help=" | ".join(f"{name}: {kind.meaning}" for name, kind in DECODERS.items()),
        affects="result",
        choices=DECODERS,
    )
    beam: DecoderOptions = field(default_factory=AllOptions)

    @property
    def chosen_decoder(self) -> Decoder:
        """The decoder with its options."""
        return self.beam.of(self.decoder)

    def check(self) -> None:
        """Raise UserError for options of the decoder that contradict each other."""
        check(self.chosen_decoder, "beam.")


@dataclass
class SearchOptions(DecoderChoice):
    """Options of the search, shared by `asr decode` and `asr compare`."""

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
        """Raise UserError if there are no weights to tune."""
        if self.tune and not issubclass(DECODERS[self.decoder], WeightedDecoder):
            known = " or ".join(x for x, kind in DECODERS.items() if issubclass(kind, WeightedDecoder))
            raise UserError(f"tune={self.tune}: decoder={self.decoder} has no weights to tune; use {known}")


@dataclass
class DecodeOptions(SearchOptions, LoadOptions):
    """Options of `asr decode`: model, data, search and output."""

    split: str = option("test", help="split of the data", affects="result")
    data: str = option(
        "", help="prepared folder or manifest; empty: the run's first training folder", affects="place"
    )
    output: str = option(
        "",
        help="folder; empty: <run>/decode/[<data>/]<split>/<attention>[-frames-…][-<precision>]"
        "[-<checkpoint>]-<decoder>[-<lm>][-<hotwords>], <data>: name of a data folder other than the run's",
        affects="place",
    )
    frames_per_batch: int = option(
        20000,
        help="maximum number of feature frames per batch, padding included",
        affects="result",
        unit="frames",
        minimum=1,
    )
    g2p: bool = option(
        True,
        help="phone models: pronounce reference words that neither the model's lexicon nor the data's has "
        "with g2p_en, if installed",
        affects="result",
    )


@dataclass
class DecodePartOptions(ShardOptions, DecodeOptions):
    """Options of `asr decode`, with division into shards."""

    def check(self) -> None:
        """Raise UserError if every shard would tune the weights."""
        if self.shard and self.tune:
            raise UserError(f"tune={self.tune}: tune before dividing the work with shard={self.shard}")
