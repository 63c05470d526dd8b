"""Table of attention mechanisms: a row for each, which names its class; the class describes it."""

import itertools
import re
from collections.abc import Mapping, Sequence

from asr.attention.agglomerative import AgglomerativeAttention
from asr.attention.cast import CAST
from asr.attention.clustered import ClusteredAttention
from asr.attention.full import FullAttention, SharedFullAttention
from asr.attention.hyper import HyperMixing
from asr.attention.improved import ImprovedClusteredAttention
from asr.attention.layer import OwnParameterLayer
from asr.attention.linear import LinearAttention
from asr.attention.local import LocalAttention
from asr.attention.lsh import LSHAttention
from asr.attention.near import NearFieldAttention
from asr.attention.oracle_top import OracleTopAttention
from asr.attention.softmax import QueryKeyMechanism, SoftmaxMechanism
from asr.attention.spec import Option, Spec, parse, pattern, write_value
from asr.attention.summary import SummaryMixing
from asr.console import Table
from asr.errors import UserError

# A class is called with `name`, `backend`, `dropout` and the options of its schema.
MECHANISMS: Mapping[str, type[QueryKeyMechanism] | type[OwnParameterLayer]] = {
    "full": FullAttention,
    "shared-full": SharedFullAttention,
    "oracle-top": OracleTopAttention,
    "lsh": LSHAttention,
    "clustered": ClusteredAttention,
    "i-clustered": ImprovedClusteredAttention,
    "near": NearFieldAttention,
    "local": LocalAttention,
    "linear": LinearAttention,
    "cast": CAST,
    "agglomerative": AgglomerativeAttention,
    "summary": SummaryMixing,
    "hyper": HyperMixing,
}


def parse_name(name: str) -> Spec:
    """Parse the name of a mechanism.

    Raises:
        UserError: an unknown mechanism or option, or a value out of range, with what is allowed.
    """
    if "*" in name:
        raise UserError(f"attention {name!r}: expected one mechanism for all layers, found one for each")
    return parse(name, {key: mechanism.schema for key, mechanism in MECHANISMS.items()})


def canonical(names: list[str]) -> list[str]:
    """Return mechanism names in their canonical form.

    Example:
        >>> canonical(["lsh-4:chunk=16,buckets=64"])
        ['lsh-4:chunk=16']
    """
    return [parse_name(name).name for name in names]


def layer_runs(name: str) -> list[tuple[Spec, int]]:
    """Parse the name of a mechanism, or of one for each layer of a model.

    Args:
        name: e.g. `full`, or `full*3,i-clustered-25*9` for three layers and nine more.

    Returns:
        Mechanisms with their numbers of layers; 0: all.

    Raises:
        UserError: see `parse_name`; a mechanism without a number of layers.

    Example:
        >>> [(str(spec), layers) for spec, layers in layer_runs("full*3,lsh-4:chunk=16,buckets=64*9")]
        [('full', 3), ('lsh-4:chunk=16', 9)]
    """
    if "*" not in name:
        return [(parse_name(name), 0)]
    entries = re.findall(r"([^*]+)\*([1-9]\d{0,3})(?:,|$)", name)
    if ",".join(f"{mechanism}*{layers}" for mechanism, layers in entries) != name:
        raise UserError(
            f"attention {name!r}: expected a mechanism and a number of layers for each part, e.g. "
            "full*3,i-clustered-25*9"
        )
    return [(parse_name(mechanism), int(layers)) for mechanism, layers in entries]


def layer_names(name: str, layers: int) -> list[str]:
    """Return the canonical name of each layer's mechanism; see `layer_runs`.

    Raises:
        UserError: an invalid name, or another number of layers.
    """
    runs = layer_runs(name)
    found = [spec.name for spec, count in runs for _ in range(count or layers)]
    if len(found) != layers:
        raise UserError(f"attention {name!r}: expected mechanisms for {layers} layers, found {len(found)}")
    return found


def joined_name(names: Sequence[str]) -> str:
    """Return the name for layers with these mechanisms.

    Example:
        >>> joined_name(["full", "full", "local-8"]), joined_name(["full", "full"])
        ('full*2,local-8*1', 'full')
    """
    if len(set(names)) == 1:
        return names[0]
    return ",".join(f"{name}*{len(list(run))}" for name, run in itertools.groupby(names))


def default_names() -> list[str]:
    """Return a name for each mechanism, with its default number: `full`, …, `agglomerative-8`."""
    sizes = {key: mechanism.schema.size for key, mechanism in MECHANISMS.items()}
    return [f"{key}-{size.default}" if size else key for key, size in sizes.items()]


def build_mechanism(name: str, backend: str = "auto", dropout: float = 0.0) -> QueryKeyMechanism:
    """Build a mechanism without parameters of its own: one of the softmax family, or `linear`.

    Args:
        name: e.g. `full`, `i-clustered-100:topk=32`.
        backend: `auto`, `reference` or `native`.
        dropout: dropout probability on the attention weights.

    Returns:
        A module with `forward(q, k, v, lengths)`, `weights(q, k, lengths)` and, for `clustered` and
        `i-clustered`, `clusters(q, lengths)`.

    Raises:
        UserError: an unknown name, option or backend, a value out of range, a backend that can't run, or
            a mechanism with parameters of its own.
    """
    spec = parse_name(name)
    build = MECHANISMS[spec.mechanism]
    if not issubclass(build, QueryKeyMechanism):
        raise UserError(
            f"attention {name!r} has parameters of its own: build it with build_self_attention; "
            "a trained model can't switch to it"
        )
    return build(name=spec.name, backend=backend, dropout=dropout, **spec.keywords())


def is_causal(name: str) -> bool:
    """Return whether no position sees later ones.

    Example:
        >>> is_causal("linear:causal=true"), is_causal("local-0"), is_causal("full")
        (True, True, False)
    """
    spec = parse_name(name)
    return MECHANISMS[spec.mechanism].is_causal(spec.arguments)


def exchange(mechanism: str) -> str:
    """Return whether a mechanism can replace another one in a trained model: `yes`, `no` or a condition.

    Args:
        mechanism: a key of the table.
    """
    described = MECHANISMS[mechanism]
    if not issubclass(described, SoftmaxMechanism):
        return "no"
    return "where keys are shared" if described.needs_shared_keys else "yes"


def mechanism_table() -> str:
    """Return the table in Markdown, as shown in the README."""
    names = ("Name", "Family", "Options (default)", "Time", "Memory", "Exchangeable", "Source")
    rows = [
        (
            f"`{pattern(key, mechanism.schema)}`",
            mechanism.family,
            mechanism.schema.summary() or "–",
            mechanism.time,
            mechanism.memory,
            exchange(key),
            mechanism.source,
        )
        for key, mechanism in MECHANISMS.items()
    ]
    return Table.of("", names, rows).markdown()


def option_table() -> str:
    """Return the options of all mechanisms in Markdown, as shown in docs/attention.md."""
    found: dict[Option, list[str]] = {}
    for key, mechanism in MECHANISMS.items():
        for option in mechanism.schema.options:
            found.setdefault(option, []).append(f"`{pattern(key, mechanism.schema)}`")
    rows = []
    for option, names in found.items():
        case = f" ({option.only[0]}={write_value(option.only[1])})" if option.only else ""
        texts = (option.describe(), option.help, ", ".join(names))
        rows.append((f"`{option.name}`{case}", write_value(option.default), *texts))
    return Table.of("", ("Option", "Default", "Values", "Meaning", "Mechanisms"), rows).markdown()
