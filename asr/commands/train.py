"""`asr train`: train a recogniser."""

from pathlib import Path

from rich.table import Table

from asr.config import config_groups
from asr.training.config import TrainConfig, train_options
from asr.training.run import train

POSITIONAL = ""
Options = TrainConfig


def options_schema(overrides: list[str]) -> TrainConfig:
    """Return the options for `--help`: what `overrides`, such as `recipe=wsj`, would train with."""
    return train_options(overrides)


def details(overrides: list[str]) -> Table:
    """Return what `--help` prints below the options: the choices of each config group."""
    table = Table(
        "group", "choices", title="groups of options; recipe=<name> --help shows a recipe's defaults"
    )
    for group, names in sorted(config_groups().items()):
        table.add_row(f"{group}=", ", ".join(names))
    return table


def parse(overrides: list[str]) -> TrainConfig:
    """Parse options; `recipe=`, `model=`, `loss=` and `optimizer=` select config groups."""
    return train_options(overrides)


def run(paths: list[Path], options: TrainConfig) -> None:
    """Train a recogniser; `train` prints its run folder."""
    train(options)
