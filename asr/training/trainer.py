"""Lightning's trainer, with our checkpoints, metrics and progress."""

import logging
import warnings
from collections.abc import Sequence
from pathlib import Path

import lightning
from lightning.pytorch.loggers import Logger

from asr.console import draws_bars, open_console
from asr.records.run_folder import RunFolder
from asr.training.checkpoints import AtomicCheckpointIO, KeepBest, SaveResumePoint, StopConverged, StopEarly
from asr.training.cost import Cost
from asr.training.csv_logger import MetricsFile
from asr.training.heard import WriteHeard
from asr.training.options import TrainConfig
from asr.training.progress import Bar, ProgressLines, WarnUnlearned
from asr.training.ranks import environment_plugins
from asr.training.resume import ResumePoint
from asr.training.signals import Signals
from asr.training.strategy import training_strategy
from asr.training.task import TrainingTask

PRECISIONS = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}  # Lightning's names


def build_trainer(
    options: TrainConfig,
    task: TrainingTask,
    folder: Path,
    point: ResumePoint | None,
    cost: Cost,
    signals: Signals,
    watchers: Sequence[lightning.Callback] = (),
    loggers: Sequence[Logger] = (),
) -> lightning.Trainer:
    """Return the trainer of a run.

    Lightning sees a single epoch, because the batches of all epochs form one stream. Its max_epochs is
    unlimited, so that a finished run can be extended.
    """
    run = RunFolder(folder)
    columns = ["data_epoch", "loss", "learning_rate", "gradient_norm", "frames_per_s"]
    columns += ["train_s", "train_cpu_s", "progress", "dev_loss", task.error_rate_name]
    terminal = open_console(stderr=True)
    progress = Bar(terminal) if draws_bars(terminal) else ProgressLines()
    # SaveResumePoint comes first, so that writing resume points doesn't count as training time.
    callbacks = [SaveResumePoint(run, options.trainer.checkpoint_every, signals), cost]
    callbacks += [KeepBest(run, options.trainer.keep_best), WriteHeard(run.heard), progress]
    callbacks += [WarnUnlearned(), *watchers]
    if options.trainer.early_stopping or options.trainer.stop_at is not None:
        patience = options.trainer.early_stopping or task.plan.steps  # without early stopping: unlimited
        callbacks.append(
            StopEarly(task.error_rate_name, patience=patience, stopping_threshold=options.trainer.stop_at)
        )
    if options.optimizer.minimum_rate:
        callbacks.append(StopConverged(options.optimizer.minimum_rate))
    return lightning.Trainer(
        accelerator=options.trainer.accelerator,
        devices=options.trainer.devices,
        num_nodes=options.trainer.nodes,
        strategy=training_strategy(options.trainer),
        precision=PRECISIONS[options.trainer.precision],  # type: ignore[arg-type]
        max_steps=task.plan.steps,
        max_epochs=-1,
        val_check_interval=task.plan.validate_every,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        accumulate_grad_batches=options.trainer.accumulate,
        # Ranks take turns at the batches of one stream, so an utterance is seen once per epoch.
        use_distributed_sampler=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        log_every_n_steps=1,
        logger=[MetricsFile(run.metrics, columns, point.step if point else 0), *loggers],
        plugins=[AtomicCheckpointIO(point.state if point else None), *environment_plugins()],
        callbacks=callbacks,
        profiler=cost.data_wait,
        default_root_dir=str(folder),
    )


def quiet_lightning() -> None:
    """Suppress Lightning's hints, and its warnings about choices made here."""
    for name in ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning.*")
