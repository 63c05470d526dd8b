"""Measure speed on the CPU beside PyTorch: full attention, linear layers and convolutions.

    python tools/speed.py full
    python tools/speed.py layers

full: CPU time of `full` and of PyTorch's attention (SDPA) on the same random input, on one thread, forward
and with the backward pass. `padded` sequences have 0.6 to 1 of the positions; SDPA masks the others. The last
column is the time of `full` over that of SDPA: above 1.05, `full` is no baseline to compare anything with.

layers: CPU time of linear layers, of a Conformer's and wav2vec 2.0's convolutions over time, and of PyTorch's
own, in the same way; bf16 is autocast. Forward, linear layers are those of a recogniser, with packed weights.
"""

import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch
from rich.table import Table

from asr import config
from asr.attention import build_mechanism
from asr.attention.products import Conv1d, Linear, keep_packed
from asr.cli import help_table
from asr.config import option
from asr.console import open_console
from asr.environment import processor
from asr.errors import UserError, did_you_mean, run_program
from asr.measure import in_turns, time_of, torch_threads
from attention_ext.library import instruction_set, why_unavailable

PRODUCTS = 1 << 28  # least of a turn: a single call of a small layer would find empty caches
# Depthwise as in Conformers, positions and front end of wav2vec 2.0.
CONVOLUTIONS: dict[str, dict[str, Any]] = {
    f"{name} {channels} × {kernel}": {
        "in_channels": channels,
        "out_channels": channels,
        "kernel_size": kernel,
        "groups": groups,
        "padding": kernel // 2,
        "stride": stride,
    }
    for name, channels, kernel, groups, stride in (
        ("depthwise", 144, 31, 144, 1),
        ("depthwise", 256, 31, 256, 1),
        ("positions", 768, 128, 16, 1),
        ("front end", 512, 3, 1, 2),
    )
}
PADDINGS, PASSES = ("none", "padded"), ("forward", "with backward")
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass
class Full:
    """Options of `full`."""

    lengths: list[int] = option([100, 400, 780, 1500, 4096], help="positions, N", affects="result", minimum=1)
    precisions: list[str] = option(list(TYPES), help="types of the input", affects="result", choices=TYPES)
    batch: int = option(4, help="sequences, B", affects="result", minimum=2)
    heads: int = option(6, help="heads, H", affects="result", minimum=1)
    head_dim: int = option(32, help="head size, D", affects="result", minimum=1)
    rounds: int = option(9, help="measured rounds", affects="result", minimum=1)


@dataclass
class Layers:
    """Options of `layers`."""

    rows: list[int] = option([64, 256, 900, 3000], help="positions of a batch", affects="result", minimum=1)
    precisions: list[str] = option(["fp32", "bf16"], help="types", affects="result", choices=["fp32", "bf16"])
    sizes: list[int] = option(
        [144, 384], help="model sizes, M; linear layers are M → M and M → 4·M", affects="result", minimum=1
    )
    rounds: int = option(25, help="measured rounds", affects="result", minimum=1)


def measure_full(options: Full) -> None:
    """Print a line per type, length, padding and pass."""
    table = Table("type", "N", "padding", "pass", "SDPA, ms", "full, ms", "full / SDPA")
    with torch_threads(1):
        for case in product(options.precisions, options.lengths, PADDINGS, PASSES):
            turns = {way: partial(time_of, work) for way, work in full_works(options, *case).items()}
            times = in_turns(turns, options.rounds, collect=True)
            sdpa_ms, full_ms = (1000 * statistics.median(x.cpu_s for x in times[way]) for way in turns)
            table.add_row(*map(str, case), f"{sdpa_ms:.2f}", f"{full_ms:.2f}", f"{full_ms / sdpa_ms:.2f}")
    print(f"{processor()}, kernels: {why_unavailable('cpu') or instruction_set()}")
    open_console().print(table)


def full_works(
    options: Full, precision: str, n: int, padding: str, passes: str
) -> dict[str, Callable[[], None]]:
    """Return SDPA and `full` on the same input."""
    shape = (options.batch, n, options.heads, options.head_dim)  # as projections leave it
    vectors = (torch.randn(shape).to(TYPES[precision]).transpose(1, 2) for _ in range(4))
    q, k, v, grad = (x.requires_grad_(passes == "with backward") for x in vectors)
    lengths = torch.linspace(0.6 * n, n, options.batch).ceil().long() if padding == "padded" else None
    mask = None if lengths is None else (torch.arange(n) < lengths[:, None])[:, None, None]
    full = build_mechanism("full")
    ways: dict[str, Callable[[], torch.Tensor]] = {
        "SDPA": lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask),
        "full": lambda: full(q, k, v, lengths, finite_padding=True),
    }

    def work(attend: Callable[[], torch.Tensor]) -> None:
        out = attend()
        if out.requires_grad:
            out.backward(grad.detach())

    return {way: partial(work, attend) for way, attend in ways.items()}


def measure_layers(options: Layers) -> None:
    """Print a line per layer, type, number of rows and pass."""
    table = Table("layer", "type", "rows", "pass", "PyTorch, ms", "ours, ms", "ours / PyTorch")
    linear = [(size, factor * size) for size in options.sizes for factor in (1, 4)]
    pairs: dict[str, tuple[torch.nn.Module, torch.nn.Module]] = {
        f"{size} → {out}": (torch.nn.Linear(size, out), Linear(size, out)) for size, out in linear
    } | {name: (torch.nn.Conv1d(**sizes), Conv1d(**sizes)) for name, sizes in CONVOLUTIONS.items()}
    with torch_threads(1):
        cases = product(pairs, options.precisions, options.rows, PASSES)
        for name, precision, rows, passes in cases:
            layers = dict(zip(("PyTorch", "ours"), pairs[name], strict=True))
            keep_packed(layers["ours"])
            weight = layers["ours"].weight
            assert isinstance(weight, torch.Tensor)
            conv = layers["ours"].in_channels if isinstance(layers["ours"], Conv1d) else 0
            x = torch.randn(1, rows, conv).mT if conv else torch.randn(rows, weight.shape[1])
            x.requires_grad_(passes == "with backward")
            calls, half = max(1, PRODUCTS // (rows * weight.numel())), precision == "bf16"
            turns = {
                way: partial(time_of, partial(_use_layer, layer, x, half, calls))
                for way, layer in layers.items()
            }
            times = in_turns(turns, options.rounds, collect=True)
            medians = (statistics.median(x.cpu_s for x in times[way]) for way in layers)
            theirs, ours = (1000 * median / calls for median in medians)
            case = name, precision, str(rows), passes
            table.add_row(*case, f"{theirs:.3f}", f"{ours:.3f}", f"{ours / theirs:.2f}")
    print(processor())
    open_console().print(table)


def _use_layer(layer: torch.nn.Module, x: torch.Tensor, half: bool, calls: int) -> None:
    for _ in range(calls):
        # As in a model, whose passes each convert a layer's weights.
        with torch.set_grad_enabled(x.requires_grad), torch.autocast("cpu", enabled=half):
            out = layer(x)
        if out.requires_grad:
            out.sum().backward()


MEASUREMENTS: dict[str, tuple[type, Callable[[Any], None]]] = {
    "full": (Full, measure_full),
    "layers": (Layers, measure_layers),
}


def main(arguments: list[str]) -> int:
    """Run the measurement that the first argument names, or print the help; return the exit status."""
    return run_program("speed", lambda: _run(*arguments) if arguments else _run("--help"))


def _run(name: str, *overrides: str) -> None:
    if name == "--help":
        console = open_console(markup=False)
        console.print(__doc__)
        for measurement, (schema, _) in MEASUREMENTS.items():
            console.print(
                measurement, help_table([row[:4] for row in config.describe(schema)], console.width)
            )
        return
    if name not in MEASUREMENTS:
        raise UserError(f"{name}: unknown measurement{did_you_mean(name, list(MEASUREMENTS))}")
    schema, function = MEASUREMENTS[name]
    function(config.parse(schema, overrides))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
