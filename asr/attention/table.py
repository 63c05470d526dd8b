"""The table of attention mechanisms: names, options, sources and costs; choice by name."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from asr.attention.full import FullAttention, SharedFullAttention
from asr.attention.layer import OwnParameterLayer
from asr.attention.softmax import SoftmaxMechanism
from asr.attention.spec import Schema, Spec, parse, pattern, write_value
from asr.errors import UserError


@dataclass(frozen=True)
class Mechanism:
    """A row of the table.

    Attributes:
        build: the class; called with `name`, the schema's options, `backend` and `dropout`.
        schema: number and options of the name.
        source: paper.
        time, memory: cost in N positions at fixed options.
    """

    build: type[SoftmaxMechanism] | type[OwnParameterLayer]
    source: str
    time: str
    memory: str
    schema: Schema = field(default_factory=Schema)

    @property
    def exchangeable(self) -> bool:
        """True in the softmax family: a trained model may be run with another of its members."""
        return issubclass(self.build, SoftmaxMechanism)


CLUSTERED = "Vyas et al. 2020, Fast Transformers with Clustered Attention"

MECHANISMS: Mapping[str, Mechanism] = {
    "full": Mechanism(FullAttention, "Vaswani et al. 2017", "N²", "N² (native: N)"),
    "shared-full": Mechanism(SharedFullAttention, "Kitaev et al. 2020, Reformer", "N²", "N² (native: N)"),
}


def parse_name(name: str) -> Spec:
    """Parse a mechanism's name; errors list what is allowed."""
    return parse(name, {key: mechanism.schema for key, mechanism in MECHANISMS.items()})


def build_mechanism(name: str, backend: str = "auto", dropout: float = 0.0) -> SoftmaxMechanism:
    """Build a mechanism of the softmax family.

    Args:
        name: e.g. `full`, `i-clustered-100:topk=32`.
        backend: `auto`, `reference` or `native`.
        dropout: probability on attention weights, in training.

    Returns:
        A module with `forward(q, k, v, lengths)`, `weights(q, k, lengths)` and, where queries are
        clustered, `clusters(q, lengths)`.

    Raises:
        UserError: an unknown name, option or backend, a value out of range, a backend that can't run, or
            a mechanism with parameters of its own.
    """
    spec = parse_name(name)
    build = MECHANISMS[spec.mechanism].build
    if not issubclass(build, SoftmaxMechanism):
        raise UserError(
            f"attention {name!r} has parameters of its own: it is a layer (build_self_attention), "
            "and no trained model can be given it"
        )
    arguments: dict[str, Any] = dict(spec.arguments)
    return build(name=spec.name, backend=backend, dropout=dropout, **arguments)


def mechanism_table() -> str:
    """Return the table in Markdown, as the README shows it."""
    lines = [
        "| Name | Options (default) | Time | Memory | Exchangeable | Source |",
        "|---|---|---|---|---|---|",
    ]
    for key, mechanism in MECHANISMS.items():
        options = ", ".join(f"{o.name} ({write_value(o.default)})" for o in mechanism.schema.options)
        exchangeable = "yes" if mechanism.exchangeable else "no"
        name = f"`{pattern(key, mechanism.schema)}`"
        cells = (name, options or "–", mechanism.time, mechanism.memory, exchangeable, mechanism.source)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
