"""The Python steps of tools/gpu_check.sh: build, a small case for the sanitizer, benchmarks, report.

The benchmark times whole calls, grouping included, in the setting of Figure 4 in *Fast Transformers with
Clustered Attention*: batch 1, 6 heads of 64, 100 clusters, 63 bits, 10 iterations, 32 top keys, random normal
input. Near-field attention has 25 clusters, grouped by keys, and windows of 16.
"""

import argparse
import importlib.util
import json
import os
import platform
import re
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from asr.benchmark.timer import Seconds, in_turns, time_of
from asr.environment import git_commit
from asr.errors import run_program
from asr.files import write_text
from attention_ext import why_unavailable
from attention_ext.clustered_attention.native import clustered_attention
from attention_ext.hashing.native import hash_sign
from attention_ext.improved_clustered_attention.native import improved_clustered_attention
from attention_ext.key_grouping.native import key_groups
from attention_ext.kmeans.native import hamming_kmeans
from attention_ext.library import require
from attention_ext.near_attention.native import near_attention

HEADS, HEAD_DIM, CLUSTERS, BITS, ITERATIONS, TOPK = 6, 64, 100, 63, 10, 32
NEAR = {"clusters": 25, "topk": TOPK, "window": 16}
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
SECONDS_PER_LENGTH, ROUNDS = 8.0, 200  # at most
# Wanted speed-up of i-clustered over SDPA by sequence length, forward and backward together.
AIMS = {4096: 1.0, 16384: 3.0, 65536: 8.0}

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def grouped(improved: bool, length: int, device: str) -> Attend:
    """Return clustered or improved clustered attention with its grouping."""
    planes = torch.randn(BITS, HEAD_DIM, generator=torch.Generator().manual_seed(0)).to(device)
    lengths = torch.tensor([length], device=device)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        groups = hamming_kmeans(hash_sign(q, planes), lengths, CLUSTERS, ITERATIONS, BITS)
        if improved:
            return improved_clustered_attention(q, k, v, groups, lengths, lengths, CLUSTERS, TOPK)
        return clustered_attention(q, k, v, groups, lengths, lengths, CLUSTERS)

    return attend


def near(length: int, device: str) -> Attend:
    """Return near-field attention with its grouping."""
    lengths = torch.tensor([length], device=device)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        groups = key_groups(q.detach(), k.detach(), lengths, lengths, NEAR["clusters"], 12, 4)
        return near_attention(q, k, v, groups, lengths, **NEAR)

    return attend


def flash(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute attention with PyTorch's flash attention; raise an error if it isn't available."""
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)


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


def peak_bytes(call: Callable[[], object]) -> int:
    """Return the peak memory of a call beyond the memory allocated before."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    return torch.cuda.max_memory_allocated() - before


def measure(length: int, device: str, dtype: torch.dtype, seconds: float) -> list[dict[str, object]]:
    """Time all mechanisms at one length, interleaved; return medians and quartiles."""
    shape = (1, HEADS, length, HEAD_DIM)
    inputs = [torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for _ in range(3)]
    grad = torch.randn(shape, device=device, dtype=dtype)
    baseline: Attend = flash if device == "cuda" else torch.nn.functional.scaled_dot_product_attention
    mechanisms = {
        "full": baseline,
        f"clustered-{CLUSTERS}": grouped(False, length, device),
        f"i-clustered-{CLUSTERS}": grouped(True, length, device),
        f"near-{NEAR['clusters']}": near(length, device),
    }
    calls: dict[tuple[str, str, str], Callable[[], object]] = {}
    for name, attend in mechanisms.items():
        for part, call in calls_for(attend, inputs, grad).items():
            calls[name, part, "eager"] = call
            call()  # warm-up: loads kernels and fills the allocator
            if device == "cuda":
                calls[name, part, "graph"] = graph_of(call)
                calls[name, part, "graph"]()
    clock = gpu_time_of if device == "cuda" else time_of
    turns = {key: partial(clock, call) for key, call in calls.items()}
    results = []
    for (name, part, launch), taken in in_turns(turns, ROUNDS, warm_up=0, limit_s=seconds).items():
        values = [1e3 * turn.wall_s for turn in taken]
        low, median, high = statistics.quantiles(values, n=4)
        row: dict[str, object] = {"length": length, "attention": name, "pass": part, "launch": launch}
        row |= {"median_ms": median, "quartiles_ms": [low, high], "rounds": len(values)}
        if device == "cuda" and launch == "eager":
            row["peak_bytes"] = peak_bytes(calls[name, part, launch])
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
    """Time all lengths; write benchmark.json after each."""
    device, dtype = ("cpu", torch.float32) if dry else ("cuda", torch.bfloat16)
    record: dict[str, object] = {"environment": environment(device), "dtype": str(dtype)}
    results: list[dict[str, object]] = []
    for length in (256, 512) if dry else LENGTHS:
        results += measure(length, device, dtype, 0.2 if dry else SECONDS_PER_LENGTH)
        record["results"] = results
        write_text(json.dumps(record, indent=1) + "\n", out / "benchmark.json")
        print(f"{length} done", flush=True)


def table(results: list[dict[str, object]]) -> str:
    """Return times in ms and speed-ups over SDPA, one line per length, launch and pass."""
    median = {
        (r["length"], r["attention"], r["pass"], r["launch"]): float(str(r["median_ms"])) for r in results
    }
    names = [str(r["attention"]) for r in results if r["attention"] != "full"]
    names = list(dict.fromkeys(names))
    head = ["N", "launch", "pass", "SDPA ms", *(f"{name} ms (speed-up over SDPA)" for name in names)]
    rows = [head]
    for length, _, part, launch in [key for key in median if key[1] == "full"]:
        full = median[length, "full", part, launch]
        ours = [median[length, name, part, launch] for name in names]
        cells = [f"{x:.3f} ({full / x:.2f})" for x in ours]
        rows.append([str(length), str(launch), str(part), f"{full:.3f}", *cells])
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows
    )


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
    figures = out / "benchmark.json"
    found = environment("cuda" if torch.cuda.is_available() else "cpu")
    record = {"environment": found, "steps": steps}
    record |= json.loads(figures.read_text()) if figures.is_file() else {}
    text = ", ".join(f"{name} {value}" for name, value in found.items() if name != "kernels") + "\n"
    results = record.get("results", [])
    text += table(results) if results else "no benchmark results"
    both = {
        (r["length"], r["attention"], r["launch"]): r["median_ms"]
        for r in results
        if r["pass"] == "forward+backward"
    }
    for length, aim in AIMS.items():
        full, ours = (both.get((length, name, "eager")) for name in ("full", f"i-clustered-{CLUSTERS}"))
        if full and ours:
            text += f"\ni-clustered at N = {length}: speed-up {full / ours:.2f}, aim {aim} or more"
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
    spec = importlib.util.spec_from_file_location("kernel_build", "setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    # Objects are kept; those for another GPU don't run on this one.
    module.build_kernels(Path("attention_ext"), Path("build/gpu_check", os.environ["TORCH_CUDA_ARCH_LIST"]))
    reason = why_unavailable("cuda")
    if reason is not None:
        raise SystemExit(reason)


def small() -> None:
    """Run every kernel once: all mechanisms, forward and backward, three dtypes, odd sizes."""
    mechanisms = grouped(False, 139, "cuda"), grouped(True, 139, "cuda"), near(139, "cuda")
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for attend in mechanisms:
            inputs = [
                torch.randn(1, HEADS, 150, HEAD_DIM, device="cuda", dtype=dtype, requires_grad=True)
                for _ in range(3)
            ]
            torch.autograd.grad(attend(*inputs).float().sum(), inputs)
        q, k = (torch.randn(1, HEADS, 150, HEAD_DIM, device="cuda", dtype=dtype) for _ in range(2))
        lengths = torch.tensor([139], device="cuda")
        for rank in (8, 12):
            key_groups(q, k, lengths, lengths, CLUSTERS, rank, 3)
    torch.cuda.synchronize()


def model(overrides: list[str], dry: bool) -> int:
    """Run `asr bench` with the compiled kernels, which `auto` uses only once this check has passed."""
    from asr.attention.backend import UNPROVEN  # needs packages that the other steps don't
    from asr.commands.bench import parse, run

    require("cpu" if dry else "cuda")
    UNPROVEN.update(dict.fromkeys(UNPROVEN, ""))
    return run_program("gpu_check", lambda: run([], parse(overrides)))


def main() -> None:
    """Run the step named by the first argument."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("step", choices=("build", "small", "benchmark", "model", "report"))
    parser.add_argument("overrides", nargs="*", help="options of `asr bench`, for the step `model`")
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
        case "model":
            raise SystemExit(model(options.overrides, options.dry))
        case "report":
            raise SystemExit(1 if report(options.out) else 0)


if __name__ == "__main__":
    main()
