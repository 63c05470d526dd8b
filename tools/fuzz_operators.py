"""Compare the compiled operators with their references on random calls, valid and invalid.

    python tools/fuzz_operators.py --cases 20000 --out build/fuzz
    python tools/fuzz_operators.py --cases 3000 --out build/fuzz --sanitize

A case is determined by seed and number. Cases run in processes of their own, so that a crash is found and
attributed; an interrupted run resumes. `--sanitize` builds the kernels with AddressSanitizer and
UndefinedBehaviorSanitizer and runs the cases on them.

Hashes, groups and buckets must equal the reference's. Outputs and gradients are compared with the reference
in float64. The error (Frobenius norm) must not exceed

    2 · error of the reference in the same type + 4 · u · M · (1 + largest |q|·|k|/√D)

with M the size of the terms summed, and u the unit roundoff of the sums, or that of the inputs: for dq and
dk, because backward gets the output in their type, and on tiles of bfloat16, which round weights. For float64
the bound is 16 · u · M · (1 + …), because no reference is more exact.

An invalid call must raise a Python exception. Calls with NaN or infinity must only not crash.
"""

import argparse
import contextlib
import itertools
import os
import random
import runpy
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from asr.files import digest
from asr.records.job import Job
from attention_ext import library, operators
from attention_ext.clustered_attention import native as clustered_native
from attention_ext.clustered_attention import reference as clustered_reference
from attention_ext.clusters.reference import centroid_scores, membership
from attention_ext.hashing import native as hashing_native
from attention_ext.hashing import reference as hashing_reference
from attention_ext.improved_clustered_attention import native as improved_native
from attention_ext.improved_clustered_attention import reference as improved_reference
from attention_ext.key_grouping import native as key_native
from attention_ext.key_grouping import reference as key_reference
from attention_ext.kmeans import native as kmeans_native
from attention_ext.kmeans import reference as kmeans_reference
from attention_ext.local_attention import native as local_native
from attention_ext.local_attention import reference as local_reference
from attention_ext.lsh_attention import native as lsh_native
from attention_ext.lsh_attention import reference as lsh_reference
from attention_ext.near_attention import native as near_native
from attention_ext.near_attention import reference as near_reference

REPOSITORY = Path(__file__).resolve().parent.parent
BATCH = 500  # cases in a process
SECONDS = 300.0  # longest silence of a process before it is ended
DTYPES = (torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16)
POSITIONS = (
    0, 1, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 97, 127, 128, 129, 200, 500, 1100,
)  # fmt: skip
HEAD_SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 16, 17, 24, 31, 32, 33, 48, 63, 64, 65, 96, 100, 128, 256)
CLUSTERS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 100, 257, 1024)
TOPK = (1, 2, 3, 7, 8, 9, 16, 31, 32, 33, 100, 1000, 2**40)
CHUNKS = (1, 2, 3, 5, 8, 16, 31, 32, 33, 64, 75, 1000, 2**62)
WINDOWS = (0, 0, 1, 2, 7, 16, 31, 64, 200, 1000, 2**62)
FIRST = (0, 0, 0, 1, 2, 5, 17, 33, 300, 2**62)
MOST_PAIRS = 100_000  # batch · heads · queries · keys of a case
INTEGERS = (-(2**63), -(2**31), -1, 0, 1, 2, 1025, 2**31, 2**40, 2**62, 2**63 - 1)
FLOATS = (-0.1, 1.0, 1 - 2**-53, 1e-320, float("nan"), float("inf"))


# The compiled operator and its reference: hashing and grouping, then attention.
KERNELS: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]] = {
    "hash_sign": (hashing_native.hash_sign, hashing_reference.hash_sign),
    "subtract_mean": (hashing_native.subtract_mean, hashing_reference.subtract_mean),
    "hamming_kmeans": (kmeans_native.hamming_kmeans, kmeans_reference.hamming_kmeans),
    "key_groups": (key_native.key_groups, key_reference.key_groups),
    "lsh_buckets": (lsh_native.lsh_buckets, lsh_reference.lsh_buckets),
    "clustered": (clustered_native.clustered_attention, clustered_reference.clustered_attention),
    "improved": (
        improved_native.improved_clustered_attention,
        improved_reference.improved_clustered_attention,
    ),
    "lsh": (lsh_native.lsh_attention, lsh_reference.lsh_attention),
    "local": (local_native.local_attention, local_reference.local_attention),
    "near": (near_native.near_attention, near_reference.near_attention),
}


@dataclass
class Call:
    """A valid call of one operator.

    Attributes:
        vectors: floating-point tensors that may need gradients, or the vectors to hash.
        others: remaining arguments.
        wild: whether the vectors hold NaN, infinity or extreme values.
    """

    operator: str
    vectors: list[Tensor]
    others: dict[str, Any]
    query_lengths: Tensor
    key_lengths: Tensor
    wild: bool = False
    needs: tuple[bool, ...] = ()
    grad: Tensor = field(default_factory=lambda: torch.zeros(0))


class Draw:
    """Random choices of one case."""

    def __init__(self, seed: int, number: int) -> None:
        self.random = random.Random(f"{seed} {number}")
        self.generator = torch.Generator().manual_seed(self.random.getrandbits(60))

    def of(self, *choices: Any) -> Any:
        """Return one of the choices."""
        return self.random.choice(choices)

    def chance(self, probability: float) -> bool:
        """Return True with a probability."""
        return self.random.random() < probability

    def integers(self, low: int, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        """Return random integers low … high."""
        return torch.randint(low, high + 1, shape, generator=self.generator, dtype=dtype)

    def vectors(self, dtype: torch.dtype, wild: bool, *shape: int) -> Tensor:
        """Return random vectors of some kind; NaN, infinity and extreme values only if wild."""
        x = torch.randn(shape, generator=self.generator, dtype=torch.float64)
        kinds = ("normal", "normal", "normal", "scaled", "integers", "constant")
        kind = self.of(*kinds, *["extreme", "not finite"] * (3 if wild else 0))
        match kind:
            case "scaled":
                x *= self.of(1e-3, 0.1, 3.0)
            case "integers":
                x = x.mul(2).round()
            case "constant":
                x = x[..., :1, :].expand(shape).clone()
            case "extreme":
                x *= self.of(1e-30, 100.0, 1e4, 1e30)
            case "not finite":
                where = torch.rand(shape, generator=self.generator) < self.of(0.001, 0.1, 1.0)
                x[where] = self.of(float("nan"), float("inf"), -float("inf"))
        return x.to(dtype)

    def laid_out(self, x: Tensor) -> Tensor:
        """Return the same values in some memory layout; what lies between them is NaN or large."""
        outside = float("nan") if x.is_floating_point() else 2**30
        match self.of("as is", "as is", "permuted", "offset", "stepped"):
            case "permuted":
                order = self.random.sample(range(x.dim()), x.dim())
                return x.permute(order).contiguous().permute([order.index(i) for i in range(x.dim())])
            case "offset":
                wide = x.new_full([n + 3 for n in x.shape], outside)
                place = wide[tuple(slice(1, n + 1) for n in x.shape)]
                return place.copy_(x)
            case "stepped":
                wide = x.new_full([2 * n for n in x.shape], outside)
                return wide[(slice(None, None, 2),) * x.dim()].copy_(x)
        return x

    def lengths(self, B: int, size: int) -> Tensor:
        """Return lengths 0 … size, int64 or int32."""
        lengths = [self.of(size, size, 0, min(1, size), self.random.randint(0, size)) for _ in range(B)]
        return self.laid_out(torch.tensor(lengths, dtype=self.of(torch.int64, torch.int64, torch.int32)))

    def poisoned(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Return x with padding that must not be read."""
        padding = torch.arange(x.shape[2]) >= lengths[:, None]
        return x.masked_fill(padding.view(len(x), 1, x.shape[2], *[1] * (x.dim() - 3)), torch.nan)


def make_call(draw: Draw) -> Call:
    """Return a random valid call."""
    operator = draw.of(*list(KERNELS)[:5], *list(KERNELS)[5:] * 3)  # attention more often than grouping
    B, H = draw.of(0, *[1, 2, 3] * 8), draw.of(0, *[1, 2, 3] * 8)
    N, S = draw.of(*POSITIONS), draw.of(*POSITIONS)
    D, E = draw.of(*HEAD_SIZES), draw.of(*HEAD_SIZES)
    alike = operator in ("lsh", "local", "near")  # self-attention only
    S = N if alike or draw.chance(0.5) else S
    while B * H * N * S > MOST_PAIRS:
        B, H, N, S = max(1, B - 1), max(1, H - 1), N // 2, S // 2
    S = N if alike else S
    query_lengths = draw.lengths(B, N)
    dtype, wild = draw.of(*DTYPES), draw.chance(0.15)
    match operator:
        case "hash_sign":
            x, bits = draw.vectors(dtype, wild, B, H, N, D), draw.random.randint(1, 63)
            planes = torch.randn(bits, D, generator=draw.generator).to(draw.of(torch.float32, *DTYPES))
            others = {"planes_PD": draw.laid_out(planes)}
            return Call(operator, [draw.laid_out(x)], others, query_lengths, query_lengths, wild)
        case "subtract_mean":
            x = draw.laid_out(draw.poisoned(draw.vectors(dtype, wild, B, H, N, D), query_lengths))
            others = {"lengths_B": query_lengths}
            return Call(operator, [x], others, query_lengths, query_lengths, wild)
        case "hamming_kmeans":
            bits = draw.of(1, 2, 5, 31, 32, 62, 63)
            hashes = draw.integers(0, 2**bits - 1 - (bits == 63), B, H, N)
            others = {"clusters": draw.of(*CLUSTERS), "iterations": draw.of(1, 2, 3, 10), "bits": bits}
            return Call(operator, [draw.laid_out(hashes)], others, query_lengths, query_lengths)
        case "key_groups":
            key_lengths = draw.lengths(B, S)
            q, k = (
                draw.laid_out(draw.poisoned(draw.vectors(dtype, wild, B, H, size, D), lengths))
                for size, lengths in ((N, query_lengths), (S, key_lengths))
            )
            others = {"k_BHSD": k, "query_lengths_B": query_lengths, "key_lengths_B": key_lengths}
            others |= {"clusters": draw.of(*CLUSTERS), "rank": draw.of(1, 2, 7, 8, 9, 16, 33, 256)}
            return Call(operator, [q], others | {"iterations": draw.of(1, 2, 5)}, *[query_lengths] * 2, wild)
        case "lsh_buckets":
            x = draw.vectors(dtype, wild, B, H, N, D)
            rotations = torch.randn(
                draw.of(1, 2, 4), D, draw.of(1, 2, 4, 13, 32, 100), generator=draw.generator
            )
            x = draw.laid_out(draw.poisoned(x, query_lengths))
            others = {"rotations_RDF": draw.laid_out(rotations.to(draw.of(torch.float32, torch.float64)))}
            return Call(operator, [x], others, query_lengths, query_lengths, wild)
    key_lengths = query_lengths if N == S else draw.lengths(B, S)
    q, k, v = (draw.vectors(dtype, wild, B, H, *size) for size in ((N, D), (S, D), (S, E)))
    grad = torch.randn(B, H, N, E, generator=draw.generator).to(dtype)
    vectors = [
        draw.laid_out(draw.poisoned(x, lengths))
        for x, lengths in ((q, query_lengths), (k, key_lengths), (v, key_lengths), (grad, query_lengths))
    ]
    others: dict[str, Any] = {"dropout": draw.of(0.0, 0.0, 0.0, 0.1, 0.9)}
    padding = torch.arange(N) >= query_lengths[:, None]
    if operator == "local":
        left, chunk = draw.of(*WINDOWS), draw.of(1, *CHUNKS)
        others |= {"left": left, "right": draw.of(left, *WINDOWS), "chunk": chunk, "first": draw.of(*FIRST)}
    elif operator == "lsh":
        most, R = draw.of(1, 2, 16, 65_536) - 1, draw.of(1, 1, 2, 3, 8)
        buckets = draw.integers(0, most, B, H, R, N, dtype=torch.int32)
        buckets = buckets.masked_fill(padding[:, None, None], 2**31 - 1)
        others |= {"buckets_BHRN": draw.laid_out(buckets), "chunk": draw.of(*CHUNKS)}
    else:
        C = draw.of(*CLUSTERS)
        groups = draw.integers(0, max(0, draw.of(1, min(C, N)) - 1), B, H, N, dtype=torch.int32)
        groups = groups.masked_fill(padding[:, None], draw.of(-1, 2**31 - 1))
        others |= {"groups_BHN": draw.laid_out(groups), "clusters": C}
        others |= {"topk": draw.of(*TOPK)} if operator in ("improved", "near") else {}
        others |= {"window": draw.of(*WINDOWS)} if operator == "near" else {}
    needs = draw.of(*itertools.product((False, True), repeat=3), *[(True, True, True)] * 8)
    return Call(operator, vectors[:3], others, query_lengths, key_lengths, wild, needs, vectors[3])


def attend(call: Call, native: bool, *inputs: Tensor) -> Tensor:
    """Return the output of clustered, improved, LSH, local or near attention."""
    lengths = {"query_lengths_B": call.query_lengths, "key_lengths_B": call.key_lengths}
    if call.operator in ("lsh", "local", "near"):
        lengths = {"lengths_B": call.query_lengths}
    return KERNELS[call.operator][0 if native else 1](*inputs, **lengths, **call.others)


def run(call: Call, native: bool, dtype: torch.dtype) -> list[Tensor | None]:
    """Return output and gradients."""
    inputs = [
        x.detach().to(dtype).requires_grad_(need) for x, need in zip(call.vectors, call.needs, strict=True)
    ]
    if not native and 0 in (*inputs[0].shape[:3], inputs[1].shape[2]):  # the references don't take these
        out = inputs[0] @ inputs[1].mT @ inputs[2]
    else:
        out = attend(call, native, *inputs)
    if out.requires_grad:
        out.backward(call.grad.to(dtype))
    return [out.detach(), *(x.grad for x in inputs)]


def term_sizes(call: Call) -> tuple[list[float], float]:
    """Return the size M of the terms in the output and in each gradient, and a bound on the logits."""

    def rows(x: Tensor, lengths: Tensor) -> Tensor:
        keep = (torch.arange(x.shape[2]) < lengths[:, None])[:, None].expand(x.shape[:3])
        return x.detach().double()[keep].norm(dim=-1)

    q, grad = rows(call.vectors[0], call.query_lengths), rows(call.grad, call.query_lengths)
    k, v = (rows(x, call.key_lengths) for x in call.vectors[1:])
    largest = [float(x.max()) if len(x) else 0.0 for x in (q, k, v)]
    scale, total = call.vectors[0].shape[-1] ** -0.5, float(grad.norm())
    sizes = [
        len(q) ** 0.5 * largest[2],
        total * largest[2] * largest[1] * scale,
        total * largest[2] * largest[0] * scale,
        total,
    ]
    return sizes, largest[0] * largest[1] * scale


def ambiguous(call: Call, logit: float) -> bool:
    """Return whether rounding may change the top keys, and with them the output."""
    if call.operator not in ("improved", "near") or 0 in (
        *call.vectors[0].shape[:3],
        call.vectors[1].shape[2],
    ):
        return False
    q, k = (x.double() for x in call.vectors[:2])
    members = membership(
        call.others["groups_BHN"], call.query_lengths, call.others["clusters"], torch.float64
    )
    scores = centroid_scores(q, k, members, call.query_lengths, call.key_lengths)
    padding = torch.arange(k.shape[2]) >= call.key_lengths[:, None]
    ordered = scores.masked_fill(padding[:, None, None], -torch.inf).sort(-1, descending=True).values
    K = call.others["topk"]
    if k.shape[2] <= K:
        return False
    last, next_one = ordered[..., K - 1], ordered[..., K]
    used = (members.sum(2) > 0) & (next_one > -torch.inf)
    return bool((last - next_one < 1e-5 * (1 + logit))[used].any())


def compare(call: Call) -> str:
    """Run a valid call and return `equal`, `finished` (nothing to compare with) or what deviates."""
    x = call.vectors[0]
    if not call.needs:
        with_lengths = call.operator in ("hamming_kmeans", "lsh_buckets")
        arguments = call.others | ({"lengths_B": call.query_lengths} if with_lengths else {})
        native, reference = KERNELS[call.operator]
        results = native(x, **arguments)
        if call.wild:
            return "finished"
        return "equal" if torch.equal(results, reference(x, **arguments)) else "deviates: indices"
    dtype = x.dtype
    results = run(call, True, dtype)
    if call.wild:
        return "finished"
    sizes, logit = term_sizes(call)
    if call.others["dropout"] > 0:
        return compare_with_itself(call, results, sizes[0] * float(call.grad.nan_to_num().double().norm()))
    if ambiguous(call, logit):
        return "finished"
    unit_of_sums = torch.finfo(torch.promote_types(dtype, torch.float32)).eps / 2
    tiles = dtype == torch.bfloat16 and call.operator in ("clustered", "local") and library.has_tiles()
    exact, theirs = run(call, False, torch.float64), run(call, False, dtype)
    for name, ours, other, truth, size in zip(
        ("out", "dq", "dk", "dv"), results, theirs, exact, sizes, strict=True
    ):
        if (ours is None) != (truth is None):
            return f"deviates: {name} is {'absent' if ours is None else 'present'}"
        if ours is None or other is None or truth is None:
            continue
        if ours.dtype != dtype or ours.shape != truth.shape:
            return f"deviates: {name} is {ours.dtype} {tuple(ours.shape)}"
        error, allowed = (float((y.double() - truth).norm()) for y in (ours, other))
        unit = torch.finfo(dtype).eps / 2 if name in ("dq", "dk") or tiles else unit_of_sums
        bound = 2 * allowed + (16 if dtype == torch.float64 else 4) * unit * size * (1 + logit)
        if not error <= bound:
            return f"deviates: error of {name} {error:.2e}, of the reference {allowed:.2e}, bound {bound:.2e}"
    return "equal"


def compare_with_itself(call: Call, results: list[Tensor | None], size: float) -> str:
    """With dropout, compare ⟨out, grad⟩ with ⟨v, dv⟩: the output is linear in v."""
    out, dv = results[0], results[3]
    if out is None or dv is None:
        return "finished"
    grad, v = call.grad.double().nan_to_num(), call.vectors[2].double().nan_to_num()
    left, right = float((out.double() * grad).sum()), float((v * dv.double()).sum())
    unit = torch.finfo(call.grad.dtype).eps
    bound = 8 * unit * size / (1 - call.others["dropout"]) + 1e-300
    return "equal" if abs(left - right) <= bound else f"deviates: dropout {left} {right} {bound}"


def raw_calls(call: Call) -> Iterator[tuple[str, list[Any]]]:
    """Yield the PyTorch operators behind a call with their arguments; backward with what forward returned."""
    ops, others = torch.ops.attention_ext, dict(call.others)
    if not call.needs:
        more = [] if call.operator in ("hash_sign", "subtract_mean", "key_groups") else [call.query_lengths]
        middle = list(others.values())
        yield (
            call.operator,
            [call.vectors[0], *(middle + more if call.operator == "lsh_buckets" else more + middle)],
        )
        return
    dropout = others.pop("dropout")
    chosen = [dropout, torch.tensor([7]) if dropout else None]
    if call.operator == "local":
        sizes = [others[name] for name in ("left", "right", "chunk", "first")]
        arguments = [*call.vectors, call.query_lengths, *sizes, *chosen]
        yield "local_attention", arguments
        yield "local_attention_backward", [call.grad, *arguments, *ops.local_attention(*arguments)]
        return
    if call.operator == "lsh":
        sizes = [call.query_lengths, others["chunk"]]
        arguments = [*call.vectors, others["buckets_BHRN"], *sizes, *chosen]
        yield "lsh_attention", arguments
        saved = ops.lsh_attention(*arguments)
        yield "lsh_attention_backward", [call.grad, *call.vectors, *sizes, *chosen, *saved]
        return
    if call.operator == "near":
        sizes = [others["groups_BHN"], call.query_lengths, others["clusters"]]
        arguments = [*call.vectors, *sizes, others["topk"], others["window"], *chosen]
        yield "near_attention", arguments
        saved = ops.near_attention(*arguments)
        yield "near_attention_backward", [call.grad, *call.vectors, *sizes, others["window"], *chosen, *saved]
        return
    sizes = [others["groups_BHN"], call.query_lengths, call.key_lengths, others["clusters"]]
    topk = [others["topk"]] if call.operator == "improved" else []
    name = "improved_clustered_attention" if topk else "clustered_attention"
    arguments = [*call.vectors, *sizes, *topk, *chosen, True]
    yield name, arguments
    out, *saved = getattr(ops, name)(*arguments)
    yield f"{name}_backward", [call.grad, *call.vectors, *sizes, *chosen, *saved, *([out] if topk else [])]


def spoil_tensor(draw: Draw, x: Tensor) -> tuple[str, Any, bool]:
    """Return a fault, a tensor with it, and whether every operator must refuse it."""
    twice = ("rank", "size", "type", "values")
    fault = draw.of(
        *twice, *twice, "values", "layout", "empty", "huge", "meta", "no memory", "sparse", "absent"
    )
    integral = not x.is_floating_point()
    match fault:
        case "rank":
            return fault, draw.of(x.unsqueeze(0), x.flatten() if x.dim() > 1 else x.reshape(1, -1)), True
        case "size":
            i = draw.random.randrange(x.dim())
            return fault, draw.of(x.narrow(i, 0, x.shape[i] // 2), torch.cat((x, x), i)), False
        case "type":
            types = (torch.float32, torch.bool, torch.complex64, torch.uint8, torch.float64, torch.int64)
            return fault, x.nan_to_num().to(draw.of(*types)), False
        case "values" if integral:
            extremes = torch.tensor([-(2**31), -2, -1, 0, 1, 2, 100, 2**31 - 1]).to(x.dtype)
            return fault, extremes[draw.integers(0, 7, *x.shape)], False
        case "values":
            wild = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 1e30, 1e-40, 1.0]).to(x.dtype)
            return fault, wild[draw.integers(0, 7, *x.shape)], False
        case "layout":
            return fault, draw.laid_out(x), False
        case "empty":
            return fault, x.narrow(draw.random.randrange(x.dim()), 0, 0), False
        case "huge":
            large, i = draw.of(2**31, 2**40, 2**62), draw.random.randrange(x.dim())
            sizes = [large if j == i else draw.of(0, 1) for j in range(x.dim())]
            return fault, x.new_zeros(1).expand(sizes), False
        case "meta":
            return fault, x.to("meta"), False
        case "no memory":
            gone = x.clone()
            gone.untyped_storage().resize_(0)
            return fault, gone, False
        case "sparse":
            return fault, x.nan_to_num().to_sparse(), False
    return "absent", None, False


def spoil(draw: Draw, arguments: list[Any], least: int) -> tuple[str, list[Any], bool]:
    """Return a description of the fault, the arguments with it, and whether the operator must refuse them.

    Integers below `least` must be refused.
    """
    i = draw.random.randrange(len(arguments))
    value, must_refuse = arguments[i], False
    match value:
        case Tensor():
            fault, value, must_refuse = spoil_tensor(draw, value)
        case bool():
            fault, value = "bool", not value
        case int():
            fault, value = "integer", draw.of(*INTEGERS)
            must_refuse = value < least
        case float():
            fault, value = "float", draw.of(*FLOATS)
            must_refuse = not 0 <= value < 1
        case _:
            seeds = torch.tensor([1, 2]), torch.tensor(1.5), torch.zeros(0, dtype=torch.int64)
            fault, value = "seed", draw.of(*seeds)
    return f"argument {i} {fault}", [*arguments[:i], value, *arguments[i + 1 :]], must_refuse


def refuse(call: Call, draw: Draw) -> str:
    """Spoil one argument of an operator behind the call and return `refused`, `accepted` or what deviates."""
    name, arguments = draw.of(*raw_calls(call))
    fault, arguments, must_refuse = spoil(
        draw, arguments, least=0 if call.operator in ("local", "near") else 1
    )
    print(f"  {name}: {fault}", flush=True)
    try:
        getattr(torch.ops.attention_ext, name)(*arguments)
    except Exception as error:  # any Python exception is a refusal
        print(f"  {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}", flush=True)
        return "refused"
    return f"deviates: {name} accepts {fault}" if must_refuse else "accepted"


def run_case(seed: int, number: int, sets: tuple[str, ...]) -> str:
    """Run one case and return its outcome."""
    draw = Draw(seed, number)
    library.instruction_set(draw.of(*sets))
    torch.set_num_threads(draw.of(1, 1, 1, 3))
    torch.manual_seed(number)
    call = make_call(draw)
    invalid = draw.chance(0.3)
    shapes = ", ".join(f"{x.dtype} {tuple(x.shape)}" for x in call.vectors)
    numbers = {name: value for name, value in call.others.items() if not isinstance(value, Tensor)}
    state = f"needs {call.needs} wild {call.wild} invalid {invalid}"
    print(f"  {call.operator} {shapes} {numbers} {state}", flush=True)
    return refuse(call, draw) if invalid else compare(call)


def run_cases(seed: int, first: int, end: int) -> None:
    """Run cases in this process; print `case <number>` before and `outcome <text>` after each."""
    sets = []
    for name in library.INSTRUCTION_SETS:
        with contextlib.suppress(RuntimeError):
            sets.append(library.instruction_set(name))
    operators.register()
    for number in range(first, end):
        print(f"case {number}", flush=True)
        print(f"outcome {run_case(seed, number, tuple(sets))}", flush=True)


def watch(command: list[str], environment: dict[str, str], report: Callable[[int, str], None]) -> None:
    """Run a process of cases and report the outcome of each.

    A process that ends early, or is silent for `SECONDS`, is a crash of the case that it was in.

    Raises:
        SystemExit: the process failed outside a case.
    """
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=environment,
    )
    assert process.stdout is not None
    number, details = -1, ""
    with process:
        while True:
            timer = threading.Timer(SECONDS, process.kill)
            timer.start()
            line = process.stdout.readline()
            timer.cancel()
            if line.startswith("case "):
                number, details = int(line[5:]), ""
            elif line.startswith("outcome "):
                outcome = line[8:].rstrip()
                report(number, outcome + ("\n" + details if outcome.startswith("deviates") else ""))
                number = -1
            elif line:
                details += line if len(details) < 6000 else ""
            else:
                break
    if process.returncode != 0:
        if number < 0:
            raise SystemExit(f"{' '.join(command)} failed outside a case: {details}")
        report(number, f"crash, exit status {process.returncode}\n{details}")


def sanitized(folder: Path) -> dict[str, str]:
    """Build the kernels with sanitizers and return the environment that loads them."""
    compiler = os.environ.get("CXX", "c++")
    flags = "-fsanitize=address,undefined -fno-sanitize-recover=undefined"
    os.environ |= {"CXX": f"{compiler} {flags}", "CXXFLAGS": "-O1 -g1 -fno-omit-frame-pointer"}
    before = Path.cwd()
    os.chdir(REPOSITORY)
    build = runpy.run_path("setup.py")
    build["build_cpu"](build["find_torch"](), folder / "objects", folder / "kernels_cpu.so")
    os.chdir(before)
    # The C++ library too, because the sanitizer looks for its functions before Python has loaded it.
    names = [[*compiler.split(), f"-print-file-name={name}"] for name in ("libasan.so", "libstdc++.so.6")]
    paths = [subprocess.check_output(name, text=True).strip() for name in names]
    return {
        "LD_PRELOAD": " ".join(paths),
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }


def fuzz(cases: int, seed: int, out: Path, sanitize: bool) -> Counter[str]:
    """Run cases 0 … cases − 1, except those in the journal, and return how often each outcome occurred."""
    out = out.resolve()
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive", "MALLOC_PERTURB_": "85"}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, (REPOSITORY, os.environ.get("PYTHONPATH", ""))))
    folder = library.FOLDER
    if sanitize:
        folder = out / "sanitized"
        environment |= sanitized(folder)
    program = (folder / "kernels_cpu.so").read_bytes() + Path(__file__).read_bytes()
    kernels = digest(program, 64)
    journal = Job(
        out / ("sanitized.jsonl" if sanitize else "outcomes.jsonl"), {"seed": seed, "kernels": kernels}
    )
    outcomes: dict[int, str] = {int(number): text for number, text in journal.stored.items()}

    def report(number: int, outcome: str) -> None:
        outcomes[number] = journal.add(str(number), outcome)
        if outcome.startswith(("deviates", "crash")):
            print(f"case {number}: {outcome}", flush=True)

    for start in range(0, cases, BATCH):
        missing = [number for number in range(start, min(start + BATCH, cases)) if number not in outcomes]
        while missing:
            numbers = [str(missing[0]), str(missing[-1] + 1)]
            arguments = ["--seed", str(seed), "--library", str(folder), "--run", *numbers]
            watch([sys.executable, __file__, *arguments], environment, report)
            missing = [number for number in missing if number not in outcomes]
    journal.close()
    return Counter(outcomes[number].split(":")[0].split(",")[0] for number in range(cases))


def main() -> None:
    """Run the cases and exit with status 1 after a crash or deviation."""
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=REPOSITORY / "build/fuzz", help="folder for outcomes")
    parser.add_argument("--sanitize", action="store_true", help="run kernels built with sanitizers")
    ends = ("FIRST", "END")
    parser.add_argument("--run", type=int, nargs=2, metavar=ends, help="run cases in this process")
    parser.add_argument("--library", type=Path, default=library.FOLDER, help="folder of kernels for --run")
    options = parser.parse_args()
    if options.run:
        library.FOLDER = options.library
        run_cases(options.seed, *options.run)
        return
    counts = fuzz(options.cases, options.seed, options.out, options.sanitize)
    print(", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())))
    raise SystemExit(1 if counts["crash"] or counts["deviates"] else 0)


if __name__ == "__main__":
    main()
