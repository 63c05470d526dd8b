"""The options of a training run."""

import importlib
import importlib.util
from dataclasses import dataclass, field, replace
from types import ModuleType

from asr.config import option, refuse
from asr.config.names import BACKENDS, MECHANISMS, MOST_PIECES, PRECISIONS
from asr.data.options import DataConfig
from asr.errors import UserError
from asr.losses.options import LossConfig
from asr.model.options import AugmentConfig, FeatureConfig, ModelConfig
from asr.search.decoders.beam import Beam
from asr.training.budget import CLOCKS, parse_budget

OPTIMIZERS = ("adamw", "muon", "radam", "adadelta")
SCHEDULES = ("cosine", "plateau", "constant")


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
        maximum=MOST_PIECES,
    )


@dataclass
class TrainerConfig:
    """Length of training, validation, checkpoints, precision and devices."""

    max_steps: int = option(
        0, help="maximum number of steps; 0: train for max_epochs", affects="plan", unit="optimiser steps"
    )
    max_epochs: int = option(
        100,
        help="number of epochs, all assumed to be as long as the first; ignored with max_steps or budget; "
        "0: chosen by the amount of data",
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
        0,
        help="validation interval; 0: one epoch, or with max_epochs=0 long enough for at most 40 validations",
        affects="plan",
        unit="optimiser steps",
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
        help="stop after this many validations without a lower dev error rate; 0: never",
        affects="plan",
    )
    precision: str = option(
        "fp32",
        help=f"precision of matrix products: {' | '.join(PRECISIONS)}; auto: bf16 if the processor has "
        "instructions for it",
        affects="result",
        choices=PRECISIONS,
    )
    accumulate: int = option(
        1,
        help="gradient accumulation: batches per optimiser step, which is the same as with one batch of all "
        "their utterances",
        affects="plan",
        minimum=1,
        maximum=1_000_000,
    )
    clip: float = option(1.0, help="maximum gradient norm; 0: no clipping", affects="result")
    accelerator: str = option(
        "auto", help="auto | cpu | cuda", affects="cost", choices=("auto", "cpu", "cuda")
    )
    devices: int = option(1, help="number of devices per machine", affects="plan", minimum=1, maximum=1024)
    nodes: int = option(1, help="number of machines", affects="plan", minimum=1, maximum=100_000)
    threads: int = option(
        0,
        help="CPU threads per process; 0: PyTorch's default, or the cores divided among several processes",
        affects="cost",
        maximum=1024,
    )
    loggers: list[str] = option(
        ["TensorBoardLogger"],
        help="loggers of Lightning, in addition to metrics.csv; they write to the run folder: "
        "TensorBoardLogger | WandbLogger (offline) | MLFlowLogger | CSVLogger",
        affects="place",
        choices=("TensorBoardLogger", "WandbLogger", "MLFlowLogger", "CSVLogger"),
    )

    def check(self) -> None:
        """Raise UserError for an invalid budget, or options that don't fit together."""
        parse_budget(self.budget)
        if self.average_best > self.keep_best:
            raise UserError(
                f"trainer.average_best={self.average_best}: expected at most "
                f"trainer.keep_best={self.keep_best}"
            )


@dataclass
class OptimizerConfig:
    """Optimiser and learning rate schedule."""

    name: str = option("adamw", help=" | ".join(OPTIMIZERS), affects="result", choices=OPTIMIZERS)
    learning_rate: float = option(
        1e-3,
        help="peak learning rate; for a published model about 5e-5",
        affects="result",
        minimum=1e-12,
        maximum=100,
    )
    betas: list[float] = option(
        [0.9, 0.98],
        help="β1 and β2",
        affects="result",
        only=("name", ("adamw", "muon", "radam")),
        maximum=0.999999,
    )
    weight_decay: float = option(
        0.01,
        help="decoupled weight decay (adadelta: L2 penalty); biases and norms are not decayed",
        affects="result",
        maximum=1000,
    )
    schedule: str = option(
        "cosine", help="learning rate schedule: " + " | ".join(SCHEDULES), affects="result", choices=SCHEDULES
    )
    warmup_steps: int = option(
        0, help="linear warm-up; not with schedule=plateau", affects="result", unit="optimiser steps"
    )
    plateau_patience: int = option(
        3,
        help="halve the learning rate after more than this many validations without a lower dev loss",
        affects="result",
        only=("schedule", "plateau"),
    )
    minimum_rate: float = option(
        0.0,
        help="training has converged, and ends, once the learning rate is lower than this; 0: never",
        affects="plan",
        only=("schedule", "plateau"),
        maximum=100,
    )

    def check(self) -> None:
        """Raise UserError unless there are two betas, or for warm-up that the schedule would ignore."""
        if len(self.betas) != 2:
            raise UserError(f"optimizer.betas={self.betas}: expected two numbers")
        if self.schedule == "plateau" and self.warmup_steps:
            raise UserError(
                f"optimizer.warmup_steps={self.warmup_steps}: expected 0 with optimizer.schedule=plateau"
            )


@dataclass
class SelectionConfig:
    """Criterion that selects the best checkpoint."""

    metric: str = option(
        "greedy",
        help="error rate on the development data: greedy (of labels, by greedy search) | wer (of words, by "
        "decoder=beam)",
        affects="result",
        choices=("greedy", "wer"),
    )
    utterances: int = option(
        200,
        help="number to decode, drawn at random from the development data, evenly over speakers",
        affects="result",
        only=("metric", "wer"),
        unit="utterances",
        minimum=1,
    )
    lm: str = option(
        "",
        help="n-gram language model of the search, ARPA or KenLM binary; empty: none",
        affects="result",
        only=("metric", "wer"),
    )

    @property
    def beam(self) -> Beam:
        """The search, with the usual size and weights: better ones are tuned on a trained model."""
        return Beam(lm=self.lm)

    def digests(self) -> dict[str, str]:
        """Return the digests of the files that the search reads, by option; none for metric=greedy."""
        digests = self.beam.digests() if self.metric == "wer" else {}
        return {f"select.{name}": hashed for name, hashed in digests.items()}


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
        "full",
        help="attention mechanism, e.g. i-clustered-100:topk=32, one for each layer, e.g. "
        "full*3,i-clustered-25*9, or one of your own, ./nystrom.py:Nystrom-32",
        affects="result",
        suggested=MECHANISMS,
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
    dry_run: bool = option(
        False, help="print what would be trained and how long it takes, and stop", affects="place"
    )
    init_from: str = option(
        "",
        help="run folder, checkpoint, exported or published model that gives the initial weights, and with "
        "them tokenizer, features and model sizes",
        affects="result",
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
        """Raise UserError for options of the model that contradict recipe, loss or augmentation."""
        if task_options(self.recipe.name):
            without = f"with recipe={self.recipe.name}"
            refuse(self.model, ("encoder", "freeze_encoder_steps"), without)
            refuse(self.model.lora, ("rank",), without)
            # Runs older than the option have another floor, also without effect.
            features = replace(self.features, floor=FeatureConfig().floor)
            refuse(replace(self, features=features), ("features", "augment", "loss", "select"), without)
        self._check_growth()
        blocks = self.loss.intermediate
        if blocks and max(blocks) >= self.model.layers:
            raise UserError(
                f"loss.intermediate={blocks}: expected blocks before the last, 1 … {self.model.layers - 1}"
            )
        if self.model.lora.rank and not (self.model.encoder or self.init_from):
            raise UserError(
                f"model.lora.rank={self.model.lora.rank}: expected trained weights, by model.encoder= or "
                "init_from=, found random ones"
            )
        if self.model.self_conditioned and not blocks:
            raise UserError("model.self_conditioned=true: expected loss.intermediate=[…], found []")
        masks = self.augment.frequency_masks or self.augment.time_mask_every
        if self.loss.consistency and not masks:
            raise UserError(
                f"loss.consistency={self.loss.consistency:g}: the two views differ by SpecAugment, which is "
                "off: set augment.frequency_masks and augment.time_mask_every"
            )

    def _check_growth(self) -> None:
        """Raise UserError if joined utterances can't reach their full length."""
        growth, epochs = self.data.concatenate_epochs, self.trainer.max_epochs
        if epochs and growth >= epochs and not (self.trainer.max_steps or self.trainer.budget):
            raise UserError(
                f"data.concatenate_epochs={growth}: expected less than trainer.max_epochs={epochs}, so that "
                f"data.concatenate_s={self.data.concatenate_s:g} is reached"
            )


@dataclass
class EvaluateOptions:
    """What to evaluate on."""

    split: str = option("test", help="dev | test", affects="result", choices=("dev", "test"))
    items: int = option(
        0,
        help="sequences or other items to evaluate on; 0: the whole split, or 2,000 generated items",
        affects="result",
        maximum=100_000_000,
    )
    attention: str = option(
        "",
        help="mechanism to exchange for the trained one; empty: the trained one",
        affects="result",
        suggested=MECHANISMS,
    )
    device: str = option("auto", help="auto | cpu | cuda | cuda:<number>", affects="cost")
    output: str = option(
        "", help="JSON file for the results, from which asr report makes a page; empty: none", affects="place"
    )


def recipe_task(name: str) -> ModuleType | None:
    """Return the module `asr_recipes.<name>.task` of a recipe with its own task; None if it has none.

    The module defines `build(options: TrainConfig, resuming: bool)`, which returns a `LabelTask` and its
    `NumberedBatches`. The recipe's own options are `TaskOptions` in `asr_recipes.<name>.options`.
    """
    return recipe_module(name, "task")


def task_options(name: str) -> type[RecipeConfig] | None:
    """Return the options of a recipe with its own task, or None, without loading PyTorch."""
    return getattr(recipe_module(name, "options"), "TaskOptions", None)


def workload_options(name: str) -> type[RecipeConfig] | None:
    """Return the `WorkloadOptions` of a recipe that measures trained models on its own task, or None."""
    return getattr(recipe_module(name, "options"), "WorkloadOptions", None)


def recipe_module(name: str, part: str) -> ModuleType | None:
    """Return the module `asr_recipes.<name>.<part>`, or None if it doesn't exist."""
    package = f"asr_recipes.{name}"
    if not name.isidentifier() or not importlib.util.find_spec(package):
        return None
    module = f"{package}.{part}"
    return importlib.import_module(module) if importlib.util.find_spec(module) else None


def train_schema(recipe: str = "") -> TrainConfig:
    """Return the defaults of all options, including those of the recipe's own task."""
    options = task_options(recipe)
    return TrainConfig(recipe=options()) if options else TrainConfig()
