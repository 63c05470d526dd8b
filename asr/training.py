"""A training run: options to data, model and Lightning trainer, and what it leaves in its folder."""

import logging
import sys
import warnings
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.loggers import TensorBoardLogger

from asr import checkpoint, config
from asr.callbacks import Bar, Cost, KeepBest, Lines, MetricsFile, ResumePoint
from asr.data.module import SpeechData, load_training_cuts, manifest_path
from asr.environment import describe_environment, write_json
from asr.errors import UserError
from asr.features import CorpusStatistics
from asr.recognizer import Recognizer, RecognizerConfig
from asr.task import RecognitionTask
from asr.text.lexicon import Lexicon
from asr.text.tokenizer import Tokenizer, build_tokenizer
from asr.train_config import PRECISIONS, TrainConfig

log = logging.getLogger(__name__)


def train(options: TrainConfig) -> Path:
    """Train a recogniser.

    Args:
        options: every setting.

    Returns:
        The run folder.

    Raises:
        UserError: bad input, or a run folder that already holds a run while resume=no.
    """
    folder = run_folder(options)
    last = folder / "checkpoints" / "last.ckpt"
    resuming = _check(options, folder, last)
    if options.trainer.threads:
        torch.set_num_threads(options.trainer.threads)
    _quiet_lightning()
    lightning.seed_everything(options.seed, verbose=False)

    recognizer = Recognizer(
        RecognizerConfig(options.attention, options.backend, options.features, options.model),
        training_tokenizer(options),
        options.augment,
    )
    if options.init_from and not resuming:
        initialise(recognizer, options.init_from)
    data, steps, validate_every = training_data(options, recognizer)
    if options.features.normalise == "corpus" and not options.init_from and not resuming:
        corpus_statistics(recognizer, data)

    resumed_step = int(checkpoint.load(last)["global_step"]) if resuming else 0
    folder.mkdir(parents=True, exist_ok=True)
    config.save(options, folder / "config.yaml")
    device_type = "cuda" if torch.cuda.is_available() and options.trainer.accelerator != "cpu" else "cpu"
    write_json(describe_environment(recognizer, device_type, options.data.train), folder / "environment.json")
    _write_left_out(data, folder)
    _say_plan(recognizer, data, folder, steps, resumed_step)
    if resumed_step >= steps:
        print(f"{folder}: training is finished, nothing to do")
        return folder

    task = RecognitionTask(
        recognizer,
        options.optimizer,
        steps=steps,
        seed=options.seed,
        clip=options.trainer.clip,
        validate_every=validate_every,
        nonfinite_patience=options.trainer.nonfinite_patience,
    )
    cost = Cost()
    trainer = build_trainer(options, task, folder, validate_every, resumed_step, cost)
    trainer.fit(task, data, ckpt_path=str(last) if resuming else None, weights_only=True)
    if trainer.is_global_zero:
        _finish(options, folder, task, data, cost)
    return folder


def run_folder(options: TrainConfig) -> Path:
    """Return the run's folder: exp/<recipe>/<attention> unless the options name one."""
    return Path(options.run or Path("exp", options.recipe.name, options.attention))


def _check(options: TrainConfig, folder: Path, last: Path) -> bool:
    """Refuse what can't work before anything is read; return whether to resume."""
    if options.resume not in ("auto", "no"):
        raise UserError(f"resume={options.resume!r}: expected auto or no")
    if options.trainer.precision not in PRECISIONS:
        raise UserError(
            f"trainer.precision={options.trainer.precision!r}: expected one of {list(PRECISIONS)}"
        )
    if options.trainer.precision == "fp16" and not torch.cuda.is_available():
        raise UserError("trainer.precision=fp16 needs a CUDA device: use bf16 or fp32")
    if last.exists() and options.resume == "no":
        raise UserError(
            f"{folder}: holds a run already: resume=auto goes on with it, run=<folder> starts elsewhere"
        )
    return last.exists()


def training_tokenizer(options: TrainConfig) -> Tokenizer:
    """Build the vocabulary from the lexicon or the training texts; list what is outside it."""
    cuts = load_training_cuts(options.data)
    texts = [cut.supervisions[0].text or "" for cut in cuts]
    lexicon = None
    if options.tokenizer.kind == "phone":
        beside = manifest_path(options.data.train[0], "train").parent / "lexicon.txt"
        lexicon = Lexicon.load(Path(options.tokenizer.lexicon or beside))
    tokenizer = build_tokenizer(options.tokenizer.kind, texts, lexicon, options.tokenizer.pieces)
    unknown = [item for text in texts for item in tokenizer.oov(text)]
    if unknown:
        distinct = sorted(set(unknown))
        shown = ", ".join(distinct[:20]) + (" …" if len(distinct) > 20 else "")
        log.warning(
            "%d tokens (%d distinct) are outside the vocabulary: %s", len(unknown), len(distinct), shown
        )
    return tokenizer


def initialise(recognizer: Recognizer, source: str) -> None:
    """Take the weights of another run; the rows of the CTC head go by the names of their symbols.

    Raises:
        UserError: the models differ in size, or their vocabularies in kind.
    """
    other = Recognizer.from_state(checkpoint.load(checkpoint.find(Path(source)))["recognizer"], source)
    if other.tokenizer.unit != recognizer.tokenizer.unit:
        raise UserError(
            f"init_from={source}: its vocabulary has another unit ({other.tokenizer.unit}) "
            f"than this training's ({recognizer.tokenizer.unit})"
        )
    row = {symbol: i for i, symbol in enumerate(other.tokenizer.symbols)}
    new = [symbol for symbol in recognizer.tokenizer.symbols if symbol not in row]
    if new:
        log.warning("init_from=%s: %d symbols are not in its vocabulary and start anew: %s", source, len(new), new)
    weights = dict(other.state_dict())
    for name, own in recognizer.head.named_parameters(prefix="head"):
        theirs, merged = weights[name], own.detach().clone()
        for i, symbol in enumerate(recognizer.tokenizer.symbols):
            if symbol in row:
                merged[i] = theirs[row[symbol]]
        weights[name] = merged
    try:
        recognizer.load_state_dict(weights)
    except RuntimeError as error:
        raise UserError(f"init_from={source}: {' '.join(str(error).split())[:300]}") from error


def training_data(options: TrainConfig, recognizer: Recognizer) -> tuple[SpeechData, int, int]:
    """Return the data, the optimiser steps of training, and the batches between validations."""
    ranks = options.trainer.devices * options.trainer.nodes
    accumulate = options.trainer.accumulate
    data = SpeechData(
        options.data, recognizer, seed=options.seed, speed_factors=options.augment.speed_factors
    )
    first_epoch = data.epoch_batches(0, ranks)
    steps = options.trainer.max_steps
    if not steps:
        steps = sum(data.epoch_batches(i, ranks) for i in range(options.trainer.max_epochs)) // accumulate
    if steps == 0:
        raise UserError(
            "training has no steps: see trainer.max_steps, trainer.max_epochs, trainer.accumulate"
        )
    data.batches = steps * accumulate
    validate_every = options.trainer.validate_every or max(1, first_epoch // accumulate)
    return data, steps, min(validate_every, steps) * accumulate


def corpus_statistics(recognizer: Recognizer, data: SpeechData) -> None:
    """Take mean and variance of the frames of the first epoch, at most 2,000 batches of it."""
    statistics = CorpusStatistics(recognizer.config.features.mel_bins)
    for batch in data.first_batches(2000):
        statistics.update(*recognizer.filter_banks(batch.audio, batch.audio_lengths))
    statistics.store(recognizer.normalisation)


def build_trainer(
    options: TrainConfig,
    task: RecognitionTask,
    folder: Path,
    validate_every: int,
    resumed_step: int,
    cost: Cost,
) -> lightning.Trainer:
    """Return Lightning's trainer with our checkpoints, metrics and progress.

    Lightning sees one epoch: the data's epochs follow each other in one stream of batches.
    """
    checkpoints = folder / "checkpoints"
    columns = ["data_epoch", "loss", "learning_rate", "gradient_norm", "frames_per_s"]
    columns += ["dev_loss", task.error_rate_name]
    progress: lightning.Callback = Bar(refresh_rate=10) if sys.stderr.isatty() else Lines(task.steps)
    callbacks = [cost, KeepBest(checkpoints, options.trainer.keep_best), progress]
    if options.trainer.early_stopping:
        callbacks.append(EarlyStopping(task.error_rate_name, patience=options.trainer.early_stopping))
    callbacks.append(ResumePoint(checkpoints, options.trainer.checkpoint_every))
    return lightning.Trainer(
        accelerator=options.trainer.accelerator,
        devices=options.trainer.devices,
        num_nodes=options.trainer.nodes,
        strategy=options.trainer.strategy,
        precision=PRECISIONS[options.trainer.precision],  # type: ignore[arg-type]
        max_steps=task.steps,
        max_epochs=1,
        val_check_interval=validate_every,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        accumulate_grad_batches=options.trainer.accumulate,
        use_distributed_sampler=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=isinstance(progress, Bar),
        log_every_n_steps=1,
        logger=[
            MetricsFile(folder / "metrics.csv", columns, resumed_step),
            TensorBoardLogger(str(folder), name="tensorboard", version=""),
        ],
        plugins=[checkpoint.AtomicCheckpointIO()],
        callbacks=callbacks,
        profiler=cost.data_wait,
        default_root_dir=str(folder),
    )


def _write_left_out(data: SpeechData, folder: Path) -> None:
    rows = [f"{item.split}\t{item.utterance}\t{item.reason}\n" for item in data.left_out]
    (folder / "left_out.tsv").write_text("split\tutterance\treason\n" + "".join(rows))


def _say_plan(recognizer: Recognizer, data: SpeechData, folder: Path, steps: int, resumed_step: int) -> None:
    parameters = sum(x.numel() for x in recognizer.parameters() if x.requires_grad)
    hours = sum(cut.duration for cut in data.train_cuts) / 3600
    resumed = f", resumed at step {resumed_step}" if resumed_step else ""
    print(
        f"{folder}: {recognizer.config.attention}, {parameters / 1e6:.2f} M parameters, "
        f"{len(data.train_cuts)} utterances ({hours:.2f} h), {data.epoch_batches(0)} batches an epoch, "
        f"{steps} steps, {100 * data.padding_share():.1f} % padding{resumed}",
        flush=True,
    )


def _finish(options: TrainConfig, folder: Path, task: RecognitionTask, data: SpeechData, cost: Cost) -> None:
    """Average the best recognisers if asked, and write what training cost to training.json."""
    checkpoints = folder / "checkpoints"
    best = sorted(checkpoints.glob("best-*.ckpt"))[: options.trainer.average_best]
    if len(best) > 1:
        checkpoint.save(checkpoint.average(best), checkpoints / "average.ckpt")
    epochs = cost.batches / data.epoch_batches(0, options.trainer.devices * options.trainer.nodes)
    summary = cost.summary() | {
        "steps": task.steps,
        "epochs": epochs,
        "seconds_per_epoch": cost.seconds / max(epochs, 1e-9),
        "padding_share": data.padding_share(),
        "skipped_batches": task.nonfinite["total"],
    }
    write_json(summary, folder / "training.json")
    print(
        f"trained {task.steps} steps in {cost.seconds:.0f} s ({summary['seconds_per_epoch']:.1f} s an epoch, "
        f"{summary['frames_per_s']:.0f} frames/s, {100 * summary['data_wait_share']:.1f} % waiting for data)"
    )


def _quiet_lightning() -> None:
    """Silence Lightning's advertisements, and warnings about what is decided here."""
    for name in ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning.*")
