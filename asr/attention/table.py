"""Table of attention mechanisms: names, options, sources and costs."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from asr.attention.agglomerative import AgglomerativeAttention
from asr.attention.cast import CAST
from asr.attention.clustered import ClusteredAttention
from asr.attention.full import FullAttention, SharedFullAttention
from asr.attention.grouping import FEW
from asr.attention.hashing import PLANES
from asr.attention.hyper import HyperMixing
from asr.attention.improved import ImprovedClusteredAttention
from asr.attention.layer import OwnParameterLayer
from asr.attention.linear import LinearAttention
from asr.attention.local import LocalAttention
from asr.attention.lsh import LSHAttention
from asr.attention.oracle_top import OracleTopAttention
from asr.attention.softmax import QueryKeyMechanism, SoftmaxMechanism
from asr.attention.spec import Option, Schema, Spec, parse, pattern, write_value
from asr.attention.summary import SummaryMixing
from asr.errors import UserError


@dataclass(frozen=True)
class Mechanism:
    """One row of the table.

    Attributes:
        build: class, called with `name`, `backend`, `dropout` and the options of the schema.
        source: paper.
        time, memory: cost for N positions.
        schema: number and options of the name.
    """

    build: type[QueryKeyMechanism] | type[OwnParameterLayer]
    source: str
    time: str
    memory: str
    schema: Schema = field(default_factory=Schema)

    @property
    def exchangeable(self) -> bool:
        """Whether a trained model may switch from or to this mechanism: True in the softmax family."""
        return issubclass(self.build, SoftmaxMechanism)

    @property
    def family(self) -> str:
        """Kind of mechanism: `softmax`, `linear` (a kernel without parameters) or `own parameters`."""
        if issubclass(self.build, OwnParameterLayer):
            return "own parameters"
        return "softmax" if self.exchangeable else "linear"

    @property
    def exchange(self) -> str:
        """Whether it can replace another mechanism in a trained model: `yes`, `no` or a condition."""
        if not issubclass(self.build, SoftmaxMechanism):
            return "no"
        return "where keys are shared" if self.build.needs_shared_keys else "yes"


CLUSTERED = "Vyas et al. 2020, Fast Transformers with Clustered Attention"
REFORMER = "Kitaev et al. 2020, Reformer"
HYPER = "Mai et al. 2022, HyperMixer; 2023, HyperConformer"

COUNT = range(1, 65_537)
CLUSTERS = Option("clusters", 100, COUNT, "query clusters, C")
DIRECTIONS = "hash planes: the same in all layers, of each layer, or drawn anew in each training step"
GROUPING = (
    Option(
        "grouping", "hash", ("hash", "keys"), "hash: K-means of sign hashes; keys: in the metric of the keys"
    ),
    Option("bits", 63, range(1, 64), "hash bits", only=("grouping", "hash")),
    Option("iterations", 10, range(1, 1_001), "Lloyd iterations of K-means, L", only=("grouping", "hash")),
    Option("planes", "fixed", PLANES, DIRECTIONS, only=("grouping", "hash")),
    Option("bias", False, (False, True), "planes with an offset from the origin", only=("grouping", "hash")),
    Option(
        "rank",
        0,
        range(257),
        f"rank of the keys' metric; 0: 8, or 12 with fewer than {FEW} clusters",
        only=("grouping", "keys"),
    ),
    Option(
        "iterations",
        0,
        range(1_001),
        f"Lloyd iterations of K-means, L; 0: 3, or 4 with fewer than {FEW} clusters",
        only=("grouping", "keys"),
    ),
)
CAUSAL = Option("causal", False, (False, True), "exclude later positions")
TOPK = Option("topk", 32, COUNT, "keys with exact weights, K")

MECHANISMS: Mapping[str, Mechanism] = {
    "full": Mechanism(
        FullAttention, "Vaswani et al. 2017", "N²", "N² (native: N)", Schema(options=(CAUSAL,))
    ),
    "shared-full": Mechanism(SharedFullAttention, REFORMER, "N²", "N² (native: N)"),
    "oracle-top": Mechanism(OracleTopAttention, CLUSTERED, "N²", "N", Schema("K", TOPK)),
    "lsh": Mechanism(
        LSHAttention,
        REFORMER,
        "N·R·chunk",
        "N·R·chunk (native: N·R)",
        Schema(
            "R",
            Option("hashes", 4, range(1, 65), "hash rounds, R"),
            (
                Option("chunk", 32, COUNT, "sorted positions in a chunk"),
                Option("buckets", 64, range(2, 65_537, 2), "hash buckets"),
                Option("planes", "fixed", PLANES, DIRECTIONS),
                Option("rounds", "merge", ("merge", "mean"), "one softmax over all rounds, or their mean"),
            ),
        ),
    ),
    "clustered": Mechanism(ClusteredAttention, CLUSTERED, "N·C", "N·C", Schema("C", CLUSTERS, GROUPING)),
    "i-clustered": Mechanism(
        ImprovedClusteredAttention,
        CLUSTERED,
        "N·(C + topk)",
        "N·(C + topk)",
        Schema("C", CLUSTERS, (TOPK, *GROUPING)),
    ),
    "local": Mechanism(
        LocalAttention,
        "Beltagy et al. 2020, Longformer",
        "N·(W + global)",
        "N·(W + global) (native: N)",
        Schema(
            "W",
            Option("window", 64, range(65_537), "neighbours on each side, W"),
            (Option("global", 0, range(65_537), "first positions that see all and are seen by all"),),
        ),
    ),
    "linear": Mechanism(
        LinearAttention,
        "Katharopoulos et al. 2020, Transformers are RNNs",
        "N",
        "N",
        Schema(options=(CAUSAL,)),
    ),
    "cast": Mechanism(
        CAST,
        "van Engelenhoven et al. 2024, CAST",
        "N·(C + capacity), capacity N/C by default; count=root: N·√N up to N = C²",
        "N·C; count=root: N·√N up to N = C²",
        Schema(
            "C",
            Option("clusters", 8, COUNT, "clusters and surrogate tokens, C"),
            (
                Option(
                    "assign",
                    "topk",
                    ("topk", "single"),
                    "topk: clusters choose tokens; single: each token joins one cluster",
                ),
                Option("capacity", 0, range(65_537), "tokens per cluster; 0: N / C"),
                Option("count", "all", ("all", "root"), "clusters in use: all, or the first √N"),
                Option("heads", "own", ("own", "shared"), "clusters of each head, or the same for all heads"),
                Option("function", "softmax", ("softmax", "laplace"), "attention function"),
            ),
        ),
    ),
    "agglomerative": Mechanism(
        AgglomerativeAttention,
        "Spellings 2019, Agglomerative Attention",
        "N",
        "N",
        Schema(
            "C",
            Option("classes", 8, COUNT, "soft classes, C"),
            (CAUSAL, Option("tie", False, (False, True), "use one classifier for queries and references")),
        ),
    ),
    "summary": Mechanism(SummaryMixing, "Parcollet et al. 2023, SummaryMixing", "N", "N"),
    "hyper": Mechanism(
        HyperMixing,
        HYPER,
        "N·hidden",
        "N·hidden",
        Schema(
            options=(
                Option("hidden", 0, range(65_537), "hidden units of the generated MLP; 0: 2 · model size"),
                Option("tie", False, (False, True), "generate both of its matrices with one hypernetwork"),
            )
        ),
    ),
}


def parse_name(name: str) -> Spec:
    """Parse the name of a mechanism.

    Raises:
        UserError: an unknown mechanism or option, or a value out of range, with what is allowed.
    """
    return parse(name, {key: mechanism.schema for key, mechanism in MECHANISMS.items()})


def canonical(names: list[str]) -> list[str]:
    """Return mechanism names in their canonical form.

    Example:
        >>> canonical(["lsh-4:chunk=16,buckets=64"])
        ['lsh-4:chunk=16']
    """
    return [parse_name(name).name for name in names]


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
    build = MECHANISMS[spec.mechanism].build
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
    return bool(spec.arguments.get("causal")) or spec.name == "local-0"


def mechanism_table() -> str:
    """Return the table in Markdown, as shown in the README."""
    lines = [
        "| Name | Family | Options (default) | Time | Memory | Exchangeable | Source |",
        "|---|---|---|---|---|---|---|",
    ]
    for key, mechanism in MECHANISMS.items():
        options = mechanism.schema.summary()
        cells = (
            f"`{pattern(key, mechanism.schema)}`",
            mechanism.family,
            options or "–",
            mechanism.time,
            mechanism.memory,
            mechanism.exchange,
            mechanism.source,
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def option_table() -> str:
    """Return the options of all mechanisms in Markdown, as shown in docs/attention.md."""
    found: dict[Option, list[str]] = {}
    for key, mechanism in MECHANISMS.items():
        for option in mechanism.schema.options:
            found.setdefault(option, []).append(f"`{pattern(key, mechanism.schema)}`")
    lines = ["| Option | Default | Values | Meaning | Mechanisms |", "|---|---|---|---|---|"]
    for option, names in found.items():
        case = f" ({option.only[0]}={write_value(option.only[1])})" if option.only else ""
        values = option.describe().replace("|", "\\|")
        cells = (f"`{option.name}`{case}", write_value(option.default), values, option.help, ", ".join(names))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
