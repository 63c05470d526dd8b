"""Groupings of clustered attention: distance from full attention in a trained model, and time.

    python tools/grouping_benchmark.py distance exp/demo/full --joined 16 --utterances 12
    python tools/grouping_benchmark.py time --lengths 512 1024 4096 16384

`distance` joins utterances up to a duration, and replaces the mechanism in each layer of the model on the
same queries, keys and values. It prints the mean L1 distance of the attention weights from those of full
attention (0 to 2), and the error of the output relative to its norm. `time` takes random normal input with 6
heads of 64 on one thread, alternates between the candidates, and prints CPU time: medians and quartiles.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from asr.attention import build_mechanism
from asr.attention.clustered import ClusteredAttention
from asr.attention.hashing import number_layers
from asr.attention.multihead import SelfAttention
from asr.attention.softmax import QueryKeyMechanism
from asr.data.audio import load_cut
from asr.data.manifest import read_cuts
from asr.recognizer import Recognizer

GROUPINGS = ("hash", "keys")


def joined_recordings(manifest: Path, rate: int, joined_s: float, count: int) -> list[Tensor]:
    """Return the first recordings of consecutive utterances up to a duration."""
    recordings: list[list[Tensor]] = [[]]
    for cut in read_cuts(manifest):
        if recordings[-1] and (sum(map(len, recordings[-1])) / rate + cut.duration > joined_s):
            if len(recordings) == count:
                break
            recordings.append([])
        recordings[-1].append(torch.from_numpy(load_cut(cut, rate)))
    return [torch.cat(parts) for parts in recordings]


def projections(recognizer: Recognizer, audio: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return queries, keys and values of every layer, [1, H, N, D] each."""
    inputs: list[tuple[SelfAttention, Tensor]] = []
    hooks = [
        layer.register_forward_pre_hook(lambda layer, arguments: inputs.append((layer, arguments[0])))
        for layer in recognizer.model.attention_layers()
    ]
    recognizer.model(audio[None], torch.tensor([len(audio)]))
    for hook in hooks:
        hook.remove()
    return [layer.project(x) for layer, x in inputs]


def of_layers(name: str, layers: int) -> list[QueryKeyMechanism]:
    """Return the mechanism of each layer, with hash planes of its own for `planes=layer`."""
    mechanisms = [build_mechanism(name, backend="reference") for _ in range(layers)]
    number_layers(nn.ModuleList(mechanisms))
    return mechanisms


@torch.inference_mode()
def distances(options: argparse.Namespace) -> None:
    """Print distances and errors, means over recordings, layers, heads and queries."""
    recognizer = Recognizer.load(options.run)
    recordings = joined_recordings(
        options.manifest, recognizer.model.sample_rate, options.joined, options.utterances
    )
    names = [
        f"{kind}-{clusters}:grouping={grouping}"
        for kind in ("clustered", "i-clustered")
        for clusters in options.clusters
        for grouping in GROUPINGS
    ]
    names += options.also
    full = build_mechanism("full", backend="reference")
    layers = len(list(recognizer.model.attention_layers()))
    mechanisms = {name: of_layers(name, layers) for name in names}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    lengths = []
    for audio in recordings:
        for layer, (q, k, v) in enumerate(projections(recognizer, audio)):
            exact = full.weights(q, k)
            out = exact @ v
            for name in names:
                weights = mechanisms[name][layer].weights(q, k)
                error = (weights @ v - out).norm() / out.norm()
                found[name].append((float((weights - exact).abs().sum(-1).mean()), float(error)))
        lengths.append(q.shape[2])
    print(f"{len(lengths)} recordings of {min(lengths)} to {max(lengths)} positions")
    for name, values in found.items():
        distance, error = (statistics.fmean(column) for column in zip(*values, strict=True))
        print(f"{name:40} distance {distance:.3f}  output error {error:.3f}")


def alternate(candidates: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Return the quartiles of the CPU time of each candidate, in ms, over rounds that run all of them."""
    taken: dict[str, list[float]] = {name: [] for name in candidates}
    for index in range(rounds + 1):
        for name, call in candidates.items():
            start = time.process_time()
            call()
            if index:
                taken[name].append(1e3 * (time.process_time() - start))
    return {name: statistics.quantiles(values, n=4) for name, values in taken.items()}


@torch.inference_mode()
def times(options: argparse.Namespace) -> None:
    """Print the time of both groupings, and of whole calls."""
    torch.set_num_threads(1)
    for length in options.lengths:
        q, k, v = torch.randn(3, 1, 6, length, 64, generator=torch.Generator().manual_seed(0))
        groupings, calls = {}, {}
        for grouping in GROUPINGS:
            mechanism = build_mechanism(
                f"clustered-{options.clusters}:grouping={grouping}", backend="native"
            ).eval()
            assert isinstance(mechanism, ClusteredAttention)
            groupings[grouping] = partial(mechanism.clusters, q, k=k)
        for clusters, grouping in (
            (options.clusters, "hash"),
            (options.clusters, "keys"),
            (options.clusters // 2, "keys"),
        ):
            name = f"i-clustered-{clusters}:grouping={grouping}"
            mechanism = build_mechanism(name, backend="native").eval()
            calls[name] = partial(mechanism, q, k, v)
        for title, candidates in (("grouping=", groupings), ("", calls)):
            found = alternate(candidates, options.rounds)
            first = next(iter(found.values()))[1]
            for name, (low, median, high) in found.items():
                text = f"{median:.2f} ({low:.2f} … {high:.2f}) ms, {first / median:.2f} × as fast"
                print(f"{length:6} {title + name:32} {text}", flush=True)


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    distance = commands.add_parser("distance")
    distance.add_argument("run", type=Path)
    distance.add_argument("--manifest", type=Path, default=Path("data/demo/test.cuts.jsonl.gz"))
    distance.add_argument("--joined", type=float, default=16.0, help="longest recording, s")
    distance.add_argument("--utterances", type=int, default=12, help="recordings")
    distance.add_argument("--clusters", type=int, nargs="+", default=[25, 50, 100])
    distance.add_argument("--also", nargs="*", default=[], help="further mechanisms")
    distance.set_defaults(run_command=distances)
    timing = commands.add_parser("time")
    timing.add_argument("--lengths", type=int, nargs="+", default=[512, 1024, 4096, 16384])
    timing.add_argument("--clusters", type=int, default=100)
    timing.add_argument("--rounds", type=int, default=25)
    timing.set_defaults(run_command=times)
    options = parser.parse_args()
    options.run_command(options)


if __name__ == "__main__":
    main()
