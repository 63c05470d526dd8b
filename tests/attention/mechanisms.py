"""Small mechanisms of every kind and inputs for the attention tests.

Mechanisms of the table that no list names are added with small numbers and every value of their options.
"""

import re

import oracles
from small_mechanisms import small_names, unlisted
from torch import Tensor

from asr.attention import (
    MECHANISMS,
    QueryKeyMechanism,
    SoftmaxMechanism,
    build_mechanism,
    parse_name,
)
from asr.attention.checks.inputs import LENGTHS, build, build_layer, inputs, layer_input

__all__ = ["LENGTHS", "build", "build_layer", "inputs", "layer_input"]
C, K = 5, 4
KEYS = [f"clustered-{C}:grouping=keys", f"i-clustered-{C}:topk={K},grouping=keys,rank=3,iterations=4"]
BIASED = f"clustered-{C}:planes=fresh,bias=true"
CENTRED = f"clustered-{C}:center=true"
CROSS = ["full", f"oracle-top-{K}", f"clustered-{C}", BIASED, CENTRED, *KEYS, f"i-clustered-{C}:topk={K}"]
SHARED = ["shared-full", "lsh-1:chunk=4,buckets=4", "lsh-3:chunk=4,buckets=8"]
SHARED += ["lsh-3:chunk=4,buckets=8,planes=layer,rounds=mean"]
NEAR = [
    f"near-{C}:topk={K},window=2",
    f"near-{C}:topk=1,window=0,grouping=hash",
    f"near-{C}:topk=3,window=1,grouping=hash,center=true",
    f"near-{C}:topk=2,window=70",
]
LOCAL = ["local-3", "local-0:global=1", "local-70:global=40", "local-3:right=0", "local-1:right=9"]
LOCAL += ["local-2:right=0,chunk=4", "local-0:right=3,chunk=5,global=2", "local-9:chunk=70"]
SOFTMAX = [*CROSS, "full:causal=true", *SHARED, *LOCAL, *NEAR]
LINEAR = ["linear", "linear:causal=true"]
OWN = [
    "cast-3",
    "cast-3:capacity=2",
    "cast-3:assign=single",
    "cast-3:assign=single,capacity=5",
    "cast-3:heads=own",
    "cast-3:function=laplace",
    "cast-9:count=root",
    "cast-4:assign=single,capacity=2,count=root,heads=own,function=laplace",
    "agglomerative-4",
    "agglomerative-4:causal=true",
    "agglomerative-4:tie=true",
    "summary",
    "hyper",
    "hyper:hidden=6,tie=true",
]
FURTHER = [
    name for mechanism in unlisted([*SOFTMAX, *LINEAR, *OWN, "none"]) for name in small_names(mechanism)
]
for further in FURTHER:
    described = MECHANISMS[parse_name(further).mechanism]
    if not issubclass(described, QueryKeyMechanism):
        OWN.append(further)
        continue
    (SOFTMAX if issubclass(described, SoftmaxMechanism) else LINEAR).append(further)
    if issubclass(described, SoftmaxMechanism) and build_mechanism(further).cross_attention:
        CROSS.append(further)
QUERY_KEY = SOFTMAX + LINEAR


def oracle_weights(mechanism: QueryKeyMechanism, q: Tensor, k: Tensor) -> Tensor:
    """Return the oracle's weights [N, S] for one head of one unpadded sequence.

    A mechanism that isn't named here has an oracle of its own name, a function of q, k and the mechanism.
    """
    q, k = q.double(), k.double()
    kind = parse_name(mechanism.name).mechanism
    if kind == "lsh":
        rotations_RDF = mechanism.rotations_RDF(q.shape[1]).double()
        parts = rotations_RDF.split(1) if mechanism.rounds == "mean" else [rotations_RDF]
        return sum(oracles.lsh(q, k, part, mechanism.chunk) for part in parts) / len(parts)
    if kind == "local":
        return oracles.local(q, k, mechanism.window, mechanism.first, mechanism.right, mechanism.chunk)
    if kind == "linear":
        return oracles.linear(q, k, mechanism.causal)
    if kind == "oracle-top":
        return oracles.oracle_top(q, k, mechanism.topk)
    if kind in ("clustered", "i-clustered", "near"):
        grouping = mechanism.grouping
        if grouping.needs_keys:
            groups = oracles.key_groups(q, k, grouping.clusters, grouping.rank, grouping.iterations)
        else:
            planes_PD = grouping.planes_PD(q.shape[1]).double()
            x = q - q.mean(0) if grouping.center else q
            hashes = oracles.sign_hash(x, planes_PD[:, : q.shape[1]], planes_PD[:, q.shape[1] :])
            groups = oracles.hamming_kmeans(hashes, grouping.clusters, grouping.iterations, grouping.bits)
        match kind:
            case "clustered":
                return oracles.clustered(q, k, groups)
            case "i-clustered":
                return oracles.improved(q, k, groups, mechanism.topk)
        return oracles.near(q, k, groups, mechanism.topk, mechanism.window)
    if kind in ("full", "shared-full"):
        return oracles.full(q, k, causal=mechanism.causal)
    return getattr(oracles, kind.replace("-", "_"))(q, k, mechanism)


def two_iterations(name: str) -> str:
    """Return a name whose K-means has two iterations: enough where clusters are constants, or for a graph."""
    if not re.match("(i-)?clustered|near", name):
        return name
    name = name.removesuffix(",iterations=4")
    return name + (":" if ":" not in name else ",") + "iterations=2"
