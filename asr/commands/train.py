"""`asr train`: a recipe and an attention name to a run folder."""

from pathlib import Path

from asr import config
from asr.train_config import TrainConfig
from asr.training import train

POSITIONAL = ""
Options = TrainConfig


def parse(words: list[str]) -> TrainConfig:
    """Read options with Hydra's groups: recipe=, model=, optimizer=."""
    return config.compose(TrainConfig, "train", words)


def run(paths: list[Path], options: TrainConfig) -> None:
    """Train; training itself says where the run folder is."""
    train(options)
