"""The options of a training run."""

import importlib
import importlib.util
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from asr.config import as_overrides, compose, flat, from_dict, option, options_of, refuse, to_dict
from asr.config.names import BACKENDS
from asr.data.options import DataConfig
from asr.errors import UserError
from asr.losses.options import LossConfig
from asr.model.options import AugmentConfig, FeatureConfig, ModelConfig
from asr.model.pretrained_folder import ADJUSTABLE, encoder_options, read_pretrained
from asr.records.run_folder import RunFolder
from asr.search.options import BeamConfig
from asr.training.budget import CLOCKS, parse_budget
from asr.training.optimizer import OptimizerConfig

PRECISIONS = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}


@dataclass
class TokenizerConfig:
    """Units of the targets."""

    kind: str = option(
        "phone",
        help="unit of the targets: phone | character | sentencepiece",
        affects="result",
        choices=("phone", "character", "sentencepiece"),
    )
    lexicon: str = option(
        "",
        help="lexicon file; empty: the lexicon.txt files next to the training manifests, merged",
        affects="result",
        only=("kind", "phone"),
    )
    pieces: int = option(
        500,
        help="vocabulary size",
        affects="result",
        only=("kind", "sentencepiece"),
        minimum=2,
        maximum=1_000_000,
    )


@dataclass
class TrainerConfig:
    """Length of training, validation, checkpoints, precision and devices."""

    max_steps: int = option(
        0, help="maximum number of steps; 0: train for max_epochs", affects="plan", unit="optimiser steps"
    )
    max_epochs: int = option(
        100,
        help="number of epochs, all taken to be as long as the first; ignored with max_steps or budget; "
        "0: by the amount of data",
        affects="plan",
    )
    budget: str = option(
        "", help="maximum training time, e.g. 90s, 10min, 1.5h; empty: no limit", affects="plan"
    )
    budget_clock: str = option(
        "wall",
        help="clock of the budget: wall | cpu (CPU time, less affected by other load on the machine)",
        affects="result",
        only=("budget",),
        choices=CLOCKS,
    )
    validate_every: int = option(
        0, help="validation interval; 0: one epoch", affects="plan", unit="optimiser steps"
    )
    checkpoint_every: int = option(
        200,
        help="interval between checkpoints to resume from",
        affects="place",
        unit="optimiser steps",
        minimum=1,
    )
    keep_best: int = option(
        1,
        help="number of best checkpoints to keep, by dev error rate",
        affects="plan",
        minimum=1,
        maximum=1000,
    )
    average_best: int = option(
        0,
        help="number of best checkpoints to average after training, at most keep_best; 0: don't average",
        affects="plan",
        maximum=1000,
    )
    stop_at: float | None = option(
        None,
        help="stop when the dev error rate falls below this, as a fraction; null: never",
        affects="plan",
        maximum=1e6,
    )
    early_stopping: int = option(
        0,
        help="stop after this many without a lower dev error rate; 0: never",
        affects="plan",
        unit="validations",
    )
    precision: str = option("fp32", help=" | ".join(PRECISIONS), affects="result", choices=PRECISIONS)
    accumulate: int = option(
        1,
        help="gradient accumulation: batches per optimiser step",
        affects="plan",
        minimum=1,
        maximum=1_000_000,
    )
    clip: float = option(1.0, help="maximum gradient norm; 0: no clipping", affects="result")
    skip_patience: int = option(
        10,
        help="stop with an error after more than this many successive batches whose loss is NaN or infinite, "
        "or that don't fit in memory",
        affects="result",
    )
    accelerator: str = option(
        "auto", help="auto | cpu | cuda", affects="cost", choices=("auto", "cpu", "cuda")
    )
    devices: int = option(1, help="number of devices per machine", affects="plan", minimum=1, maximum=1024)
    nodes: int = option(1, help="number of machines", affects="plan", minimum=1, maximum=100_000)
    strategy: str = option(
        "auto",
        help="auto | ddp (average gradients) | fsdp (also divide the model among the processes)",
        affects="result",
        choices=("auto", "ddp", "fsdp"),
    )
    average_every: int = option(
        0,
        help="with several processes: average weights at this interval instead of gradients; 0: never. "
        "validate_every must be 0 or a multiple",
        affects="result",
        unit="optimiser steps",
    )
    threads: int = option(
        0, help="CPU threads per process; 0: PyTorch's default", affects="cost", maximum=1024
    )

    def check(self) -> None:
        """Raise UserError for an invalid budget, or options that don't fit together."""
        parse_budget(self.budget)
        if self.average_best > self.keep_best:
            raise UserError(
                f"trainer.average_best={self.average_best}: expected at most "
                f"trainer.keep_best={self.keep_best}"
            )
        if self.average_every and self.strategy == "fsdp":
            raise UserError(
                f"trainer.average_every={self.average_every}: expected 0 with trainer.strategy=fsdp, whose "
                "processes share the weights"
            )
        if self.strategy == "fsdp" and self.precision == "fp16":
            raise UserError("trainer.precision=fp16: expected fp32 or bf16 with trainer.strategy=fsdp")
        if self.average_every and self.validate_every % self.average_every:
            raise UserError(
                f"trainer.validate_every={self.validate_every}: expected a multiple of "
                f"trainer.average_every={self.average_every}, so that averaged weights are validated"
            )
        if self.average_every and self.devices * self.nodes == 1:
            raise UserError(
                f"trainer.average_every={self.average_every}: expected 0 with one process, or several with "
                "trainer.devices or trainer.nodes"
            )


@dataclass
class SelectionConfig:
    """What the best checkpoint is best at."""

    metric: str = option(
        "greedy",
        help="error rate on the development data: greedy (of labels, by greedy search) | wer (of words, by "
        "decoder=beam)",
        affects="result",
        choices=("greedy", "wer"),
    )
    utterances: int = option(
        200,
        help="number to decode, the first of the development data",
        affects="result",
        only=("metric", "wer"),
        unit="utterances",
        minimum=1,
    )
    beam: BeamConfig = options_of(BeamConfig, only=("metric", "wer"))
    decoder = "beam"  # a constant, on which options of the search depend


@dataclass
class RecipeConfig:
    """The recipe: a corpus or a task."""

    name: str = option(
        "custom", help="name of the recipe; the run folder is exp/<name>/<attention>", affects="result"
    )


@dataclass
class TrainConfig:
    """All options of a training run."""

    recipe: RecipeConfig = field(default_factory=RecipeConfig)
    attention: str = option(
        "full", help="attention mechanism, e.g. i-clustered-100:topk=32", affects="result"
    )
    backend: str = option(
        "auto",
        help="auto | reference (PyTorch) | native (compiled kernels)",
        affects="result",
        choices=BACKENDS,
    )
    run: str = option("", help="run folder; empty: exp/<recipe>/<attention>", affects="place")
    seed: int = option(
        0,
        help="random seed for initialisation, batch order, dropout and augmentation",
        affects="result",
        maximum=2**32 - 1,
    )
    resume: str = option(
        "no",
        help="no | auto: resume from the run's last checkpoint if there is one",
        affects="place",
        choices=("no", "auto"),
    )
    init_from: str = option(
        "", help="run folder or checkpoint to initialise the weights from", affects="result"
    )
    features: FeatureConfig = field(default_factory=FeatureConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    data: DataConfig = field(default_factory=DataConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    select: SelectionConfig = field(default_factory=SelectionConfig)

    def check(self) -> None:
        """Raise UserError for options of the model that don't fit those of recipe, loss and augmentation."""
        if recipe_task(self.recipe.name):
            without = f"with recipe={self.recipe.name}"
            refuse(self.model, ("encoder", "freeze_encoder_steps"), without)
            refuse(self, ("features", "augment", "loss", "select"), without)
        blocks = self.loss.intermediate
        if blocks and max(blocks) >= self.model.layers:
            raise UserError(
                f"loss.intermediate={blocks}: expected blocks before the last, 1 … {self.model.layers - 1}"
            )
        if self.model.self_conditioned and not blocks:
            raise UserError("model.self_conditioned=true: expected loss.intermediate=[…], found []")
        masks = self.augment.frequency_masks or self.augment.time_mask_every
        if self.loss.consistency and not masks:
            raise UserError(
                f"loss.consistency={self.loss.consistency:g}: the two views differ by SpecAugment, which is "
                "off: set augment.frequency_masks and augment.time_mask_every"
            )


def recipe_task(name: str) -> ModuleType | None:
    """Return the module `asr_recipes.<name>.task` of a recipe with its own task; None if it has none.

    The module defines `Options`, a subclass of `RecipeConfig` with the recipe's own options, and
    `build(options: TrainConfig, resuming: bool)`, which returns a `LabelTask` and its `NumberedBatches`.
    """
    return recipe_module(name, "task")


def recipe_module(name: str, part: str) -> ModuleType | None:
    """Return the module `asr_recipes.<name>.<part>`; None if there is none."""
    package = f"asr_recipes.{name}"
    if not name.isidentifier() or not importlib.util.find_spec(package):
        return None
    module = f"{package}.{part}"
    return importlib.import_module(module) if importlib.util.find_spec(module) else None


def train_schema(recipe: str = "") -> TrainConfig:
    """Return the defaults of all options, including those of the recipe's own task."""
    task = recipe_task(recipe)
    return TrainConfig(recipe=task.Options()) if task else TrainConfig()


def train_options(overrides: list[str]) -> TrainConfig:
    """Build the options of a training run from `key=value` overrides.

    `recipe=`, `model=`, `loss=` and `optimizer=` select Hydra groups. With `model.encoder=`, the folder of a
    pretrained encoder gives features and model the values in place of the recipe's.

    Raises:
        UserError: see `compose` and `read_pretrained`; or an option that contradicts the pretrained encoder.

    Example:
        >>> train_options(["recipe=demo", "model.layers=6"]).model.layers
        6
    """
    recipe = chosen_recipe(overrides)
    folder = _last(overrides, "model.encoder")
    if not folder:
        return compose(train_schema(recipe), "train", overrides)
    where = f"model.encoder={folder}"
    if group := _last(overrides, "model"):
        raise UserError(f"model={group}: has no effect with {where}")
    given = encoder_options(read_pretrained(folder))
    options = compose(train_schema(recipe), "train", [*as_overrides(given), *overrides])
    chosen = flat(to_dict(options))
    for key, value in given.items():
        if chosen[key] != value and key not in ADJUSTABLE:
            raise UserError(f"{key}={chosen[key]}: expected {value} with {where}")
    return options


def chosen_recipe(overrides: list[str]) -> str:
    """Return the recipe chosen by `key=value` overrides, or an empty string."""
    return _last(overrides, "recipe")


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
    return from_dict(train_schema(str(name)), values, source)


def run_options(run: RunFolder) -> TrainConfig:
    """Return the options of a run, from its config.yaml.

    Raises:
        OSError: it can't be read.
        UserError: it doesn't fit the schema.
    """
    return train_options_from(run.read_options(), str(run.options))
