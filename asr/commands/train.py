"""`asr train`: train a recogniser."""

from pathlib import Path

from asr.training.options import TrainConfig
from asr.training.run import train


def run(paths: list[Path], options: TrainConfig) -> None:
    """Train a recogniser; `train` prints its run folder."""
    train(options)
