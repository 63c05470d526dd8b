"""The Python steps of tools/gpu_check.sh: build, a small case for the sanitizer, benchmarks, report.

The benchmark times whole calls, grouping included, with random normal input and 6 heads of 64, batches of 1
and 8. Clustered mechanisms have the setting of Figure 4 in *Fast Transformers with Clustered Attention*: 100
clusters, 63 bits, 10 iterations, 32 top keys. Near-field attention has 25 clusters, grouped by keys, and
windows of 16.

Full attention is PyTorch's: flash attention in bfloat16, memory-efficient attention in float32, and cuDNN,
which is faster but plans anew for every length; flash attention over padded sequences (`full, packed`), and
whatever PyTorch chooses with a key mask (`full, masked`). Speed-ups are over the fastest of these. Further
rivals are FlexAttention, compiled, with a window of 64 and with the keys of the query's own cluster.
"""

import argparse
import json
import os
import platform
import re
import runpy
import statistics
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from asr.environment import git_commit
from asr.files import write_text
from asr.measure import Seconds, in_turns, peak_allocated_bytes, time_of
from attention_ext import why_unavailable
from attention_ext.clustered_attention.native import clustered_attention
from attention_ext.flash import flash_attention
from attention_ext.hashing.native import hash_sign
from attention_ext.improved_clustered_attention.native import improved_clustered_attention
from attention_ext.key_grouping.native import key_groups
from attention_ext.kmeans.native import hamming_kmeans
from attention_ext.local_attention.native import local_attention
from attention_ext.near_attention.native import near_attention

HEADS, HEAD_DIM, CLUSTERS, BITS, ITERATIONS, TOPK = 6, 64, 100, 63, 10, 32
NEAR = {"clusters": 25, "topk": TOPK, "window": 16}
WINDOW = 64
FULL = ("full", "full, cuDNN", "full, masked", "full, packed")
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
SETTINGS = ((1, torch.bfloat16), (8, torch.bfloat16), (1, torch.float32))  # batch and type
FLEX_LENGTHS = (4096, 16384)  # each is compiled for some seconds
SECONDS_PER_LENGTH, ROUNDS = 1.5, 100  # at most

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def hash_groups(q: Tensor, planes: Tensor, lengths: Tensor) -> Tensor:
    """Return the cluster of each query, by hashing."""
    return hamming_kmeans(hash_sign(q, planes), lengths, CLUSTERS, ITERATIONS, BITS)


def rows_for(lengths: Tensor) -> dict[str, Attend]:
    """Return the mechanisms by name, grouping included, for sequences of these lengths."""
    device = lengths.device
    planes = torch.randn(BITS, HEAD_DIM, generator=torch.Generator().manual_seed(0)).to(device)

    def clustered(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return clustered_attention(q, k, v, hash_groups(q, planes, lengths), lengths, lengths, CLUSTERS)

    def improved(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        groups = hash_groups(q, planes, lengths)
        return improved_clustered_attention(q, k, v, groups, lengths, lengths, CLUSTERS, TOPK)

    def improved_by_keys(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        groups = key_groups(q.detach(), k.detach(), lengths, lengths, CLUSTERS, 8, 3)
        return improved_clustered_attention(q, k, v, groups, lengths, lengths, CLUSTERS, TOPK)

    def near(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        groups = key_groups(q.detach(), k.detach(), lengths, lengths, NEAR["clusters"], 12, 4)
        return near_attention(q, k, v, groups, lengths, **NEAR)

    def local(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return local_attention(q, k, v, lengths, WINDOW, WINDOW, 1, 0)

    def packed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return flash_attention(q, k, v, lengths)

    def masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keep = torch.arange(q.shape[2], device=device) < lengths[:, None]
        return scaled_dot_product_attention(q, k, v, attn_mask=keep[:, None, None])

    return {
        "full": full,
        "full, cuDNN": full_by_cudnn,
        "full, masked": masked,
        "full, packed": packed,
        f"local-{WINDOW}": local,
        f"clustered-{CLUSTERS}": clustered,
        f"i-clustered-{CLUSTERS}": improved,
        f"i-clustered-{CLUSTERS}:grouping=keys": improved_by_keys,
        f"near-{NEAR['clusters']}": near,
    }


def full(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute attention with PyTorch's fastest kernel, or raise an error if it isn't available."""
    if q.device.type == "cpu":
        return scaled_dot_product_attention(q, k, v)
    kernel = SDPBackend.EFFICIENT_ATTENTION if q.dtype == torch.float32 else SDPBackend.FLASH_ATTENTION
    with sdpa_kernel(kernel):
        return scaled_dot_product_attention(q, k, v)


def full_by_cudnn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute attention with cuDNN, which plans anew for every length: fast where the length is fixed."""
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return scaled_dot_product_attention(q, k, v)


def flex_rows(length: int) -> dict[str, Attend]:
    """Return FlexAttention with a window, and with blocks of keys of the query's own cluster, beside full."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    compiled = torch.compile(flex_attention, dynamic=False)
    make_mask = torch.compile(create_block_mask, dynamic=False)
    near = create_block_mask(lambda b, h, q, k: (q - k).abs() <= WINDOW, None, None, length, length)
    planes = torch.randn(BITS, HEAD_DIM, device="cuda")
    lengths = torch.tensor([length], device="cuda")

    def windowed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return compiled(q, k, v, block_mask=near)

    def own_cluster(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        groups = hash_groups(q.detach(), planes, lengths)
        order = groups.argsort(-1)
        groups, rows = groups.gather(-1, order), order.unsqueeze(-1).expand_as(q)
        mask = make_mask(lambda b, h, i, j: groups[b, h, i] == groups[b, h, j], 1, HEADS, length, length)
        out = compiled(*(x.gather(2, rows) for x in (q, k, v)), block_mask=mask)
        return torch.empty_like(out).scatter(2, rows, out)

    return {
        "full": full,
        "full, cuDNN": full_by_cudnn,
        f"flex, window {WINDOW}": windowed,
        f"flex, {CLUSTERS} clusters": own_cluster,
    }


def gpu_time_of(call: Callable[[], object]) -> Seconds:
    """Return the time of a call on the GPU by events, which leave out the host's own work."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    call()
    end.record()
    end.synchronize()
    return Seconds(wall_s=begin.elapsed_time(end) / 1e3)


def graph_of(call: Callable[[], object]) -> Callable[[], object]:
    """Capture a call as a CUDA graph and return a function that replays it."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def calls_for(attend: Attend, inputs: list[Tensor], grad: Tensor) -> dict[str, Callable[[], object]]:
    """Return functions for the forward pass alone, and for forward and backward."""

    def forward() -> object:
        with torch.no_grad():
            return attend(*inputs)

    def both() -> object:
        return torch.autograd.grad(attend(*inputs), inputs, grad)

    return {"forward": forward, "forward+backward": both}


def calls_of(
    rows: Mapping[str, Attend], inputs: list[Tensor], graphs: bool
) -> tuple[dict[tuple[str, str, str], Callable[[], object]], dict[str, str]]:
    """Return the calls by name, pass and launch, warmed up; and the error of each row that can't run."""
    calls: dict[tuple[str, str, str], Callable[[], object]] = {}
    errors = {}
    grad = torch.randn_like(inputs[0])
    for name, attend in rows.items():
        try:
            own: dict[tuple[str, str, str], Callable[[], object]] = {}
            for part, call in calls_for(attend, inputs, grad).items():
                call()  # loads kernels and fills the allocator
                own[name, part, "eager"] = call
                if graphs:
                    own[name, part, "graph"] = graph_of(call)
                    own[name, part, "graph"]()
            calls |= own
        except Exception as error:  # one row that fails leaves the others
            errors[name] = str(error).splitlines()[0] if str(error) else type(error).__name__
    return calls, errors


def measure(
    rows: Mapping[str, Attend], length: int, batch: int, device: str, dtype: torch.dtype, seconds: float
) -> list[dict[str, object]]:
    """Time mechanisms at one length, interleaved; return medians and quartiles, or the error."""
    shape = (batch, HEADS, length, HEAD_DIM)
    inputs = [torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for _ in range(3)]
    calls, errors = calls_of(rows, inputs, graphs=device == "cuda" and "flex" not in " ".join(rows))
    clock = gpu_time_of if device == "cuda" else time_of
    turns = {key: partial(clock, call) for key, call in calls.items()}
    setting: dict[str, object] = {
        "length": length,
        "batch": batch,
        "dtype": str(dtype).removeprefix("torch."),
    }
    results = [setting | {"attention": name, "error": error} for name, error in errors.items()]
    for (name, part, launch), taken in in_turns(turns, ROUNDS, warm_up=0, limit_s=seconds).items():
        values = [1e3 * turn.wall_s for turn in taken]
        low, median, high = statistics.quantiles(values, n=4)
        row = setting | {"attention": name, "pass": part, "launch": launch}
        row |= {"median_ms": median, "quartiles_ms": [low, high], "rounds": len(values)}
        if device == "cuda" and launch == "eager":
            row["peak_bytes"] = peak_allocated_bytes(calls[name, part, launch], "cuda")
        results.append(row)
    return results


def environment(device: str) -> dict[str, object]:
    """Return the hardware and versions that the results depend on."""
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else platform.processor() or "CPU",
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "commit": git_commit(),
        "kernels": {name: why_unavailable(name) or "loaded" for name in ("cpu", "cuda")},
    }


def benchmark(out: Path, dry: bool) -> None:
    """Time all settings and lengths; write benchmark.json after each."""
    device, seconds = ("cpu", 0.2) if dry else ("cuda", SECONDS_PER_LENGTH)
    record: dict[str, object] = {"environment": environment(device)}
    results: list[dict[str, object]] = []
    for batch, dtype in [(1, torch.float32)] if dry else SETTINGS:
        for length in (256, 512) if dry else LENGTHS:
            rows = rows_for(torch.full((batch,), length, device=device))
            if dry or dtype == torch.float32:
                # These run on CUDA only, and in half precision.
                del rows["full, packed"], rows["full, cuDNN"]
            results += measure(rows, length, batch, device, dtype, seconds)
            record["results"] = results
            write_text(json.dumps(record, indent=1) + "\n", out / "benchmark.json")
            print(f"batch {batch}, {dtype}, {length}: done", flush=True)


def flex(out: Path) -> None:
    """Time FlexAttention; write flex.json after each length."""
    results: list[dict[str, object]] = []
    for length in FLEX_LENGTHS:
        results += measure(flex_rows(length), length, 1, "cuda", torch.bfloat16, SECONDS_PER_LENGTH)
        write_text(json.dumps({"results": results}, indent=1) + "\n", out / "flex.json")
        print(f"{length} done", flush=True)


def table(results: list[dict[str, object]]) -> str:
    """Return medians in ms and speed-ups over the fastest full attention, a line per row and setting."""
    keys = ("dtype", "batch", "pass", "launch")
    times = {
        (*(r[key] for key in keys), r["attention"], r["length"]): r["median_ms"]
        for r in results
        if "pass" in r
    }
    lengths = sorted({key[-1] for key in times})
    text = [["", *(f"N = {length}" for length in lengths)]]
    for line in dict.fromkeys(key[:-1] for key in times):
        cells = []
        for length in lengths:
            ours = times.get((*line, length))
            base = [times.get((*line[:-1], name, length)) for name in FULL]
            fastest = min((x for x in base if x), default=0.0)
            cells.append(f"{ours:.3f} ({fastest / ours:.2f})" if ours else "")
        text.append([" ".join(map(str, line)), *cells])
    widths = [max(map(len, column)) for column in zip(*text, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in text
    ]
    failed = [
        f"{r['attention']} at N = {r['length']}, {r['dtype']}: {r['error']}" for r in results if "error" in r
    ]
    return "\n".join(["ms (speed-up over the fastest full attention)", *lines, *failed])


def outcome(status: int, last_line: str) -> str:
    """Return how a step ended; pytest succeeds where it has skipped every test, for want of kernels."""
    if status == 0 and not re.match(r"\d+ skipped", last_line):
        return "ok"
    return "TIMED OUT" if status == 124 else "FAILED"


def report(out: Path) -> int:
    """Write and print the report on all steps; return the number of failed steps."""
    steps = {}
    for path in sorted(out.glob("*.status")):
        status, seconds = map(int, path.read_text().split())
        lines = path.with_suffix(".log").read_text(errors="replace").splitlines()
        last = next((line for line in reversed(lines) if line.strip()), "")
        ended = outcome(status, last)
        steps[path.stem] = {"outcome": ended, "status": status, "seconds": seconds, "last_line": last}
    facts = environment("cuda" if torch.cuda.is_available() else "cpu")
    record: dict[str, object] = {"environment": facts, "steps": steps}
    text = ", ".join(f"{name} {value}" for name, value in facts.items() if name != "kernels")
    for name in ("benchmark", "flex"):
        path = out / f"{name}.json"
        results = json.loads(path.read_text())["results"] if path.is_file() else []
        record[name] = results
        text += "\n" + (table(results) if results else f"no {name} results")
    text += "\nsteps: " + ", ".join(f"{name} {step['outcome']}" for name, step in steps.items())
    failed = {name: step for name, step in steps.items() if step["outcome"] != "ok"}
    for name, step in failed.items():
        text += f"\n{out / name}.log: {step['last_line']}"
    write_text(json.dumps(record, indent=1) + "\n", out / "gpu_check.json")
    write_text(text + "\n", out / "gpu_check.txt")
    print(f"{text}\nTo report this run, send the folder {out}.")
    return len(failed)


def build() -> None:
    """Build the kernels beside their sources with the functions of setup.py, without setuptools or pip.

    Raises:
        SystemExit: the CUDA kernels can't be built or loaded.
    """
    # Objects are kept; those for another GPU don't run on this one.
    objects = Path("build/gpu_check", os.environ["TORCH_CUDA_ARCH_LIST"])
    runpy.run_path("setup.py")["build_kernels"](Path("attention_ext"), objects)
    reason = why_unavailable("cuda")
    if reason is not None:
        raise SystemExit(reason)


def small() -> None:
    """Run every kernel once: all mechanisms, forward and backward, three dtypes, odd sizes."""
    rows = rows_for(torch.tensor([139], device="cuda"))
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for name in (name for name in rows if not name.startswith("full")):
            inputs = [
                torch.randn(1, HEADS, 150, HEAD_DIM, device="cuda", dtype=dtype, requires_grad=True)
                for _ in range(3)
            ]
            torch.autograd.grad(rows[name](*inputs).float().sum(), inputs)
        q, k = (torch.randn(1, HEADS, 150, HEAD_DIM, device="cuda", dtype=dtype) for _ in range(2))
        lengths = torch.tensor([139], device="cuda")
        for rank in (8, 12):
            key_groups(q, k, lengths, lengths, CLUSTERS, rank, 3)
    torch.cuda.synchronize()


def main() -> None:
    """Run the step named by the first argument."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("step", choices=("build", "small", "benchmark", "flex", "report"))
    parser.add_argument("--out", type=Path, default=Path("gpu_check"), help="folder for results")
    parser.add_argument("--dry", action="store_true", help="run on the CPU with short sequences")
    options = parser.parse_args()
    match options.step:
        case "build":
            build()
        case "small":
            small()
        case "benchmark":
            benchmark(options.out, options.dry)
        case "flex":
            flex(options.out)
        case "report":
            raise SystemExit(1 if report(options.out) else 0)


if __name__ == "__main__":
    main()
