"""The table of decoders, each in a module; and a dataclass with the options of all, `beam.<name>`."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, make_dataclass

from asr.config.schema import conditions
from asr.search.decoder import Decoder
from asr.search.decoders.beam import Beam
from asr.search.decoders.greedy import Greedy
from asr.search.decoders.prefix import Prefix

DECODERS: Mapping[str, type[Decoder]] = {
    "greedy": Greedy,
    "beam": Beam,
    "prefix": Prefix,
}


@dataclass
class DecoderOptions:
    """Base class of `AllOptions`, whose fields are determined at run time."""

    def of(self, decoder: str) -> Decoder:
        """Return a decoder with its options."""
        kind = DECODERS[decoder]
        return kind(**{x.name: getattr(self, x.name) for x in fields(kind)})


def joined(decoders: Mapping[str, type[Decoder]]) -> type[DecoderOptions]:
    """Return a dataclass of the options of all decoders.

    An option has an effect with the decoders that have it; decoders share an option by inheriting it.
    """
    options = {x.name: x for decoder in decoders.values() for x in fields(decoder)}
    merged = []
    for name, x in options.items():
        owners = tuple(key for key, kind in decoders.items() if name in {y.name for y in fields(kind)})
        only = (*conditions(("decoder", owners)), *x.metadata["only"])
        merged.append((name, x.type, field(default=x.default, metadata={**x.metadata, "only": only})))
    about = {"__module__": __name__, "__doc__": "Options of all decoders; see `joined`."}
    return make_dataclass("AllOptions", merged, bases=(DecoderOptions,), namespace=about)


AllOptions = joined(DECODERS)
