"""A training run: options to data, model and Lightning trainer, and what it leaves in its folder."""

import json
import logging
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only
from rich.console import Console

from asr import checkpoint, config
from asr.callbacks import Cost, KeepBest, ResumePoint
from asr.data.stream import TrainingData
from asr.environment import describe_environment
from asr.errors import UserError
from asr.files import write_json
from asr.masked_copy import build_masked_copy
from asr.metrics import MetricsFile
from asr.plan import ENDLESS, TrainingPlan
from asr.progress import Bar, Lines
from asr.recognition import build_recognition
from asr.task import TrainingTask
from asr.train_config import PRECISIONS, TrainConfig

log = logging.getLogger(__name__)

Builder = Callable[[TrainConfig, bool], tuple[TrainingTask, TrainingData]]
BUILDERS: dict[str, Builder] = {"speech": build_recognition, "copy": build_masked_copy}


def train(options: TrainConfig, watchers: Sequence[lightning.Callback] = ()) -> Path:
    """Train a recogniser.

    Args:
        options: every setting.
        watchers: callbacks that look on.

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

    task, data = BUILDERS[options.recipe.task](options, resuming)
    resumed_step = int(checkpoint.load(last)["global_step"]) if resuming else 0
    _describe_run(options, task, data, folder, resumed_step)
    if resuming and _finished(folder, task.plan):
        print(f"{folder}: training is finished, nothing to do")
        return folder

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
    """Refuse what can't work before anything is read; return whether to resume."""
    if options.recipe.task not in BUILDERS:
        raise UserError(f"recipe.task={options.recipe.task!r}: expected one of {list(BUILDERS)}")
    if bool(options.recipe.length) != (options.recipe.task == "copy"):
        raise UserError(
            f"recipe.length={options.recipe.length}: it belongs to recipe=copy, and is needed there"
        )
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


def build_trainer(
    options: TrainConfig,
    task: TrainingTask,
    folder: Path,
    resumed_step: int,
    cost: Cost,
    watchers: Sequence[lightning.Callback] = (),
) -> lightning.Trainer:
    """Return Lightning's trainer with our checkpoints, metrics and progress.

    Lightning sees one epoch: the data's epochs follow each other in one stream of batches. Its number isn't
    limited, as a finished training that is given more steps goes on in it.
    """
    checkpoints = folder / "checkpoints"
    columns = ["data_epoch", "loss", "learning_rate", "gradient_norm", "frames_per_s"]
    columns += ["train_s", "train_cpu_s", "dev_loss", task.error_rate_name]
    terminal = Console(stderr=True)
    progress = Bar(task.plan, terminal) if terminal.is_terminal else Lines(task.plan)
    # Resume points first: what they take is before the clock of a step starts.
    callbacks = [ResumePoint(checkpoints, options.trainer.checkpoint_every), cost]
    callbacks += [KeepBest(checkpoints, options.trainer.keep_best), progress, *watchers]
    if options.trainer.early_stopping or options.trainer.stop_at >= 0:
        never = task.plan.steps
        patience = options.trainer.early_stopping or never
        threshold = options.trainer.stop_at if options.trainer.stop_at >= 0 else None
        callbacks.append(EarlyStopping(task.error_rate_name, patience=patience, stopping_threshold=threshold))
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
    """Return whether a run has had all that is planned: an earlier plan may have been a shorter one."""
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
    """Write what the run depends on, and say what is going to happen."""
    folder.mkdir(parents=True, exist_ok=True)
    config.save(options, folder / "config.yaml")
    device_type = "cuda" if torch.cuda.is_available() and options.trainer.accelerator != "cpu" else "cpu"
    environment = describe_environment() | {"device": device_type, "data": data.digests()}
    write_json(environment | task.describe(device_type), folder / "environment.json")
    data.write_report(folder)
    resumed = f", resumed at step {resumed_step}" if resumed_step else ""
    print(
        f"{folder}: {options.attention}, {_parameters(task) / 1e6:.2f} M parameters, {data.describe()}, "
        f"{data.epoch_batches(0)} batches an epoch, {task.plan.length}{resumed}",
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
    """Average the best checkpoints if asked, and write what training cost to training.json."""
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
        f"trained {trainer.global_step} steps in {cost.seconds:.0f} s, "
        f"{summary['seconds_per_epoch']:.1f} s an epoch, {summary['frames_per_s']:.0f} frames/s, "
        f"{100 * summary['data_wait_share']:.1f} % waiting for data: {folder}"
    )


def _quiet_lightning() -> None:
    """Silence Lightning's advertisements, and warnings about what is decided here."""
    for name in ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning.*")
