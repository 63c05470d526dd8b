"""Measure how far mechanisms are from full attention on the queries, keys and values of a trained model.

    python recipes/demo/results/distance.py model=exp/demo/full joined=16 recordings=12
    python recipes/demo/results/distance.py model=data/whisper-tiny.en manifest=prompts/test.cuts.jsonl.gz
    python recipes/demo/results/distance.py text=LICENSE clusters=[25] also=near-25,local-64

The model is a recogniser of this program, Whisper in a folder of transformers, or, with text=, MiniLM; the
input is utterances joined up to a duration, or the first 512 word pieces of a text. Prints the mean L1
distance of the attention weights in all layers (0 to 2), and the error of the output, as the backend computes
it, relative to its norm.
"""

import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from asr_recipes.questions.finetune import minilm
from asr_recipes.questions.model import TextModel
from asr_recipes.questions.spans import Window
from torch import Tensor, nn

from asr import config
from asr.attention import build_mechanism
from asr.attention.hashing import number_layers
from asr.attention.multihead import SelfAttention
from asr.attention.softmax import QueryKeyMechanism
from asr.attention.table import canonical
from asr.config import option
from asr.data.audio import load_cut
from asr.data.manifest import read_cuts
from asr.errors import run_program
from asr.model.whisper import Whisper, is_whisper
from asr.recognizer import Recognizer
from asr.text.files import read_text

GROUPINGS = ("hash", "keys")


@dataclass
class Distance:
    """Options of the measurement."""

    model: str = option(
        "exp/demo/full",
        help="run folder, checkpoint, or folder of transformers with Whisper",
        affects="result",
    )
    manifest: str = option("data/demo/test.cuts.jsonl.gz", help="utterances to join", affects="result")
    joined: float = option(16.0, help="longest joined recording", affects="result", unit="s")
    recordings: int = option(12, help="number of joined recordings", affects="result", minimum=1)
    clusters: list[int] = option([25, 50, 100], help="numbers of clusters", affects="result", minimum=1)
    also: list[str] = option(
        [], help="further mechanisms, e.g. i-clustered-25/100:bits=31/63", affects="result"
    )
    text: str = option("", help="file of text: MiniLM on its first 512 word pieces", affects="result")
    backend: str = option("auto", help="auto | reference | native", affects="result")


def joined_recordings(rate: int, manifest: Path, joined_s: float, count: int) -> list[Tensor]:
    """Return the first recordings of consecutive utterances up to a duration."""
    recordings: list[list[Tensor]] = [[]]
    for cut in read_cuts(manifest):
        if recordings[-1] and (sum(map(len, recordings[-1])) / rate + cut.duration > joined_s):
            if len(recordings) == count:
                break
            recordings.append([])
        recordings[-1].append(torch.from_numpy(load_cut(cut, rate)))
    return [torch.cat(parts) for parts in recordings]


def all_projections(options: Distance) -> Iterator[list[tuple[Tensor, Tensor, Tensor]]]:
    """Yield queries, keys and values of every layer of the model for each recording, or for the text."""
    if options.text:
        encoder = TextModel(minilm(), "AutoModel", "cpu")
        ids = encoder.tokenizer(read_text(Path(options.text)), truncation=True, max_length=512)
        yield text_projections(encoder, encoder.batch([Window(0, dict(ids), [])]), options.backend)
        return
    sizes = Path(options.manifest), options.joined, options.recordings
    if is_whisper(Path(options.model)):
        whisper = Whisper(Path(options.model), "cpu", "")
        for audio in joined_recordings(whisper.rate, *sizes):
            yield projections(whisper.encoder, partial(whisper.encode, **whisper.features([audio.numpy()])))
        return
    recognizer = Recognizer.load(options.model)
    model = recognizer.model
    for audio in joined_recordings(model.sample_rate, *sizes):
        yield projections(model, partial(model, audio[None], torch.tensor([len(audio)])))


def projections(model: nn.Module, run: Callable[[], object]) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return queries, keys and values of every attention layer of a model, [1, H, N, D] each, in a run."""
    inputs: list[tuple[SelfAttention, Tensor]] = []
    hooks = [
        layer.register_forward_pre_hook(lambda layer, arguments: inputs.append((layer, arguments[0])))
        for layer in model.modules()
        if isinstance(layer, SelfAttention)
    ]
    run()
    for hook in hooks:
        hook.remove()
    return [layer.project(x) for layer, x in inputs]


def text_projections(
    encoder: TextModel, inputs: dict[str, Tensor], backend: str
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return the same of a model of transformers; the logits are q·k/√D, as mechanisms expect."""
    from transformers import AttentionInterface

    recorded: list[tuple[Tensor, Tensor, Tensor]] = []
    encoder.use("full", backend)
    attend = AttentionInterface()["full"]

    def record(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **options: Any) -> Any:
        scale = (options.get("scaling") or query.shape[-1] ** -0.5) * query.shape[-1] ** 0.5
        recorded.append((query * scale, key, value))
        return attend(module, query, key, value, mask, **options)

    AttentionInterface.register("full", record)
    encoder.run(inputs)
    return recorded


def of_layers(name: str, layers: int, backend: str) -> list[QueryKeyMechanism]:
    """Return the mechanism of each layer, with hash planes of its own for `planes=layer`."""
    mechanisms = [build_mechanism(name, backend=backend).eval() for _ in range(layers)]
    number_layers(nn.ModuleList(mechanisms))
    return mechanisms


@torch.inference_mode()
def measure_distances(options: Distance) -> None:
    """Print distances and errors, means over recordings, layers, heads and queries."""
    names = [
        f"{kind}-{clusters}:grouping={grouping}"
        for kind in ("clustered", "i-clustered")
        for clusters in options.clusters
        for grouping in GROUPINGS
    ]
    names += canonical(options.also)
    full = build_mechanism("full", backend="reference")
    mechanisms: dict[str, list[QueryKeyMechanism]] = {}
    errors: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    lengths = []
    for layers in all_projections(options):
        mechanisms = mechanisms or {name: of_layers(name, len(layers), options.backend) for name in names}
        for layer, (q, k, v) in enumerate(layers):
            exact = full.weights(q, k)
            out = exact @ v
            for name in names:
                mechanism = mechanisms[name][layer]
                distance = (mechanism.weights(q, k) - exact).abs().sum(-1).mean()
                errors[name].append((float(distance), float((mechanism(q, k, v) - out).norm() / out.norm())))
        lengths.append(q.shape[2])
    print(f"{len(lengths)} inputs of {min(lengths)} to {max(lengths)} positions")
    for name, values in errors.items():
        means = [statistics.fmean(column) for column in zip(*values, strict=True)]
        print("{:40} distance {:.3f}  output error {:.3f}".format(name, *means))


if __name__ == "__main__":
    sys.exit(run_program("distance", lambda: measure_distances(config.parse(Distance, sys.argv[1:]))))
