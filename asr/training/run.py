"""A training run: builds data, task and Lightning trainer from the options, and writes the run folder."""

import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import lightning
import torch
from lightning.pytorch.loggers import Logger

from asr import config
from asr.console import counted, duration
from asr.data.stream import TrainingData
from asr.environment import describe_environment, device_words
from asr.errors import UserError, with_causes
from asr.files import locked, write_record
from asr.model import checkpoint
from asr.records.run_folder import RunFolder, TrainingSummary
from asr.training.closing import closing
from asr.training.config import check_determined, determined, run_folder
from asr.training.cost import Cost
from asr.training.data_module import DataModule
from asr.training.loggers import check_objects, log_options, open_loggers
from asr.training.options import TrainConfig, recipe_task, task_options
from asr.training.plan import ENDLESS, training_plan
from asr.training.ranks import check_processes, global_rank, rank_failures
from asr.training.recognition import build_recognition
from asr.training.resume import (
    ResumePoint,
    carry_on,
    check_inputs,
    check_model,
    clear,
    clear_partial,
    find_resume_point,
    finished,
    identity,
    raised_rate,
    replanned,
    start_digest,
)
from asr.training.signals import ANNOUNCEMENTS, Signals, Stopped
from asr.training.sizes import precision, reasons, settled
from asr.training.start import starts
from asr.training.task import TrainingTask
from asr.training.trainer import build_trainer, quiet_lightning


def train(
    options: TrainConfig,
    watchers: Sequence[lightning.Callback] = (),
    loggers: Sequence[Logger] = (),
) -> Path:
    """Train a model.

    Args:
        options: options of the run.
        watchers: additional Lightning callbacks.
        loggers: Lightning loggers, in addition to those that the options name.

    Returns:
        The run folder.

    Raises:
        UserError: invalid input, a run folder in use, or a run to resume whose options or inputs differ.
        KeyboardInterrupt: Ctrl-C, after the resume point has been written.
        SystemExit: 143 after SIGTERM, 138 or 140 after SIGUSR1 or SIGUSR2, when the resume point has been
            written.
    """
    check_training(options)
    check_objects(watchers, lightning.Callback, "callbacks")
    check_objects(loggers, Logger, "loggers")
    folder = run_folder(options)
    asked, options = options, settled(options)
    try:
        alone = (
            locked(folder, "asr train", RunFolder(folder).begun)
            if _is_first_process(options)
            else nullcontext()
        )
        with (
            rank_failures(options.trainer, folder),
            alone,
            open_loggers(options, RunFolder(folder)) as named,
            Signals() as signals,
        ):
            _train(options, folder, watchers, [*named, *loggers], signals, reasons(asked, options))
    except Stopped as stop:
        if not _is_first_process(options):
            raise SystemExit(0) from None  # not a failure of this rank
        print(f"{folder}: stopped by {signal.Signals(stop.number).name}{stop.note}", flush=True)
        if stop.number == signal.SIGINT:
            raise KeyboardInterrupt from None
        if stop.number in ANNOUNCEMENTS and callable(requeue := signal.getsignal(stop.number)):
            requeue(stop.number, None)  # submitit's handler
        raise SystemExit(128 + stop.number) from None
    return folder


def _train(
    options: TrainConfig,
    folder: Path,
    watchers: Sequence[lightning.Callback],
    loggers: Sequence[Logger],
    signals: Signals,
    notes: list[str],
) -> None:
    point = find_resume_point(options, folder)
    if options.trainer.threads:
        torch.set_num_threads(options.trainer.threads)
    quiet_lightning()
    lightning.seed_everything(options.seed, verbose=False)

    task, data = build_task(options, point is not None, point.state["model"] if point else None)
    environment = _environment(options, task, data, point)
    cost = Cost(task.plan.budget)
    if point:
        check_inputs(point, environment)
        check_model(point, task)
        carry_on(point, options, data)
        task.plan = training_plan(options, data, point.step)
        task.on_load_checkpoint(point.state)
        cost.load_state_dict(point.state["callbacks"][cost.state_key])
        if finished(point, task.plan, cost):
            if _is_first_process(options):  # killed while it renamed its last resume point
                clear_partial(folder)
            if RunFolder(folder).summary.exists():
                print(f"{folder}: training is already finished")
                if _is_first_process(options):
                    _average(options, folder)
                    print("\n".join(closing(options, folder, task.error_rate_name)))
            elif _is_first_process(options):  # killed before it could write its summary
                _finish(options, folder, point.step, task, data, cost)
            return
    if _is_first_process(options):
        _begin(options, task, data, folder, environment, point)
        lines = raised_rate(point, task.plan, cost) if point else [*notes, *starts(options, folder, data)]
        for line in lines:
            print(f"  {line}", flush=True)

    log_options(loggers, options)
    trainer = build_trainer(options, task, folder, point, cost, signals, watchers, loggers)
    with _named_failures(options, folder):
        last = str(RunFolder(folder).last) if point else None
        # weights_only: reading a checkpoint never runs code.
        trainer.fit(task, DataModule(data, trainer), ckpt_path=last, weights_only=True)
    signals.deferred = False
    signals.check()
    if trainer.is_global_zero:
        _finish(options, folder, trainer.global_step, task, data, cost)


def _is_first_process(options: TrainConfig) -> bool:
    """Return whether this is the process of rank 0; the other ranks run the same program."""
    return global_rank(options.trainer.devices) == 0


@contextmanager
def _named_failures(options: TrainConfig, folder: Path) -> Iterator[None]:
    """Raise UserError for a file that can't be written and a data-loading process that died."""
    print_failure = threading.excepthook

    def print_unless_raised(failure: threading.ExceptHookArgs) -> None:
        if not issubclass(failure.exc_type, OSError):  # TensorBoard's thread raises these here, too
            print_failure(failure)

    threading.excepthook = print_unless_raised
    try:
        yield
    except Exception as error:
        # PyTorch's signal handler raises it wherever the process is, so a library may have wrapped it.
        died = any("DataLoader worker (pid" in str(x) for x in with_causes(error))
        if isinstance(error, BrokenPipeError) and not died:  # nobody reads the output
            raise
        if died or isinstance(error, EOFError | ConnectionError):
            raise UserError(
                f"{folder}: a data-loading process died (out of memory?): lower "
                f"data.workers={options.data.workers}, or raise ulimit -f"
            ) from error
        if isinstance(error, OSError) and not error.filename:
            raise UserError(f"{folder}: {error.strerror or error}") from error
        raise
    finally:
        threading.excepthook = print_failure


def check_training(options: TrainConfig) -> None:
    """Check the options before loading data."""
    config.check(options)
    precision(options)
    check_processes(options.trainer)


def build_task(
    options: TrainConfig, resuming: bool, stored: Mapping[str, Any] | None = None
) -> tuple[TrainingTask, TrainingData]:
    """Return task and data: the recipe's own if it defines a task, otherwise training on utterances.

    Args:
        options: options of the run.
        resuming: whether weights are loaded from a resume point, so initial weights aren't needed.
        stored: state of the model in the resume point, if there is one.
    """
    if options.init_from and not resuming:  # complete options haven't been composed
        where = f"init_from={options.init_from}"
        check_determined(config.flat(config.to_dict(options)), determined(where), where)
    module, schema = recipe_task(options.recipe.name), task_options(options.recipe.name)
    if module and schema and isinstance(options.recipe, schema):
        return cast(tuple[TrainingTask, TrainingData], module.build(options, resuming))
    return build_recognition(options, resuming, stored)


def machine(options: TrainConfig) -> dict[str, Any]:
    """Return versions, hardware and the device of a training."""
    device_type = "cuda" if torch.cuda.is_available() and options.trainer.accelerator != "cpu" else "cpu"
    return describe_environment() | {"device": device_type}


def _environment(
    options: TrainConfig, task: TrainingTask, data: TrainingData, point: ResumePoint | None
) -> dict[str, Any]:
    """Return the content of environment.json, and set the task's run identity."""
    environment = machine(options) | {"data": data.digests()}
    environment["data"] |= options.select.digests()
    environment["precision"] = options.trainer.precision
    environment |= task.describe(environment["device"]) | {"start": start_digest(options, point)}
    environment["replanned"] = point is not None and replanned(options, point)
    task.run = point.environment.run if point else identity(options, environment)
    return environment | {"run": task.run}


def _begin(
    options: TrainConfig,
    task: TrainingTask,
    data: TrainingData,
    folder: Path,
    environment: dict[str, Any],
    point: ResumePoint | None,
) -> None:
    """Write the options and the environment of the run, and print a summary."""
    clear(folder, point)
    run = RunFolder(folder)
    config.save(options, run.options)
    write_record(environment, run.environment)
    data.write_report(folder)
    resumed = f", resumed at step {point.step}" if point else ""
    print(f"{folder}: {described(options, task, data, environment)}{resumed}", flush=True)


def described(
    options: TrainConfig, task: TrainingTask, data: TrainingData, environment: dict[str, Any]
) -> str:
    """Return mechanism, frames, device, sizes and length of a training in one line."""
    frames = f" frames={options.model.frames}" if options.model.frames != "1" else ""
    total = sum(x.numel() for x in task.model.parameters())
    of_all = f" of {total / 1e6:.2f}" if options.model.lora.rank else ""
    return (
        f"{options.attention}{frames} on {device_words(environment)}, {options.trainer.precision}, "
        f"{_parameters(task) / 1e6:.2f}{of_all} M parameters, {data.describe()}, "
        f"{counted(data.epoch_batches(0), 'batch', 'batches')} per epoch, {task.plan.length}"
    )


def _parameters(task: TrainingTask) -> int:
    return sum(x.numel() for x in task.model.parameters() if x.requires_grad)


def _finish(
    options: TrainConfig, folder: Path, steps: int, task: TrainingTask, data: TrainingData, cost: Cost
) -> None:
    """Average the best checkpoints if requested, and write training.json.

    Raises:
        UserError: less than half of the steps changed the weights.
    """
    # SKIP_PATIENCE only ends a training that skips many batches in succession.
    if 2 * task.counts["taken"] < steps:
        raise UserError(
            f"{folder}: expected finite losses and gradients, found {task.counts['taken'] or 'none'} in "
            f"{counted(steps, 'step')}: lower optimizer.learning_rate or check the data"
        )
    _average(options, folder)
    epochs = data.epochs()
    summary = TrainingSummary(
        **cost.summary(),
        steps=steps,
        planned_steps=0 if task.plan.steps == ENDLESS else task.plan.steps,
        budget_s=task.plan.budget.seconds if task.plan.budget else None,
        budget_clock=task.plan.budget.clock if task.plan.budget else None,
        parameters=_parameters(task),
        epochs=epochs,
        dev_error_rate=task.dev_error,
        seconds_per_epoch=cost.seconds / max(epochs, 1e-9),
        cpu_seconds_per_epoch=cost.cpu_s / max(epochs, 1e-9),
        padding_share=data.padding_share(),
        skipped_batches=task.counts["skipped"],
    )
    write_record(asdict(summary), RunFolder(folder).summary)
    print(
        f"{folder}: trained {counted(steps, 'step')} in {duration(cost.seconds)} "
        f"({duration(summary.seconds_per_epoch)} per epoch, {summary.frames_per_s:,.0f} frames/s, "
        f"{100 * summary.data_wait_share:.1f} % waiting for data)"
    )
    print("\n".join(closing(options, folder, task.error_rate_name)), flush=True)


def _average(options: TrainConfig, folder: Path) -> None:
    """Replace average.ckpt with the average of the best checkpoints, or remove it if none was requested."""
    run = RunFolder(folder)
    best = run.best()[: options.trainer.average_best]
    if len(best) > 1:
        checkpoint.save(checkpoint.average_checkpoints(best), run.average)
    else:
        run.average.unlink(missing_ok=True)
