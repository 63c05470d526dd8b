"""Causal language modelling: cross-entropy of the next token, validated in bits per character or token.

*Agglomerative Attention*, Spellings 2019, tables 1 and 2.
"""

import math
from pathlib import Path

import torch
from asr_recipes.language.data import LanguageData, SegmentBatch
from asr_recipes.language.model import LanguageModel
from asr_recipes.language.options import TaskOptions
from asr_recipes.language.text import Text, load_text
from torch import Tensor, nn

from asr.config import refuse
from asr.errors import UserError
from asr.model.attention_model import initialise
from asr.training.labelling import LabelTask
from asr.training.options import TrainConfig
from asr.training.plan import TrainingPlan, training_plan

# Options of the speech encoder that don't apply to this model's single block.
UNUSED = (
    *("block", "subsampling", "positions", "position_scale", "layer_drop"),
    "self_conditioned",
)


class LanguageTask(LabelTask):
    """Trains with the cross-entropy of the next token.

    Args:
        model: language model.
        plan: length of training, optimiser and clipping.
        unit: what a token is, `character` or `token`.
    """

    def __init__(self, model: LanguageModel, plan: TrainingPlan, unit: str) -> None:
        super().__init__(model, plan)
        self.error_rate_name = f"dev_bits_per_{unit}"

    def scores(self, batch: SegmentBatch) -> tuple[Tensor, Tensor, Tensor]:
        """Return the cross-entropy in nats, the same in bits, and the tokens of each segment, [B] each."""
        logits = self.model(batch.inputs).float()
        losses = nn.functional.cross_entropy(logits.transpose(1, 2), batch.targets, reduction="none")
        tokens = torch.full_like(batch.targets[:, 0], batch.targets.shape[1])
        return losses.sum(dim=1), losses.detach().sum(dim=1) / math.log(2), tokens

    def frames(self, batch: SegmentBatch) -> int:
        """Return the number of tokens in a batch."""
        return batch.targets.numel()


def build(options: TrainConfig, resuming: bool) -> tuple[LanguageTask, LanguageData]:
    """Return the task and its data.

    Raises:
        UserError: see `load_text` and `build_model`, or weights of init_from don't fit the model.
    """
    recipe = options.recipe
    assert isinstance(recipe, TaskOptions)
    text = build_text(options)
    data = LanguageData(text, recipe.length, recipe.batch, recipe.dev_segments, options.seed)
    model = build_model(options, text.vocabulary)
    if options.init_from and not resuming:
        initialise(model, options.init_from, options.backend)
    return LanguageTask(model, training_plan(options, data), text.unit), data


def build_text(options: TrainConfig) -> Text:
    """Return the text of a run as tokens.

    Raises:
        UserError: see `load_text`, or another kind of tokens.
    """
    recipe, tokenizer = options.recipe, options.tokenizer
    assert isinstance(recipe, TaskOptions)
    if tokenizer.kind == "phone":
        raise UserError("tokenizer.kind=phone: expected character | sentencepiece with recipe=language")
    return load_text(Path(recipe.text), tokenizer.kind, tokenizer.pieces, recipe.length)


def build_model(options: TrainConfig, vocabulary: int) -> LanguageModel:
    """Return an untrained model.

    Raises:
        UserError: a mechanism that sees later positions, or options of the encoder without effect.
    """
    recipe = options.recipe
    assert isinstance(recipe, TaskOptions)
    refuse(options.model, UNUSED, "with recipe=language")
    return LanguageModel(
        options.model,
        vocabulary,
        recipe.length,
        recipe.encoding,
        recipe.kernel,
        options.attention,
        options.backend,
    )
