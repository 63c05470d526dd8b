"""Every option of a training run."""

import importlib
import importlib.util
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from asr.config import compose, from_dict, option
from asr.data.module import DataConfig
from asr.model.augment import AugmentConfig
from asr.model.encoder import ModelConfig
from asr.model.features import FeatureConfig
from asr.training.optimizer import OptimizerConfig

PRECISIONS = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}


@dataclass
class TokenizerConfig:
    """The targets."""

    kind: str = option("phone", help="phone | character | sentencepiece")
    lexicon: str = option("", help="lexicon file; empty: all lexicon.txt beside training manifests")
    pieces: int = option(500, help="sentencepiece: vocabulary size")


@dataclass
class TrainerConfig:
    """Length, precision and bookkeeping of training."""

    max_steps: int = option(0, help="length of training; 0: by max_epochs", unit="optimiser steps")
    max_epochs: int = option(100, help="length of training where max_steps is 0")
    budget: str = option("", help="length of training by time, e.g. 10min; then max_epochs doesn't count")
    budget_clock: str = option("wall", help="wall | cpu: CPU seconds, the fair clock on a shared machine")
    validate_every: int = option(0, help="0: once an epoch", unit="optimiser steps")
    checkpoint_every: int = option(200, help="distance of resume points", unit="optimiser steps")
    keep_best: int = option(1, help="recognisers kept by dev error rate")
    average_best: int = option(0, help="average so many of the kept ones at the end; 0: none")
    stop_at: float = option(-1.0, help="stop when the dev error rate is no higher; −1: never")
    early_stopping: int = option(0, help="validations without a better dev error rate; 0: never stop early")
    precision: str = option("fp32", help=" | ".join(PRECISIONS))
    accumulate: int = option(1, help="batches per optimiser step")
    clip: float = option(1.0, help="greatest gradient norm; 0: not clipped")
    nonfinite_patience: int = option(10, help="successive batches without a finite loss before stopping")
    accelerator: str = option("auto", help="auto | cpu | cuda")
    devices: int = option(1, help="devices of this machine; each is a rank")
    nodes: int = option(1, help="machines")
    strategy: str = option("auto", help="Lightning's strategy: auto | ddp | fsdp …")
    threads: int = option(0, help="CPU threads of a rank; 0: PyTorch's default")


@dataclass
class RecipeConfig:
    """Which corpus or task."""

    name: str = option("custom", help="name of the recipe; the run folder is exp/<name>/<attention>")


@dataclass
class TrainConfig:
    """Everything a training run depends on."""

    recipe: RecipeConfig = field(default_factory=RecipeConfig)
    attention: str = option("full", help="attention mechanism, e.g. i-clustered-100:topk=32")
    backend: str = option("auto", help="auto | reference | native")
    run: str = option("", help="run folder; empty: exp/<recipe>/<attention>")
    seed: int = option(0, help="of initialisation, order, dropout and augmentation")
    resume: str = option("no", help="auto: go on from the run's last checkpoint if there is one | no")
    init_from: str = option("", help="run folder or checkpoint whose weights are taken as the start")
    features: FeatureConfig = field(default_factory=FeatureConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)


def recipe_task(name: str) -> ModuleType | None:
    """Return the module of a recipe that brings its own task, `asr_recipes.<name>.task`; None without one.

    The module has `Options`, a subclass of `RecipeConfig` with the recipe's own options, and
    `build(options: TrainConfig, resuming: bool)`, which returns a `TrainingTask` and its `TrainingData`.
    """
    package = f"asr_recipes.{name}"
    if not name.isidentifier() or not importlib.util.find_spec(package):
        return None
    return importlib.import_module(f"{package}.task") if importlib.util.find_spec(f"{package}.task") else None


def train_schema(recipe: str = "") -> TrainConfig:
    """Return the defaults of all options, those of a recipe's own task included."""
    task = recipe_task(recipe)
    return TrainConfig(recipe=task.Options()) if task else TrainConfig()


def train_options(words: list[str]) -> TrainConfig:
    """Build the options of a training run from `key=value` words, with Hydra's groups `recipe=`, `model=` …

    Raises:
        UserError: see `compose`.

    Example:
        >>> train_options(["recipe=demo", "model.layers=6"]).model.layers
        6
    """
    return compose(train_schema(chosen_recipe(words)), "train", words)


def chosen_recipe(words: list[str]) -> str:
    """Return the recipe that `key=value` words choose; empty: none."""
    chosen = [word.partition("=")[2] for word in words if word.startswith("recipe=")]
    return chosen[-1] if chosen else ""


def train_options_from(values: dict[str, Any], source: str) -> TrainConfig:
    """Build the options of a training run from a run's config.yaml.

    Raises:
        UserError: the values don't fit the schema; the message names `source`.
    """
    recipe = values.get("recipe")
    name = recipe.get("name") if isinstance(recipe, dict) else ""
    return from_dict(train_schema(str(name)), values, source)
