"""`asr train`: train a recogniser."""

from pathlib import Path

from asr.training.config import TrainConfig, chosen_recipe, train_options, train_schema
from asr.training.run import train

POSITIONAL = ""
Options = TrainConfig


def options_schema(words: list[str]) -> TrainConfig:
    """Return the options for `--help`, including those of the recipe chosen by `recipe=`."""
    return train_schema(chosen_recipe(words))


def parse(words: list[str]) -> TrainConfig:
    """Parse options; `recipe=`, `model=`, `loss=` and `optimizer=` select Hydra groups."""
    return train_options(words)


def run(paths: list[Path], options: TrainConfig) -> None:
    """Train a recogniser; `train` prints its run folder."""
    train(options)
