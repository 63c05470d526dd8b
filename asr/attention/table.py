"""The table of attention mechanisms: maps each name to its class, which describes the mechanism."""

import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

import attention_ext
from asr.attention import own
from asr.attention.agglomerative import AgglomerativeAttention
from asr.attention.backend import NOT_COMPILED
from asr.attention.cast import CAST
from asr.attention.clustered import ClusteredAttention
from asr.attention.fastformer import Fastformer
from asr.attention.full import FullAttention, SharedFullAttention
from asr.attention.hyper import HyperMixing
from asr.attention.improved import ImprovedClusteredAttention
from asr.attention.linear import LinearAttention
from asr.attention.local import LocalAttention
from asr.attention.lsh import LSHAttention
from asr.attention.mamba import Mamba
from asr.attention.near import NearFieldAttention
from asr.attention.none import NoAttention
from asr.attention.oracle_top import OracleTopAttention
from asr.attention.softmax import QueryKeyMechanism, SoftmaxMechanism
from asr.attention.spec import Spec, allowed_values, described, number, parse, pattern
from asr.attention.summary import SummaryMixing
from asr.config.names import alternatives, split_name, split_source
from asr.config.schedule import layer_factors
from asr.console import Table
from asr.errors import UserError

BUILD = "pip install --no-build-isolation --force-reinstall --no-deps ."  # in the clone; needs a compiler
MOST_STARTS = 2**16  # positions that look_ahead tries; only layers with several large, odd chunks have more

# A class is called with `name`, `backend`, `dropout` and, if it has some, its `options`.
MECHANISMS: Mapping[str, own.Mechanism] = {
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
    "fastformer": Fastformer,
    "mamba": Mamba,
    "none": NoAttention,
}


def parse_name(name: str) -> Spec:
    """Parse the name of a mechanism. The user's code must have been loaded; see `given_name`.

    Raises:
        UserError: an unknown mechanism or option, or a value out of range, with what is allowed.
    """
    if "*" in name:
        raise UserError(f"attention {name!r}: expected one mechanism for all layers, found one for each")
    source, rest = split_source(name)
    class_name = re.match(r"\w+", rest)
    if source and class_name:
        key = f"{source}:{class_name[0]}"
        return parse(name, {key: mechanism_class(key)})
    key = split_name(name)[0]
    installed = None if key in MECHANISMS else own.find(key)
    return parse(name, {**MECHANISMS, key: installed} if installed else MECHANISMS)


def mechanism_class(mechanism: str) -> own.Mechanism:
    """Return the class of a mechanism of this package or of the user.

    Args:
        mechanism: e.g. `i-clustered`, `nystrom:Nystrom`.

    Raises:
        UserError: the mechanism doesn't exist, or its code isn't loaded.
    """
    kind = MECHANISMS.get(mechanism) or own.find(mechanism)
    if kind is None:
        raise UserError(f"unknown attention {mechanism!r}: expected one of {', '.join(MECHANISMS)}")
    return kind


def class_named(name: str) -> own.Mechanism:
    """Return the class of the mechanism that a full name stands for; see `parse_name`."""
    return mechanism_class(parse_name(name).mechanism)


def given_name(name: str) -> str:
    """Return the canonical form of the user's name for a mechanism, and load the code that it names.

    Use `parse_name` or `layer_runs`, which run no code, for names that are read from files.

    Args:
        name: e.g. `i-clustered-100`, `./nystrom.py:Nystrom-32`, `my_module:Nystrom-32`, or a mechanism for
            each layer, `full*3,./nystrom.py:Nystrom-32*9`.

    Raises:
        UserError: see `parse_name`; or a file, module or class is missing, or its code fails.

    Example:
        >>> given_name("lsh-4:chunk=16,buckets=64"), given_name("full*2,local-08*1")
        ('lsh-4:chunk=16', 'full*2,local-8*1')
    """
    if not isinstance(name, str):
        raise UserError(f"attention: expected the name of a mechanism, found {name!r:.60}")
    runs = _mapped(name, own.load)
    return _mapped(runs, lambda mechanism: parse_name(mechanism).name)


def _mapped(name: str, function: Callable[[str], str]) -> str:
    """Return a name with a function applied to the mechanism of each run of layers."""
    return ",".join(
        function(mechanism) + (f"*{layers}" if layers else "") for mechanism, layers in _divided(name)
    )


def canonical(names: list[str]) -> list[str]:
    """Return the canonical names that the user's names stand for; see `alternatives` and `given_name`.

    Example:
        >>> canonical(["lsh-4:chunk=16/32,buckets=64"])
        ['lsh-4:chunk=16', 'lsh-4']
    """
    return [given_name(name) for name in alternatives(names)]


def code_digests(*names: str) -> dict[str, str]:
    """Return the digests of the files of mechanisms from outside this package, by module."""
    return own.digests([spec for name in names for spec, _ in layer_runs(name)])


def layer_runs(name: str) -> list[tuple[Spec, int]]:
    """Parse the name of a mechanism, or of one for each layer of a model.

    Args:
        name: e.g. `full`, or `full*3,i-clustered-25*9` for three layers and nine more.

    Returns:
        Mechanisms with their numbers of layers; 0: all.

    Raises:
        UserError: see `parse_name`; or a mechanism has no number of layers.

    Example:
        >>> [(str(spec), layers) for spec, layers in layer_runs("full*3,lsh-4:chunk=16,buckets=64*9")]
        [('full', 3), ('lsh-4:chunk=16', 9)]
    """
    return [(parse_name(mechanism), layers) for mechanism, layers in _divided(name)]


def _divided(name: str) -> list[tuple[str, int]]:
    """Return the mechanisms in a name, as written, with their numbers of layers; 0: all."""
    if axis := re.search(r" (\w+=.*)", name):
        raise UserError(
            f"attention {name!r}: expected a mechanism without {axis[1]}, which is an option of its own "
            "(asr compare: frames=, precisions=, layers=, or candidates=['…'])"
        )
    if "*" not in name:
        return [(name, 0)]
    entries = re.findall(r"([^*]+)\*([1-9]\d{0,3})(?:,|$)", name)
    if ",".join(f"{mechanism}*{layers}" for mechanism, layers in entries) != name:
        raise UserError(
            f"attention {name!r}: expected a mechanism and a number of layers for each part, e.g. "
            "full*3,i-clustered-25*9"
        )
    return [(mechanism, int(layers)) for mechanism, layers in entries]


def layer_names(name: str, layers: int) -> list[str]:
    """Return the canonical name of each layer's mechanism; see `layer_runs`.

    Raises:
        UserError: an invalid name, or another number of layers.
    """
    runs = layer_runs(name)
    names = [spec.name for spec, count in runs for _ in range(count or layers)]
    if len(names) != layers:
        raise UserError(f"attention {name!r}: expected mechanisms for {layers} layers, found {len(names)}")
    return names


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
    sizes = {key: number(mechanism.options) for key, mechanism in MECHANISMS.items()}
    return [f"{key}-{size.value}" if size else key for key, size in sizes.items()]


def build_mechanism(name: str, backend: str = "auto", dropout: float = 0.0) -> QueryKeyMechanism:
    """Build a mechanism without its own parameters: one of the softmax family, or `linear`.

    Args:
        name: e.g. `full`, `i-clustered-100:topk=32`.
        backend: `auto`, `reference` or `native`.
        dropout: dropout probability on the attention weights.

    Returns:
        A module with `forward(q, k, v, lengths)`, `weights(q, k, lengths)` and, for `clustered` and
        `i-clustered`, `clusters(q, lengths)`.

    Raises:
        UserError: an unknown name, option or backend, a value out of range, a backend that can't run, or
            a mechanism with its own parameters.
    """
    spec = parse_name(name)
    build = mechanism_class(spec.mechanism)
    if not issubclass(build, QueryKeyMechanism):
        raise UserError(
            f"attention {name!r} has parameters of its own: build it with build_self_attention; "
            "a trained model can't switch to it"
        )
    return build(name=spec.name, backend=backend, dropout=dropout, **spec.keywords())


def missing_kernels(names: Iterable[str], device: str) -> str:
    """Return a sentence about mechanisms whose compiled kernels can't run, with the reason; empty if all can.

    Args:
        names: names of mechanisms, or of one for each layer.
        device: `cpu` or `cuda`.
    """
    by_reason: dict[str, list[str]] = {}
    for spec in {str(spec): spec for name in names for spec, _ in layer_runs(name)}.values():
        if issubclass(mechanism_class(spec.mechanism), SoftmaxMechanism):
            mechanism = build_mechanism(str(spec))
            assert isinstance(mechanism, SoftmaxMechanism)
            reason = mechanism.backend.reasons.get(device)
            if reason and reason != NOT_COMPILED[device]:
                by_reason.setdefault(reason, []).append(spec.mechanism)
    sentences = []
    for reason, mechanisms in by_reason.items():
        *others, last = dict.fromkeys(mechanisms)
        which = f"{', '.join(others)} and {last} run" if others else f"{last} runs"
        unbuilt = reason == attention_ext.why_unavailable(device)
        build = f"; to build them, in the clone: {BUILD}" if unbuilt else ""
        sentences.append(
            f"{which} without compiled kernels: times say nothing about the mechanism ({reason}{build})"
        )
    return "; ".join(sentences)


def is_causal(name: str) -> bool:
    """Return whether no position sees later ones, in any layer.

    Example:
        >>> is_causal("linear:causal=true"), is_causal("local-0"), is_causal("full*1,local-0*1")
        (True, True, False)
    """
    return all(mechanism_class(spec.mechanism).is_causal(spec.options) for spec, _ in layer_runs(name))


def look_ahead(name: str, layers: int, frames: str = "1") -> int | None:
    """Return the maximum look-ahead of the attention of all layers, in positions; None: to the last position.

    This is the largest difference, over all positions, between an output's position and the latest position
    that it depends on through all layers. A window's look-ahead adds up over layers; chunks without `right`
    have the same ends in every layer. A mean over a run of frames depends on the run's last frame; see
    `asr.model.frames`. The look-ahead of convolutions, features and normalisation isn't included.

    Args:
        name: mechanism, or one for each layer.
        layers: number of layers.
        frames: schedule; the result counts frames of the encoder.

    Example:
        >>> look_ahead("local-8:right=2", 12), look_ahead("full", 12)
        (24, None)
        >>> look_ahead("local-8:right=0,chunk=16", 12)
        15
        >>> look_ahead("local-8:right=2,chunk=16", 3)  # 15 to the chunk's end, two further chunks, and 2
        49
        >>> look_ahead("local-8:right=2", 12, "2")  # twice as far, from the first frame of a pair to the last
        49
    """
    specs = [parse_name(x) for x in layer_names(name, layers)]
    mixers = [(mechanism_class(spec.mechanism), spec.options) for spec in specs]
    factors = [x for x in layer_factors(frames, layers) if isinstance(x, int)]
    if len(factors) < layers:  # similarity is compared over the whole utterance
        return None
    periods = [f * mixer.period(options) for f, (mixer, options) in zip(factors, mixers, strict=True)]
    positions = 0
    # Traced from output to input. In the last layer, a chunk's start is farthest from its end; the pattern of
    # chunks repeats.
    for start in range(0, math.lcm(*periods), periods[-1])[:MOST_STARTS]:
        latest = start
        for factor, (mixer, options) in reversed(list(zip(factors, mixers, strict=True))):
            seen = mixer.latest_seen(options, latest // factor)
            if seen is None:
                return None
            latest = seen * factor + factor - 1
        positions = max(positions, latest - start)
    return positions


def exchange(mechanism: str) -> str:
    """Return whether a mechanism can replace another in a trained model: `yes`, `no` or a condition.

    Args:
        mechanism: a key of the table, or a mechanism of the user.
    """
    described = mechanism_class(mechanism)
    if not issubclass(described, SoftmaxMechanism):
        return "no"
    return "where keys are shared" if described.needs_shared_keys else "yes"


def mechanism_table() -> str:
    """Return the table in Markdown, as shown in docs/attention.md."""
    names = ("Name", "Family", "Time", "Memory", "Exchangeable", "Source")
    rows = [
        (
            f"[`{pattern(key, mechanism.options)}`](../{mechanism.__module__.replace('.', '/')}.py)",
            mechanism.family,
            mechanism.time,
            mechanism.memory,
            exchange(key),
            mechanism.source,
        )
        for key, mechanism in MECHANISMS.items()
    ]
    return Table.of("", names, rows).markdown()


def option_words() -> dict[str, tuple[str, ...]]:
    """Return the options that may follow the colon in each mechanism's name, with values if there are few."""
    return {
        key: tuple(f"{x.key}={value}" for x in described(mechanism.options) for value in x.values or ("",))
        for key, mechanism in MECHANISMS.items()
    }


def option_table() -> str:
    """Return the options of all mechanisms in Markdown, as shown in docs/attention.md."""
    mechanisms_of: dict[tuple[str, str, str, str], list[str]] = {}
    for key, mechanism in MECHANISMS.items():
        for x in described(mechanism.options):
            option = (f"`{x.key}`", x.default, allowed_values(x), x.help)
            mechanisms_of.setdefault(option, []).append(f"`{pattern(key, mechanism.options)}`")
    rows = [(*option, ", ".join(names)) for option, names in mechanisms_of.items()]
    return Table.of("", ("Option", "Default", "Values", "Meaning", "Mechanisms"), rows).markdown()
