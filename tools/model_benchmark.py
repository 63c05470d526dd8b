"""Benchmark attention mechanisms inside the model: a training step, or encoding a long recording.

    python tools/model_benchmark.py attentions=[full,i-clustered-100]  # training steps, interleaved
    python tools/model_benchmark.py attentions=[full] loss.name=mmi loss.order=4       # with another loss
    python tools/model_benchmark.py attentions=[full,i-clustered-100] encode=60000
    python tools/model_benchmark.py device=cuda precision=bf16 batch=32 model=switchboard frames=2000

The model defaults to the preset `wsj` (9 layers, no subsampling; choose another with `model=`); features
are random, and labels follow a Markov chain with Zipf's distribution after each label. Times are CPU seconds
of the process, which other load on the machine affects least; on a GPU, elapsed seconds.
"""

import itertools
import resource
import statistics
import sys
import time
from dataclasses import dataclass, field

import torch
from rich.table import Table

from asr import config
from asr.config import option
from asr.console import open_console
from asr.errors import UserError, run_program
from asr.losses.loss import build_loss
from asr.losses.options import LossConfig
from asr.model.encoder import Encoder
from asr.model.head import Head
from asr.model.options import ModelConfig
from asr.parallel import in_new_process
from asr.training.config import train_options
from asr.training.optimizer import build_optimizer
from asr.training.options import OptimizerConfig

MEL_BINS = 40
VOCABULARY = 42
FRAMES_PER_LABEL = 12
TRAINING_UTTERANCES = 1000  # for the denominator of loss.name=mmi
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
PARTS = ("forward", "loss", "backward", "optimiser")


@dataclass
class Options:
    """Options of the benchmark."""

    attentions: list[str] = option(
        ["full", "clustered-100", "i-clustered-100"], help="mechanisms", affects="result"
    )
    model: str = option("wsj", help="preset in conf/model", affects="result")
    frames: int = option(
        780, help="length of each utterance in a training step", affects="result", unit="frames"
    )
    batch: int = option(4, help="utterances in a training step", affects="result")
    rounds: int = option(
        7, help="measured training steps, after one warm-up step", affects="result", minimum=2
    )
    encode: int = option(
        0,
        help="encode a recording of this length instead, each mechanism in its own process",
        affects="result",
        unit="frames",
    )
    threads: int = option(1, help="PyTorch threads", affects="result")
    device: str = option("cpu", help="cpu | cuda", affects="result", choices=("cpu", "cuda"))
    precision: str = option("fp32", help=" | ".join(DTYPES), affects="result", choices=DTYPES)
    loss: LossConfig = field(default_factory=LossConfig)


class Model(torch.nn.Module):
    """Features to log-probabilities of the outputs."""

    def __init__(self, preset: ModelConfig, attention: str, topology: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = Encoder(preset, MEL_BINS, attention, "auto")
        self.head = Head(preset.heads * preset.head_dim, VOCABULARY, topology)

    def forward(self, features: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Map [B, T, F] and [B] to [B, T', O] and [B]."""
        states, lengths = self.encoder(features, lengths)
        return self.head(states), lengths


def markov_labels(utterances: int, count: int, generator: torch.Generator) -> torch.Tensor:
    """Return [utterances, count] labels; after each label, ranks of the next are drawn as 1 / rank."""
    ranked = torch.rand(VOCABULARY, VOCABULARY - 1, generator=generator).argsort(dim=1) + 1
    chance = 1 / torch.arange(1, VOCABULARY).double()
    labels = torch.zeros(utterances, count + 1, dtype=torch.long)
    for u in range(count):
        rank = torch.multinomial(chance, utterances, replacement=True, generator=generator)
        labels[:, u + 1] = ranked[labels[:, u], rank]
    return labels[:, 1:]


def now_s(device: str) -> float:
    """Return CPU seconds of the process, or elapsed seconds once the GPU has done its work."""
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def training_steps(preset: ModelConfig, optimizer: OptimizerConfig, options: Options) -> None:
    """Time the parts of a training step, alternating between mechanisms, and print a table."""
    generator = torch.Generator().manual_seed(0)
    device = options.device
    features = torch.randn(options.batch, options.frames, MEL_BINS, generator=generator).to(device)
    lengths = torch.full((options.batch,), options.frames, device=device)
    count = options.frames // preset.subsampling // FRAMES_PER_LABEL
    labels = markov_labels(options.batch, count, generator).to(device)
    training = markov_labels(TRAINING_UTTERANCES, count, generator).tolist()
    loss_of = build_loss(options.loss, VOCABULARY, training).to(device)
    label_lengths = torch.full((options.batch,), count, device=device)
    models = {name: Model(preset, name, options.loss.topology).to(device) for name in options.attentions}
    optimizers = {
        name: build_optimizer(dict(model.named_parameters()), optimizer) for name, model in models.items()
    }
    times: dict[str, list[list[float]]] = {name: [] for name in models}
    peak_mib: dict[str, float] = {}
    dtype = DTYPES[options.precision]
    for index in range(options.rounds + 1):
        for name, model in models.items():
            if device == "cuda":
                torch.cuda.reset_peak_memory_stats()
                held = torch.cuda.memory_allocated()
            marks = [now_s(device)]
            with torch.autocast(device, dtype, enabled=dtype != torch.float32):
                log_probs, frames = model(features, lengths)
            marks.append(now_s(device))
            loss = loss_of(log_probs.float(), frames, labels, label_lengths).sum() / label_lengths.sum()
            marks.append(now_s(device))
            loss.backward()
            marks.append(now_s(device))
            optimizers[name].step()
            optimizers[name].zero_grad()
            marks.append(now_s(device))
            if device == "cuda":
                peak_mib[name] = (torch.cuda.max_memory_allocated() - held) / 2**20
            if index:
                times[name].append([b - a for a, b in itertools.pairwise(marks)])
    clock = "CPU s" if device == "cpu" else f"{torch.cuda.get_device_name()}, {options.precision}: s"
    title = f"{clock} per training step, {options.batch} × {options.frames} frames, preset {options.model}"
    table = Table("attention", *PARTS, "step ± IQR/2", f"speed-up over {options.attentions[0]}", title=title)
    if peak_mib:
        table.add_column("peak MiB beyond models and input")
    steps = {name: [sum(row) for row in rows] for name, rows in times.items()}
    base = statistics.median(steps[options.attentions[0]])
    for name, rows in times.items():
        parts = [statistics.median(column) for column in zip(*rows, strict=True)]
        step = statistics.median(steps[name])
        low, _, high = statistics.quantiles(steps[name], n=4, method="inclusive")
        cells = [
            *(f"{part:.3f}" for part in parts),
            f"{step:.3f} ± {(high - low) / 2:.3f}",
            f"{base / step:.2f}",
            *([f"{peak_mib[name]:.0f}"] if peak_mib else []),
        ]
        table.add_row(name, *cells)
    open_console().print(table)


def encode(preset: ModelConfig, attention: str, options: Options) -> tuple[float, float, float]:
    """Encode one recording; return CPU seconds, wall seconds and peak MiB beyond model and input."""
    torch.set_num_threads(options.threads)
    model = Model(preset, attention, options.loss.topology).eval()
    features = torch.randn(1, options.encode, MEL_BINS, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        model(features[:, :512], torch.tensor([512]))
        held_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        model(features, torch.tensor([options.encode]))
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return time.process_time() - cpu_s, time.perf_counter() - wall_s, (peak_kib - held_kib) / 1024


def encodings(preset: ModelConfig, options: Options) -> None:
    """Encode a long recording with each mechanism and print time and memory."""
    table = Table(
        "attention",
        "CPU s",
        "wall s",
        "MiB beyond model and input",
        title=f"encoding {options.encode} frames",
    )
    for name in options.attentions:
        cpu_s, wall_s, mib = in_new_process(encode, preset, name, options)
        table.add_row(name, f"{cpu_s:.1f}", f"{wall_s:.1f}", f"{mib:.0f}")
    open_console().print(table)


def main(overrides: list[str]) -> None:
    """Run the benchmark with command-line options `key=value`."""
    options = config.parse(Options, overrides)
    torch.set_num_threads(options.threads)
    preset = train_options([f"model={options.model}", "optimizer=radam"])
    if options.encode and options.device != "cpu":
        raise UserError("encode= runs on the CPU; on a GPU, use asr bench")
    if options.device == "cuda" and not torch.cuda.is_available():
        raise UserError("device=cuda: this machine has no CUDA device")
    if options.encode:
        encodings(preset.model, options)
    else:
        training_steps(preset.model, preset.optimizer, options)


if __name__ == "__main__":
    sys.exit(run_program("model_benchmark", lambda: main(sys.argv[1:])))
