"""Lightning's loggers by name: `trainer.loggers=WandbLogger`."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from lightning.pytorch import loggers as included
from lightning.pytorch.loggers import Logger, TensorBoardLogger

from asr.config import flat, to_dict
from asr.errors import UserError, in_words
from asr.records.run_folder import RunFolder
from asr.training.options import TrainConfig


@contextmanager
def open_loggers(options: TrainConfig, run: RunFolder) -> Iterator[list[Logger]]:
    """Build the loggers that the options name, and close them when the block ends.

    They write to the run folder, and send nothing over the network.

    Raises:
        UserError: a logger's package is not installed, or fails.
    """
    loggers = [_built(entry, run) for entry in options.trainer.loggers]
    try:
        yield loggers
    finally:
        for logger in loggers:
            # W&B would continue this run with the next training of the process.
            finish = getattr(getattr(logger, "experiment", None), "finish", None)
            if callable(finish):
                finish()


def log_options(loggers: Iterable[Logger], options: TrainConfig) -> None:
    """Log the options of a run, except to TensorBoard, which would write a second config.yaml."""
    for logger in loggers:
        if not isinstance(logger, TensorBoardLogger):
            logger.log_hyperparams(flat(to_dict(options)))


def check_objects(objects: Sequence[Any], kind: type, name: str) -> None:
    """Raise UserError unless all objects in the argument `name` are instances of a class of Lightning."""
    if not isinstance(objects, list | tuple):
        raise UserError(
            f"{name}=: expected a list of objects of Lightning's {kind.__name__}, found {objects!r:.60}"
        )
    for value in objects:
        if not isinstance(value, kind):
            found = value.__name__ if isinstance(value, type) else repr(value)[:60]
            raise UserError(f"{name}=: expected objects of Lightning's {kind.__name__}, found {found}")


def _built(name: str, run: RunFolder) -> Logger:
    kind: type[Logger] = getattr(included, name)
    try:
        return kind(**_local(name, run))
    except Exception as error:  # the logger's library fails, or isn't installed
        raise UserError(f"trainer.loggers=[{name}]: {type(error).__name__}: {in_words(error)}") from error


def _local(name: str, run: RunFolder) -> dict[str, Any]:
    """Return the arguments that make a logger write to the run folder only."""
    match name:
        case "TensorBoardLogger":
            return {"save_dir": str(run.path), "name": run.curves.name, "version": ""}
        case "CSVLogger":
            return {"save_dir": str(run.path), "name": "csv", "version": ""}
        case "WandbLogger":
            return {"save_dir": str(run.path), "name": run.path.name, "offline": True}
        case "MLFlowLogger":
            folder = run.path.absolute()  # a database: MLflow 3 refuses to create a folder of files
            return {
                "tracking_uri": f"sqlite:///{folder}/mlflow.db",
                "artifact_location": (folder / "mlruns").as_uri(),
                "run_name": run.path.name,
            }
    return {}
