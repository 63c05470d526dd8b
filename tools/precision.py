"""Training steps and encoding in float32 and bfloat16, of this checkout and another one, in turns."""

import contextlib
import os
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import lightning
import torch
from rich.table import Table
from torch import Tensor, nn
from workers import Turns, Worker, spread

from asr.benchmark.timer import in_turns
from asr.config import option
from asr.console import open_console
from asr.errors import UserError
from asr.losses.ctc import ctc_loss
from asr.model.acoustic_model import AcousticModel, AcousticModelConfig
from asr.training.config import train_options
from asr.training.optimizer import build_optimizer
from asr.training.run import build_task

VOCABULARY = 42
FRAMES = (4, 780)  # a batch of the model wsj
LABELS = 60
BINS = 40
BATCHES = 8  # of the demo, in turns
STEPS = {"demo": 8, "stamps": 4}  # of a turn; others: 1
WORKS = {
    "demo": "step of the demo, `full`",
    "stamps": "step of stamps, `full`",
    "wsj-full": "step of wsj, `full`",
    "wsj-i-clustered-100": "step of wsj, `i-clustered-100`",
    "wsj-peer": "step of wsj, SpeechBrain",
    "encoding-demo": "encoding, demo, `full`",
    "encoding-wsj": "encoding, wsj, `i-clustered-100`",
}


@dataclass
class Precision:
    """Options of `precision`."""

    works: list[str] = option(list(WORKS), help="works to measure", affects="result", choices=WORKS)
    data: str = option("data/demo", help="prepared folder of the recipe demo", affects="result")
    frames: int = option(
        6000, help="length of the input to encode", affects="result", unit="encoder frames", minimum=1
    )
    rounds: int = option(5, help="measured turns of each way", affects="result", minimum=1)
    before: str = option(
        "", help="another checkout, with the same recipes, to compare with; empty: none", affects="result"
    )
    worker: str = option(
        "", help="used by the program itself: work to do, a turn for each line of input", affects="result"
    )
    bf16: bool = option(
        False,
        help="used by the program itself: bfloat16 instead of float32",
        affects="result",
        only=("worker",),
    )


Work = Callable[[], object]
Losses = Callable[[], Tensor]
Emit = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def learn(
    losses: Callable[[], Tensor], model: nn.Module, optimizer: torch.optim.Optimizer, bf16: bool
) -> Work:
    """Return a training step that leaves the weights as they are."""

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = losses()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def recipe_step(overrides: list[str], data: str, bf16: bool) -> Work:
    """Return a training step of a recipe on its own data."""
    options = train_options([*overrides, "data.workers=0", f"data.train=[{data}]"])
    task, training = build_task(options, resuming=False)
    task.train()
    stream = iter(training.train_dataloader())
    batches = [next(stream) for _ in range(BATCHES)]
    still = replace(options.optimizer, learning_rate=0.0)

    def losses() -> Tensor:
        batches.append(batches.pop(0))
        found, targets = task.losses(batches[-1])
        return found.sum() / targets

    return learn(losses, task, build_optimizer(dict(task.model.named_parameters()), still), bf16)


def acoustic_model(attention: str, *overrides: str) -> AcousticModel:
    """Return the model of a recipe with random weights."""
    options = train_options([*overrides, f"attention={attention}"])
    config = AcousticModelConfig(attention, "auto", options.features, options.model)
    return AcousticModel(config, VOCABULARY, options.augment)


def random_step(
    emit: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], model: nn.Module, bf16: bool
) -> Work:
    """Return a training step on random features, with CTC and RAdam (Vyas et al. 2020, section 4).

    Args:
        emit: maps features [B, T, F] and [B] frames to log-probabilities [B, T', V] and [B] frames.
        model: module with the parameters.
        bf16: whether matrix products are in bfloat16.
    """
    features, labels = torch.randn(*FRAMES, BINS), torch.randint(1, VOCABULARY, (FRAMES[0], LABELS))
    frames = torch.linspace(0.9, 1, FRAMES[0]).mul(FRAMES[1]).long()
    options = train_options(["optimizer=radam", "optimizer.learning_rate=0"])
    optimizer = build_optimizer(dict(model.named_parameters()), options.optimizer)

    def losses() -> Tensor:
        outputs, lengths = emit(features, frames)
        return ctc_loss(outputs, lengths, labels, torch.full_like(frames, LABELS)).sum() / labels.numel()

    return learn(losses, model.train(), optimizer, bf16)


def wsj_step(attention: str, bf16: bool) -> Work:
    """Return a training step of the preset wsj."""
    model = acoustic_model(attention, "model=wsj", f"features.mel_bins={BINS}")

    def emit(features: Tensor, frames: Tensor) -> tuple[Tensor, Tensor]:
        outputs, lengths = model.emit(features, frames)
        return outputs[-1], lengths

    return random_step(emit, model, bf16)


def peer_step(bf16: bool) -> Work:
    """Return a training step of SpeechBrain's encoder with the sizes of the preset wsj."""
    from speechbrain.lobes.models.transformer.Transformer import TransformerEncoder

    size = train_options(["model=wsj"]).model
    encoder = TransformerEncoder(
        num_layers=size.layers,
        nhead=size.heads,
        d_ffn=size.feedforward,
        d_model=size.size,
        dropout=size.dropout,
        activation=nn.GELU,
        normalize_before=True,
        attention_type="regularMHA",
    )
    model = nn.ModuleDict(
        {"input": nn.Linear(BINS, size.size), "encoder": encoder, "head": nn.Linear(size.size, VOCABULARY)}
    )

    def emit(features: Tensor, frames: Tensor) -> tuple[Tensor, Tensor]:
        padding = torch.arange(features.shape[1]) >= frames.unsqueeze(1)
        states, _ = model["encoder"](model["input"](features), src_key_padding_mask=padding)
        return model["head"](states).float().log_softmax(-1), frames

    return random_step(emit, model, bf16)


def encoding(model: AcousticModel, frames: int, bf16: bool) -> Work:
    """Return the encoding of one long random input."""
    config = model.eval().config
    features = torch.randn(1, frames * config.model.subsampling, config.features.mel_bins)
    lengths = torch.tensor([features.shape[1]])

    @torch.inference_mode()
    def work() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            model.emit(features, lengths)

    return work


def built(options: Precision) -> Work:
    """Return the work that a worker is for."""
    kind, _, attention = options.worker.partition("-")
    if kind == "demo":
        return recipe_step(["recipe=demo"], options.data, options.bf16)
    if kind == "stamps":  # the model of stamps and its batches, on the demo's utterances and phones
        overrides = ["recipe=stamps", "tokenizer.kind=phone", "augment.speed_factors=[1.0]"]
        return recipe_step(overrides, options.data, options.bf16)
    if options.worker == "wsj-peer":
        return peer_step(options.bf16)
    if kind == "wsj":
        return wsj_step(attention, options.bf16)
    if attention == "demo":
        return encoding(acoustic_model("full", "recipe=demo"), options.frames, options.bf16)
    wsj = acoustic_model("i-clustered-100", "model=wsj", f"features.mel_bins={BINS}")
    return encoding(wsj, options.frames, options.bf16)


def work_in_turns(options: Precision) -> None:
    """Do the work on one thread, a turn for each line of input."""
    torch.set_num_threads(1)
    lightning.seed_everything(0, verbose=False)
    work, turns = built(options), Turns()
    while True:
        turns.next()
        for _ in range(STEPS.get(options.worker, 1)):
            work()


def measure_precision(options: Precision) -> None:
    """Print the CPU time of each work by checkout and precision, and its ratio to float32 before.

    Raises:
        UserError: a work failed, perhaps in the other checkout; the others are printed first.
    """
    if options.worker:
        work_in_turns(options)
        return
    table, failed = Table("work", "checkout", "precision", "CPU s", "speed-up"), []
    for name in options.works:
        if name == "wsj-peer" and find_spec("speechbrain") is None:
            open_console().print("wsj-peer: skipped, SpeechBrain is not installed")
            continue
        try:
            rows = measured_rows(name, options)
        except UserError as error:
            failed.append(f"{name}: {error}")
            continue
        for row in rows:
            table.add_row(*row)
    open_console().print(table)
    if failed:
        raise UserError("; ".join(failed))


def measured_rows(name: str, options: Precision) -> list[tuple[str, ...]]:
    """Return the rows of a work: checkouts and precisions take turns."""
    checkouts = [*([options.before] if options.before and name != "wsj-peer" else []), ""]
    workers: dict[tuple[str, str], Worker] = {}
    with contextlib.ExitStack() as stack:
        for checkout in checkouts:
            for precision in ("fp32", "bf16"):
                paths = [*([checkout] if checkout else [str(Path.cwd())]), *sys.path[1:]]
                variables = {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
                own = [f"worker={name}", f"bf16={precision == 'bf16'}", f"frames={options.frames}"]
                own += [f"data={Path(options.data).absolute()}"]
                program = str(Path(__file__).with_name("speed.py"))
                worker = Worker(program, "precision", *own, variables=variables)
                key = "before" if checkout else "now", precision
                workers[key] = stack.enter_context(worker)
        times = in_turns({key: x.turn for key, x in workers.items()}, options.rounds, warm_up=1)
    medians = {key: statistics.median(x.cpu_s for x in taken) for key, taken in times.items()}
    if not all(medians.values()):
        raise UserError("expected some CPU time, found none")
    first = next(iter(medians.values()))
    return [
        (WORKS[name], *key, spread(taken, "cpu"), f"{first / medians[key]:.2f}")
        for key, taken in times.items()
    ]
