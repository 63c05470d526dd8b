"""A training run: builds data, task and Lightning trainer from the options, and writes the run folder."""

import json
import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import lightning
import torch
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only
from rich.console import Console

from asr import config
from asr.config import flat
from asr.data.stream import TrainingData
from asr.environment import describe_environment, pick_device
from asr.errors import UserError
from asr.files import write_json
from asr.model import checkpoint
from asr.training.checkpoints import KeepBest, ResumePoint
from asr.training.config import PRECISIONS, TrainConfig, recipe_task, train_options_from
from asr.training.cost import Cost
from asr.training.csv_logger import MetricsFile
from asr.training.plan import ENDLESS, TrainingPlan
from asr.training.progress import Bar, Lines
from asr.training.recognition import build_recognition
from asr.training.task import TrainingTask

log = logging.getLogger(__name__)

# Options that may change when a run resumes: its length, and where and how it runs.
FREE_ON_RESUME = {
    "run",
    "resume",
    "data.prefetch",
    "data.workers",
    "trainer.accelerator",
    "trainer.average_best",
    "trainer.budget",
    "trainer.checkpoint_every",
    "trainer.early_stopping",
    "trainer.keep_best",
    "trainer.max_epochs",
    "trainer.max_steps",
    "trainer.stop_at",
    "trainer.threads",
}


def train(options: TrainConfig, watchers: Sequence[lightning.Callback] = ()) -> Path:
    """Train a model.

    Args:
        options: options of the run.
        watchers: additional Lightning callbacks.

    Returns:
        The run folder.

    Raises:
        UserError: invalid input, a run folder that is in use although resume=no, or a run to resume that
            was started with other options.
    """
    folder = run_folder(options)
    last = folder / "checkpoints" / "last.ckpt"
    resuming = _check(options, folder, last)
    if options.trainer.threads:
        torch.set_num_threads(options.trainer.threads)
    _quiet_lightning()
    lightning.seed_everything(options.seed, verbose=False)

    task, data = build_task(options, resuming)
    if resuming and _finished(folder, task.plan):
        print(f"{folder}: training is already finished")
        return folder
    resumed_step = int(checkpoint.load(last)["global_step"]) if resuming else 0
    _describe_run(options, task, data, folder, resumed_step)

    cost = Cost(task.plan.budget)
    trainer = build_trainer(options, task, folder, resumed_step, cost, watchers)
    trainer.fit(task, data, ckpt_path=str(last) if resuming else None, weights_only=True)
    if trainer.is_global_zero:
        _finish(options, folder, trainer, task, data, cost)
    return folder


def run_folder(options: TrainConfig) -> Path:
    """Return the run's folder: exp/<recipe>/<attention> unless the options name one."""
    return Path(options.run or Path("exp", options.recipe.name, options.attention))


def _check(options: TrainConfig, folder: Path, last: Path) -> bool:
    """Check the options before loading data; return whether to resume."""
    config.check(options)
    pick_device(options.trainer.accelerator)
    if options.trainer.precision == "fp16" and not torch.cuda.is_available():
        raise UserError("trainer.precision=fp16 needs a CUDA device: use bf16 or fp32")
    if not last.exists():
        return False
    if options.resume == "no":
        raise UserError(
            f"{folder} already contains a run: continue it with resume=auto, or choose another folder "
            "with run=<folder>"
        )
    _check_resumed(options, folder / "config.yaml")
    return True


def _check_resumed(options: TrainConfig, path: Path) -> None:
    """Raise UserError if options differ from those that the run was started with."""
    try:
        before = flat(config.to_dict(train_options_from(config.load_yaml(path), str(path))))
    except OSError:
        raise UserError(f"{path}: expected the options of the run to resume, found no file") from None
    now = flat(config.to_dict(options))
    changed = [
        f"{key}={now.get(key)} (was {before.get(key)})"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key) and key not in FREE_ON_RESUME
    ]
    if changed:
        raise UserError(f"{path.parent}: these options can't change when a run resumes: {', '.join(changed)}")


def build_task(options: TrainConfig, resuming: bool) -> tuple[TrainingTask, TrainingData]:
    """Return task and data: the recipe's own if it defines a task, otherwise CTC training on utterances."""
    module = recipe_task(options.recipe.name)
    if module and isinstance(options.recipe, module.Options):
        return cast(tuple[TrainingTask, TrainingData], module.build(options, resuming))
    return build_recognition(options, resuming)


def build_trainer(
    options: TrainConfig,
    task: TrainingTask,
    folder: Path,
    resumed_step: int,
    cost: Cost,
    watchers: Sequence[lightning.Callback] = (),
) -> lightning.Trainer:
    """Return Lightning's trainer with our checkpoints, metrics and progress.

    Lightning sees a single epoch, because batches form one stream over all epochs. Its max_epochs is
    unlimited, so that a finished run can be extended.
    """
    checkpoints = folder / "checkpoints"
    columns = ["data_epoch", "loss", "learning_rate", "gradient_norm", "frames_per_s"]
    columns += ["train_s", "train_cpu_s", "dev_loss", task.error_rate_name]
    terminal = Console(stderr=True)
    progress = Bar(terminal) if terminal.is_terminal else Lines()
    # Resume points come first, so that writing them doesn't count as training time.
    callbacks = [ResumePoint(checkpoints, options.trainer.checkpoint_every), cost]
    callbacks += [KeepBest(checkpoints, options.trainer.keep_best), progress, *watchers]
    if options.trainer.early_stopping or options.trainer.stop_at is not None:
        patience = options.trainer.early_stopping or task.plan.steps  # without early stopping: unlimited
        callbacks.append(
            EarlyStopping(task.error_rate_name, patience=patience, stopping_threshold=options.trainer.stop_at)
        )
    return lightning.Trainer(
        accelerator=options.trainer.accelerator,
        devices=options.trainer.devices,
        num_nodes=options.trainer.nodes,
        strategy=options.trainer.strategy,
        precision=PRECISIONS[options.trainer.precision],  # type: ignore[arg-type]
        max_steps=task.plan.steps,
        max_epochs=-1,
        val_check_interval=task.plan.validate_every,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        accumulate_grad_batches=options.trainer.accumulate,
        use_distributed_sampler=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
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


def _finished(folder: Path, plan: TrainingPlan) -> bool:
    """Return whether the finished training in `folder` covers this plan, which may be longer."""
    path = folder / "training.json"
    if not path.exists():
        return False
    summary = json.loads(path.read_text())
    if plan.budget is None:
        return int(summary["planned_steps"]) >= plan.steps
    same_clock = summary.get("budget_clock") == plan.budget.clock
    return same_clock and float(summary["budget_s"]) >= plan.budget.seconds


@rank_zero_only
def _describe_run(
    options: TrainConfig, task: TrainingTask, data: TrainingData, folder: Path, resumed_step: int
) -> None:
    """Write the options and the environment of the run, and print a summary."""
    folder.mkdir(parents=True, exist_ok=True)
    config.save(options, folder / "config.yaml")
    device_type = "cuda" if torch.cuda.is_available() and options.trainer.accelerator != "cpu" else "cpu"
    environment = describe_environment() | {"device": device_type, "data": data.digests()}
    write_json(environment | task.describe(device_type), folder / "environment.json")
    data.write_report(folder)
    resumed = f", resumed at step {resumed_step}" if resumed_step else ""
    print(
        f"{folder}: {options.attention}, {_parameters(task) / 1e6:.2f} M parameters, {data.describe()}, "
        f"{data.epoch_batches(0)} batches per epoch, {task.plan.length}{resumed}",
        flush=True,
    )


def _parameters(task: TrainingTask) -> int:
    return sum(x.numel() for x in task.model.parameters() if x.requires_grad)


def _finish(
    options: TrainConfig,
    folder: Path,
    trainer: lightning.Trainer,
    task: TrainingTask,
    data: TrainingData,
    cost: Cost,
) -> None:
    """Average the best checkpoints if requested, and write training.json."""
    checkpoints = folder / "checkpoints"
    best = sorted(checkpoints.glob("best-*.ckpt"))[: options.trainer.average_best]
    if len(best) > 1:
        checkpoint.save(checkpoint.average(best), checkpoints / "average.ckpt")
    epochs = cost.batches / data.epoch_batches(0, options.trainer.devices * options.trainer.nodes)
    summary = cost.summary() | {
        "steps": trainer.global_step,
        "planned_steps": 0 if task.plan.steps == ENDLESS else task.plan.steps,
        "budget_s": task.plan.budget.seconds if task.plan.budget else None,
        "budget_clock": task.plan.budget.clock if task.plan.budget else None,
        "parameters": _parameters(task),
        "epochs": epochs,
        "dev_error_rate": task.dev_error,
        "seconds_per_epoch": cost.seconds / max(epochs, 1e-9),
        "cpu_seconds_per_epoch": cost.cpu_s / max(epochs, 1e-9),
        "padding_share": data.padding_share(),
        "skipped_batches": task.nonfinite["total"],
    }
    write_json(summary, folder / "training.json")
    print(
        f"{folder}: trained {trainer.global_step} steps in {cost.seconds:.0f} s "
        f"({summary['seconds_per_epoch']:.1f} s per epoch, {summary['frames_per_s']:.0f} frames/s, "
        f"{100 * summary['data_wait_share']:.1f} % waiting for data)"
    )


def _quiet_lightning() -> None:
    """Suppress Lightning's hints, and its warnings about choices made here."""
    for name in ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning.*")
