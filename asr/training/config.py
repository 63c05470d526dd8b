"""Options of a training run from overrides, or from the config.yaml of a run."""

from pathlib import Path
from typing import Any

from asr import config
from asr.config.names import split_source
from asr.errors import UserError
from asr.records.run_folder import RunFolder
from asr.training.options import TrainConfig, train_schema


def train_options(overrides: list[str]) -> TrainConfig:
    """Build the options of a training run from `key=value` overrides.

    `recipe=`, `model=`, `loss=` and `optimizer=` select Hydra groups. With `model.encoder=`, the folder of a
    pretrained encoder gives features and model the values in place of the recipe's. Code that `attention=`
    names is loaded.

    Raises:
        UserError: see `compose` and `read_pretrained`; or an option that contradicts the pretrained encoder.

    Example:
        >>> train_options(["recipe=demo", "model.layers=6"]).model.layers
        6
    """
    options = _composed(overrides)
    if any(split_source(part.partition("*")[0])[0] for part in options.attention.split(",")):
        from asr.attention import given_name  # loads PyTorch

        options.attention = given_name(options.attention)
    return options


def _composed(overrides: list[str]) -> TrainConfig:
    recipe = chosen_recipe(overrides)
    folder = _last(overrides, "model.encoder")
    if not folder:
        return config.compose(train_schema(recipe), "train", overrides)
    from asr.model.pretrained_folder import ADJUSTABLE, encoder_options, read_pretrained  # loads PyTorch

    where = f"model.encoder={folder}"
    if group := _last(overrides, "model"):
        raise UserError(f"model={group}: has no effect with {where}")
    given = encoder_options(read_pretrained(folder))
    options = config.compose(train_schema(recipe), "train", [*config.as_overrides(given), *overrides])
    chosen = config.flat(config.to_dict(options))
    for key, value in given.items():
        if chosen[key] != value and key not in ADJUSTABLE:
            raise UserError(f"{key}={chosen[key]}: expected {value} with {where}")
    return options


def chosen_recipe(overrides: list[str]) -> str:
    """Return the name of the recipe chosen by `key=value` overrides, or an empty string.

    A user's file has the name that it sets: its options may be those of an included recipe's task.
    """
    chosen = _last(overrides, "recipe")
    searched = config.search_path(overrides)
    file = Path(chosen) if config.is_file_choice(chosen) else None
    if searched and not file:
        file = config.configurations("recipe", searched).get(chosen)
    recipe = config.load_yaml(file).get("recipe") if file and file.is_file() else None
    return str(recipe.get("name") or chosen) if isinstance(recipe, dict) else chosen


def _last(overrides: list[str], key: str) -> str:
    """Return the last value of an option, or an empty string."""
    return next((x.partition("=")[2] for x in reversed(overrides) if x.startswith(f"{key}=")), "")


def train_options_from(values: dict[str, Any], source: str) -> TrainConfig:
    """Build the options of a training run from a run's config.yaml.

    Raises:
        UserError: the values don't fit the schema; the message names `source`.
    """
    recipe = values.get("recipe")
    name = recipe.get("name") if isinstance(recipe, dict) else ""
    return config.from_dict(train_schema(str(name)), values, source)


def run_options(run: RunFolder) -> TrainConfig:
    """Return the options of a run, from its config.yaml.

    Raises:
        OSError: it can't be read.
        UserError: it doesn't fit the schema.
    """
    return train_options_from(run.read_options(), str(run.options))
