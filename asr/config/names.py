"""Names that options accept, for modules that must not load PyTorch."""

import itertools
import re

BACKENDS = ("auto", "reference", "native")
PRECISIONS = ("auto", "fp32", "bf16", "fp16")
MOST_PIECES = 1_000_000  # maximum number of pieces of a sentencepiece tokenizer
MECHANISM_GROUP = "asr.attention"  # entry points: `nystrom = "my_package.nystrom:Nystrom"`
# The name of each attention mechanism, with its usual number; written by tools/mechanism_pages.py.
MECHANISMS = (
    "full",
    "shared-full",
    "oracle-top-32",
    "lsh-4",
    "clustered-100",
    "i-clustered-100",
    "near-100",
    "local-64",
    "linear",
    "cast-8",
    "agglomerative-8",
    "summary",
    "hyper",
    "fastformer",
    "mamba",
    "none",
)
# Options that may follow the colon in a mechanism's name; written by tools/mechanism_pages.py.
MECHANISM_OPTIONS = {
    "full": "causal=true causal=false",
    "lsh": "chunk= buckets= planes=fixed planes=layer planes=fresh rounds=merge rounds=mean",
    "clustered": (
        "grouping=hash grouping=keys bits= rank= iterations= planes=fixed planes=layer planes=fresh "
        "bias=true bias=false center=true center=false "
    ),
    "i-clustered": (
        "topk= grouping=hash grouping=keys bits= rank= iterations= planes=fixed planes=layer "
        "planes=fresh bias=true bias=false center=true center=false "
    ),
    "near": (
        "topk= window= grouping=hash grouping=keys bits= rank= iterations= planes=fixed planes=layer "
        "planes=fresh bias=true bias=false center=true center=false "
    ),
    "local": "right= chunk= global=",
    "linear": "causal=true causal=false",
    "cast": (
        "assign=topk assign=single capacity= count=all count=root heads=shared heads=own "
        "function=softmax function=laplace "
    ),
    "agglomerative": "causal=true causal=false tie=true tie=false",
    "hyper": "hidden= tie=true tie=false",
    "fastformer": "tie=true tie=false",
    "mamba": "causal=true causal=false state= expand= width= chunk=",
}

# `./nystrom.py:Nystrom-32:landmarks=8`, `my_package.nystrom:Nystrom-32`: a file or module before the class.
_WITH_SOURCE = re.compile(r"([^:,*@=]*\.py|[A-Za-z_][\w.]*):([A-Za-z_]\w*(?:[-@][^:=,]*)?(?::.*)?)")
# `25/100` in `clustered-25/100:iterations=5/10`; not slashes in the path of a file.
_ALTERNATIVES = re.compile(r"(?<=[-=])(?![^,*:]*\.py:)([^-=,:/*@]+(?:/[^-=,:/*@]+)+)")
# Words before a colon that aren't modules: mechanisms of this program, and the prefix `peer` of `asr bench`.
_STEMS = {"peer", *(re.sub(r"-\d+$", "", name) for name in MECHANISMS)}


def split_source(name: str) -> tuple[str, str]:
    """Split a mechanism's name into its file or module, empty for mechanisms of this program, and the rest.

    Example:
        >>> split_source("./nystrom.py:Nystrom-32:landmarks=8"), split_source("i-clustered-100:topk=16")
        (('./nystrom.py', 'Nystrom-32:landmarks=8'), ('', 'i-clustered-100:topk=16'))
    """
    match = _WITH_SOURCE.fullmatch(name)
    return (match[1], match[2]) if match and match[1] not in _STEMS else ("", name)


def split_name(name: str) -> tuple[str, str, str]:
    """Split the name of a mechanism into mechanism, number and options; missing parts are empty.

    Example:
        >>> split_name("nystrom:Nystrom-32:landmarks=8"), split_name("i-clustered-100"), split_name("full")
        (('nystrom:Nystrom', '32', 'landmarks=8'), ('i-clustered', '100', ''), ('full', '', ''))
    """
    source, rest = split_source(name)
    head, _, options = rest.partition(":")
    head = f"{source}:{head}" if source else head
    stem, _, number = head.rpartition("-")
    return (stem, number, options) if stem and number.isdigit() else (head, "", options)


def alternatives(names: list[str]) -> list[str]:
    """Return the mechanisms that names stand for; a name may give several values for a number or an option.

    Example:
        >>> alternatives(["full", "clustered-25/100:iterations=5/10"])[:3]
        ['full', 'clustered-25:iterations=5', 'clustered-25:iterations=10']
        >>> alternatives(["./own/nystrom.py:Nystrom-32/64"])
        ['./own/nystrom.py:Nystrom-32', './own/nystrom.py:Nystrom-64']
    """
    expanded = []
    for name in names:
        source, rest = split_source(name)
        # Because the pattern has a group, every second part contains alternatives.
        parts = _ALTERNATIVES.split(rest)
        choices = [part.split("/") if index % 2 else [part] for index, part in enumerate(parts)]
        expanded += [f"{source}:{x}" if source else x for x in map("".join, itertools.product(*choices))]
    return expanded
