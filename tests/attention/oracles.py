"""Oracles: every mechanism written from its paper, with loops in float64.

Each takes one head of one unpadded sequence: q [N, D], k [S, D], v [S, E]. Weights are [N, S].
"""

import math
import statistics
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

Code = TypeVar("Code", int, tuple[int, ...])  # a hash, or a point on the grid


def softmax(logits: list[float]) -> list[float]:
    top = max(logits)
    powers = [math.exp(logit - top) for logit in logits]
    return [power / sum(powers) for power in powers]


def logits(query: Tensor, k: Tensor, keys: list[int]) -> list[float]:
    return [float(query @ k[key]) / math.sqrt(len(query)) for key in keys]


def best(scores: list[float], count: int) -> list[int]:
    """Indices of the highest scores, ties to the lowest index."""
    return sorted(range(len(scores)), key=lambda index: (-scores[index], index))[:count]


def full(q: Tensor, k: Tensor, causal: bool = False) -> Tensor:
    """Fast Transformers with Clustered Attention, eq. 1; causal: Attention Is All You Need, section 3.2.3."""
    weights = torch.zeros(len(q), len(k), dtype=torch.float64)
    for i, query in enumerate(q):
        keys = list(range(i + 1 if causal else len(k)))
        weights[i, keys] = torch.tensor(softmax(logits(query, k, keys)), dtype=torch.float64)
    return weights


def oracle_top(q: Tensor, k: Tensor, topk: int) -> Tensor:
    """Section 4.1: the K best keys of each query, renormalised."""
    weights = torch.zeros(len(q), len(k), dtype=torch.float64)
    for i, query in enumerate(q):
        chosen = best(logits(query, k, list(range(len(k)))), topk)
        for key, weight in zip(chosen, softmax(logits(query, k, chosen)), strict=True):
            weights[i, key] = weight
    return weights


def sign_hash(x: Tensor, planes: Tensor, bias: Tensor) -> list[int]:
    """Section 3.2.2: bit p is the sign of the product with plane p, plus its bias if there is one."""
    return [
        sum(1 << p for p, plane in enumerate(planes) if float(row @ plane + bias[p].sum()) > 0) for row in x
    ]


def start_codes(codes: list[Code], clusters: int) -> list[Code]:
    """Evenly spread over the distinct codes, in the order of their first occurrence."""
    distinct = list(dict.fromkeys(codes))
    return [distinct[j * len(distinct) // clusters] for j in range(clusters)]


def refill(
    centroids: list[Code], codes: list[Code], groups: list[int], distance: Callable[[Code, Code], int]
) -> list[Code]:
    """Centroids in which empty clusters have become the codes farthest from the centroids they joined."""
    apart = {code: distance(code, centroids[group]) for code, group in zip(codes, groups, strict=True)}
    farthest = sorted((code for code in apart if apart[code] > 0), key=lambda code: -apart[code])
    refilled = list(centroids)
    for j in (j for j in range(len(centroids)) if j not in groups):
        if farthest:
            refilled[j] = farthest.pop(0)
    return refilled


def hamming_kmeans(hashes: list[int], clusters: int, iterations: int, bits: int) -> list[int]:
    """Section 3.2.2, with this project's rules for initialisation, ties and empty clusters."""
    n = len(hashes)
    if n <= clusters:
        return list(range(n))
    centroids = start_codes(hashes, clusters)
    groups: list[int] = []
    for iteration in range(iterations):
        if iteration:
            centroids = refill(centroids, hashes, groups, lambda a, b: bin(a ^ b).count("1"))
            for j in range(clusters):
                members = [h for h, group in zip(hashes, groups, strict=True) if group == j]
                if members:
                    ones = [sum(h >> p & 1 for h in members) for p in range(bits)]
                    centroids[j] = sum(1 << p for p in range(bits) if 2 * ones[p] > len(members))
        groups = []
        for h in hashes:
            distances = [bin(h ^ centroid).count("1") for centroid in centroids]
            groups.append(distances.index(min(distances)))
    return groups


def key_groups(q: Tensor, k: Tensor, clusters: int, rank: int, iterations: int) -> list[int]:
    """K-means in the metric d² = (q − q')ᵀ Σ (q − q'), with this project's rules."""
    n = len(q)
    if n <= clusters:
        return list(range(n))
    factor = key_factor(k, rank)
    points = [[float((query - q[0]) @ column) for column in factor] for query in q]
    farthest = max(math.hypot(*point) for point in points)
    grid = [tuple(round(x * 2**13 / farthest) if farthest else 0 for x in point) for point in points]
    centroids = start_codes(grid, clusters)
    groups: list[int] = []
    for iteration in range(iterations):
        if iteration:
            centroids = refill(centroids, grid, groups, squared_distance)
            for j in range(clusters):
                members = [point for point, group in zip(grid, groups, strict=True) if group == j]
                if members:
                    sums = [sum(values) for values in zip(*members, strict=True)]
                    centroids[j] = tuple((2 * x + len(members)) // (2 * len(members)) for x in sums)
        groups = []
        for point in grid:
            distances = [squared_distance(point, centroid) for centroid in centroids]
            groups.append(distances.index(min(distances)))
    return groups


def squared_distance(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    return sum((x - y) ** 2 for x, y in zip(a, b, strict=True))


def key_factor(k: Tensor, rank: int) -> list[Tensor]:
    """Columns of R: a power iteration, orthonormalised by Gram and Schmidt in the inner product of Σ."""
    dim, used = k.shape[1], min(len(k), 128)
    keys = [k[m * len(k) // used] - k[0] for m in range(used)]
    centre = sum(keys) / used if keys else torch.zeros(dim, dtype=torch.float64)
    covariance = sum(torch.outer(key - centre, key - centre) for key in keys) + torch.zeros(dim, dim).double()
    columns = [
        torch.tensor([(256 * j + d) ** 3 % 1021 / 1021 - 0.5 for d in range(1, dim + 1)], dtype=torch.float64)
        for j in range(1, min(rank, dim) + 1)
    ]
    for _ in range(2):
        total = sum(float(column @ covariance @ column) for column in columns)
        basis: list[Tensor] = []
        for column in columns:
            for other in basis:
                column = column - (other @ covariance @ column) * other
            variance = float(column @ covariance @ column)
            basis.append(column / math.sqrt(variance) if variance > 2**-40 * total else 0 * column)
        columns = [covariance @ column for column in basis]
    return columns


def clustered(q: Tensor, k: Tensor, groups: list[int]) -> Tensor:
    """Eq. 3, 4 and 6."""
    weights = torch.zeros(len(q), len(k), dtype=torch.float64)
    for group in set(groups):
        members = [i for i, g in enumerate(groups) if g == group]
        centroid = sum(q[i] for i in members) / len(members)
        row = torch.tensor(softmax(logits(centroid, k, list(range(len(k))))), dtype=torch.float64)
        for i in members:
            weights[i] = row
    return weights


def improved(q: Tensor, k: Tensor, groups: list[int], topk: int) -> Tensor:
    """Eq. 9 and 10."""
    weights = clustered(q, k, groups)
    for i, query in enumerate(q):
        members = [m for m, g in enumerate(groups) if g == groups[i]]
        centroid = sum(q[m] for m in members) / len(members)
        chosen = best(logits(centroid, k, list(range(len(k)))), topk)
        mass = sum(float(weights[i, key]) for key in chosen)
        for key, weight in zip(chosen, softmax(logits(query, k, chosen)), strict=True):
            weights[i, key] = mass * weight
    return weights


def near(q: Tensor, k: Tensor, groups: list[int], topk: int, window: int) -> Tensor:
    """One softmax: the query's logits on its cluster's best keys and its neighbours, else the centroid's."""
    weights = torch.zeros(len(q), len(k), dtype=torch.float64)
    every = list(range(len(k)))
    for i, query in enumerate(q):
        members = [m for m, g in enumerate(groups) if g == groups[i]]
        far = logits(sum(q[m] for m in members) / len(members), k, every)
        exact = logits(query, k, every)
        chosen = set(best(far, topk)) | {key for key in every if abs(key - i) <= window}
        row = softmax([exact[key] if key in chosen else far[key] for key in every])
        weights[i] = torch.tensor(row, dtype=torch.float64)
    return weights


def lsh(q: Tensor, k: Tensor, rotations: Tensor, chunk: int) -> Tensor:
    """Reformer, section 2: a softmax over the union of the keys that each round makes visible."""
    n = len(q)
    seen: list[set[int]] = [set() for _ in range(n)]
    for rotation in rotations:
        turned = [torch.cat((row @ rotation, -(row @ rotation))).tolist() for row in k]
        order = sorted(range(n), key=lambda i: (turned[i].index(max(turned[i])), i))
        for rank, i in enumerate(order):
            start = max(0, (rank // chunk - 1) * chunk)
            seen[i] |= set(order[start : (rank // chunk + 1) * chunk])
    weights = torch.zeros(n, n, dtype=torch.float64)
    for i in range(n):
        keys = sorted(seen[i] - {i}) or [i]
        for key, weight in zip(keys, softmax(logits(q[i], k, keys)), strict=True):
            weights[i, key] = weight
    return weights


def local(q: Tensor, k: Tensor, window: int, count: int, right: int, chunk: int) -> Tensor:
    """Longformer, section 3.1: a window on each side of a query's chunk; all see the first, which see all."""
    weights = torch.zeros(len(q), len(k), dtype=torch.float64)
    for i, query in enumerate(q):
        start = i // chunk * chunk
        near = range(start - window, start + chunk + right)
        keys = [j for j in range(len(k)) if j in near or i < count or j < count]
        for key, weight in zip(keys, softmax(logits(query, k, keys)), strict=True):
            weights[i, key] = weight
    return weights


def linear(q: Tensor, k: Tensor, causal: bool) -> Tensor:
    """Transformers are RNNs, eq. 4 with the feature map of eq. 7; causal, eq. 8."""

    def features(row: Tensor) -> list[float]:
        return [float(x) + 1 if x > 0 else math.exp(float(x)) for x in row]

    weights = torch.zeros(len(q), len(k), dtype=torch.float64)
    for i, query in enumerate(q):
        keys = range(i + 1) if causal else range(len(k))
        similarities = [
            sum(a * b for a, b in zip(features(query), features(k[j]), strict=True)) for j in keys
        ]
        weights[i, : len(keys)] = torch.tensor(similarities, dtype=torch.float64) / sum(similarities)
    return weights


def gelu(x: Tensor) -> Tensor:
    return torch.tensor(
        [y * (1 + math.erf(y / math.sqrt(2))) / 2 for y in x.flatten().tolist()], dtype=torch.float64
    ).view(x.shape)


def summary(x: Tensor, layer: torch.nn.Module) -> Tensor:
    """SummaryMixing, eq. 1 and 2; x is [N, M]."""
    parameters = {name: value.detach().double() for name, value in layer.named_parameters()}

    def dense(name: str, row: Tensor) -> Tensor:
        return parameters[f"{name}.weight"] @ row + parameters[f"{name}.bias"]

    mean = sum(gelu(dense("summary.0", row)) for row in x) / len(x)
    return torch.stack([dense("combine", torch.cat((gelu(dense("local.0", row)), mean))) for row in x])


def fastformer(x: Tensor, layer: torch.nn.Module) -> Tensor:
    """Fastformer, section 3.2; x is [N, M]."""
    parameters = {name: value.detach().double() for name, value in layer.named_parameters()}

    def dense(name: str, row: Tensor) -> Tensor:
        name = "query" if f"{name}.weight" not in parameters else name
        return parameters[f"{name}.weight"] @ row + parameters[f"{name}.bias"]

    def pool(rows: list[Tensor], weight: Tensor) -> Tensor:
        scores = [float(weight @ row) / math.sqrt(len(row)) for row in rows]
        return sum(score * row for score, row in zip(softmax(scores), rows, strict=True))

    queries, keys, values = ([dense(name, row) for row in x] for name in ("query", "key", "value"))
    width = x.shape[1] // len(parameters["weigh_query"])
    mixed = []
    for head, (weigh_query, weigh_key) in enumerate(
        zip(parameters["weigh_query"], parameters["weigh_key"], strict=True)
    ):
        part = slice(head * width, (head + 1) * width)
        query = pool([row[part] for row in queries], weigh_query)
        key = pool([query * row[part] for row in keys], weigh_key)
        mixed.append(torch.stack([key * row[part] for row in values]))
    transformed = [dense("transform", row) for row in torch.cat(mixed, dim=1)]
    return torch.stack([row + query for row, query in zip(transformed, queries, strict=True)])


def mamba(x: Tensor, layer: torch.nn.Module) -> Tensor:
    """Mamba-2's recurrence from the first position and from the last; x is [N, M]."""
    p = {name: value.detach().double() for name, value in layer.named_parameters()}
    inner, state, heads, ways = layer.output.in_features, layer.state, layer.heads, layer.ways
    taps = p["taps_C1W"][:, 0]
    before = taps.shape[1] - 1 if ways == 1 else taps.shape[1] // 2
    rows = [p["input.weight"] @ row for row in x]
    steps = [p["step.weight"] @ row + p["step.bias"] for row in x]
    mixed = []
    for n in range(len(x)):
        row = p["taps_bias"].clone()
        for w in range(taps.shape[1]):
            if 0 <= n + w - before < len(x):
                row += taps[:, w] * rows[n + w - before][inner:]
        mixed.append(row * torch.sigmoid(row))
    total = [p["skip"].repeat_interleave(inner // heads) * row[:inner] for row in mixed]
    for way in range(ways):
        h = torch.zeros(heads, state, inner // heads, dtype=torch.float64)
        for n in range(len(x)) if way == 0 else reversed(range(len(x))):
            key, query = (mixed[n][inner + i * state :][:state] for i in (way, ways + way))
            for head, u in enumerate(mixed[n][:inner].chunk(heads)):
                step = math.log1p(math.exp(steps[n][way * heads + head]))
                decay = math.exp(-step * math.exp(p["log_rate"][way * heads + head]))
                h[head] = decay * h[head] + step * torch.outer(key, u)
            total[n] += torch.cat([query @ h[head] for head in range(heads)])
    result = []
    for row, scanned in zip(rows, total, strict=True):
        gated = scanned * row[:inner] * torch.sigmoid(row[:inner])
        scale = math.sqrt(float(gated @ gated) / inner + 1e-5)
        result.append(p["output.weight"] @ (gated / scale * p["norm_weight"]))
    return torch.stack(result)


def hyper(x: Tensor, layer: torch.nn.Module) -> Tensor:
    """HyperMixer, section 3, in the heads of HyperConformer; x is [N, M]."""
    parameters = {name: value.detach().double() for name, value in layer.named_parameters()}
    width = x.shape[1] // layer.heads

    def generate(side: str, head: int, row: Tensor) -> Tensor:
        side = "read" if f"{side}.hidden_HDD" not in parameters else side
        weights = {
            key.split(".")[1]: value[head] for key, value in parameters.items() if key.startswith(side)
        }
        hidden = gelu(row @ weights["hidden_HDD"] + weights["hidden_bias_HD"])
        return hidden @ weights["output_HDU"] + weights["output_bias_HU"]

    mixed = []
    for head in range(layer.heads):
        rows = x[:, head * width : (head + 1) * width]
        first = torch.stack([generate("write", head, row) for row in rows])
        second = torch.stack([generate("read", head, row) for row in rows])
        mixed.append(first @ gelu(second.T @ rows))
    normalised = []
    for row in torch.cat(mixed, dim=1):
        centred = row - row.mean()
        normalised.append(centred / math.sqrt(float((centred**2).mean()) + layer.norm.eps))
    return torch.stack(normalised) * parameters["norm.weight"] + parameters["norm.bias"]


def agglomerative(x: Tensor, layer: torch.nn.Module, causal: bool) -> Tensor:
    """Agglomerative Attention, section Methods; x is [N, M]."""
    parameters = {name: value.detach().double() for name, value in layer.named_parameters()}

    def classes(side: str) -> list[list[float]]:
        weight, bias = parameters[f"{side}.weight"], parameters[f"{side}.bias"]
        return [softmax((weight @ row + bias).tolist()) for row in x]

    reference = classes("reference_classes")
    query = reference if "query_classes.weight" not in parameters else classes("query_classes")
    count = len(reference[0])
    width = x.shape[1] // count
    out = []
    for i in range(len(x)):
        times = range(i + 1) if causal else range(len(x))
        parts = []
        for c in range(count):
            projection = parameters["values.weight"][c * width : (c + 1) * width]
            total = sum(reference[t][c] for t in times)
            average = sum(reference[t][c] * (projection @ x[t]) for t in times) / total
            parts.append(query[i][c] * average)
        out.append(parameters["output.weight"] @ torch.cat(parts))
    return torch.stack(out)


def single_assignment(affinity: Tensor, capacity: int) -> list[int]:
    """CAST, SA Top-K: tokens bid for the best cluster with room, best bidders win; affinity is [N, C]."""
    n, clusters = affinity.shape
    owner: list[int | None] = [None] * n
    while None in owner:
        room = [capacity - owner.count(j) for j in range(clusters)]
        bids: dict[int, list[int]] = {}
        for i in range(n):
            if owner[i] is None:
                scores = [float(affinity[i, j]) if room[j] else -1.0 for j in range(clusters)]
                bids.setdefault(scores.index(max(scores)), []).append(i)
        for j, bidders in bids.items():
            for i in sorted(bidders, key=lambda i: (-float(affinity[i, j]), i))[: room[j]]:
                owner[i] = j
    return [j for j in owner if j is not None]


def laplace(values: list[float]) -> list[float]:
    """Mega: the normal distribution function with mean √½ and variance 1/4π, divided by their number."""
    normal = statistics.NormalDist(math.sqrt(0.5), math.sqrt(1 / (4 * math.pi)))
    return [normal.cdf(value) / len(values) for value in values]


def cast(x: Tensor, layer: torch.nn.Module) -> Tensor:
    """CAST, the six steps of the layer's docstring; x is [N, M]."""
    parameters = {name: value.detach().double() for name, value in layer.named_parameters()}
    n, heads, clusters = len(x), layer.heads, layer.clusters

    def linear(name: str) -> Tensor:
        return x @ parameters[f"{name}.weight"].T + parameters[f"{name}.bias"]

    gate = [float(g) for g in linear("gate")]
    q, k, v = (linear(name).view(n, heads, -1) for name in ("query", "key", "value"))
    scale = 1 / math.sqrt(q.shape[-1])
    if layer.follows_length:
        clusters = min(clusters, math.ceil(math.sqrt(n)))
    function = softmax if layer.function == "softmax" else laplace
    even = math.ceil(n / clusters)
    capacity = min(layer.capacity, n) or even
    mixed = torch.zeros_like(v)

    def joint_affinity(h: int) -> Tensor:
        surrogates = parameters["surrogates_HCD"][h, :clusters]
        rows = []
        for i in range(n):
            share = 1 / (1 + math.exp(-gate[i]))
            side_q, side_k = (function((scale * surrogates @ side[i, h]).tolist()) for side in (q, k))
            rows.append([share * a + (1 - share) * b for a, b in zip(side_q, side_k, strict=True)])
        return torch.tensor(rows, dtype=torch.float64)

    affinities = [joint_affinity(h) for h in range(heads)]
    for h in range(heads):
        surrogates = parameters["surrogates_HCD"][h, :clusters]
        a_q, a_k = scale * q[:, h] @ surrogates.T, scale * k[:, h] @ surrogates.T
        joint = sum(affinities) / heads if layer.shared else affinities[h]
        if layer.assign == "single":
            owner = single_assignment(joint, max(capacity, even))
            groups = [[i for i in range(n) if owner[i] == j] for j in range(clusters)]
        else:
            groups = [best(joint[:, j].tolist(), capacity) for j in range(clusters)]
        alive = [j for j in range(clusters) if groups[j]]
        summaries = {}
        for j in alive:
            shares = function([float(a_k[i, j]) * (1 + math.log1p(math.exp(-gate[i]))) for i in groups[j]])
            summaries[j] = sum(share * v[i, h] for share, i in zip(shares, groups[j], strict=True))
        for i in range(n):
            shares = function([float(a_q[i, j]) * (1 + math.log1p(math.exp(gate[i]))) for j in alive])
            for share, j in zip(shares, alive, strict=True):
                if i in groups[j]:
                    inside = function([float(q[i, h] @ k[l, h]) * scale for l in groups[j]])
                    part = sum(weight * v[l, h] for weight, l in zip(inside, groups[j], strict=True))
                else:
                    part = summaries[j]
                mixed[i, h] += share * part
    return mixed.flatten(1) @ parameters["output.weight"].T + parameters["output.bias"]
