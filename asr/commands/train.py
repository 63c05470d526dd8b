"""`asr train`: train a recogniser."""

from pathlib import Path

from asr.library import train_with
from asr.training.options import TrainConfig


def run(paths: list[Path], options: TrainConfig) -> None:
    """Train a recogniser, and print the run folder and the next command."""
    train_with(options)
