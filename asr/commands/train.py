"""`asr train`: train a recogniser."""

from pathlib import Path

from asr import config
from asr.train_config import TrainConfig
from asr.training import train

POSITIONAL = ""
Options = TrainConfig


def parse(words: list[str]) -> TrainConfig:
    """Read the options, with Hydra's groups `recipe`, `model` and `optimizer`."""
    return config.compose(TrainConfig, "train", words)


def run(paths: list[Path], options: TrainConfig) -> None:
    """Train a recogniser; `train` prints its run folder."""
    train(options)
