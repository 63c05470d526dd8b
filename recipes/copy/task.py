"""The masked-copy task: how many clusters or hash rounds a sequence length needs.

*Fast Transformers with Clustered Attention*, section C.2, figures 5 and 6. A sequence is 0w0w, where w has L
symbols. Some symbols in each half are masked, but none in both halves, so every masked symbol can be copied
from the other half.
"""

from dataclasses import dataclass

import torch
from asr_recipes.copy.options import TaskOptions
from torch import Tensor, nn
from torch.utils.data import Dataset

from asr.attention.products import Linear
from asr.data.sampler import BatchPlan
from asr.data.stream import NumberedBatches, StreamBatch
from asr.errors import UserError
from asr.model.attention_model import AttentionModel, initialise
from asr.model.encoder import Encoder
from asr.model.options import ModelConfig
from asr.seeds import derived_seed
from asr.training.labelling import LabelTask
from asr.training.options import TrainConfig
from asr.training.plan import training_plan

SYMBOLS = 10  # w consists of 1 … 10
SEPARATOR = 0
MASK = SYMBOLS + 1
MASKED_SHARE = 0.2  # fraction of symbols that are masked
BATCH = 32
VALIDATE_EVERY = 250  # batches
DEV_SEQUENCES = 320
SEQUENCES = 2000  # for evaluation
HELD_OUT_SEEDS = {"dev": 2**20, "test": 2**20 + 1}


@dataclass(frozen=True)
class CopyBatch(StreamBatch):
    """A batch of sequences with masked symbols.

    Attributes:
        inputs: [B, N] int64 with MASK at masked positions, N = 2 (L + 1).
        targets: [B, N] int64, the sequences without masks.
    """

    inputs: Tensor
    targets: Tensor


def make_sequences(count: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw random sequences.

    Args:
        count: number of sequences B.
        length: number of symbols in each half L.
        generator: random number generator.

    Returns:
        Inputs and targets, [B, 2 (L + 1)] each. A fifth of the symbols are masked, half of them in each
        half of the sequence, and no symbol in both halves.

    Example:
        >>> inputs, targets = make_sequences(1, 5, torch.Generator().manual_seed(0))
        >>> inputs.shape, int((inputs == MASK).sum())
        (torch.Size([1, 12]), 2)
    """
    words = torch.randint(1, SYMBOLS + 1, (count, length), generator=generator)
    separator = torch.full((count, 1), SEPARATOR)
    targets = torch.cat([separator, words, separator, words], dim=1)
    order = torch.rand(count, length, generator=generator).argsort(dim=1)
    masked_in_half = max(1, round(MASKED_SHARE * length))
    masked = torch.zeros(count, 2 * length + 2, dtype=torch.bool)
    masked.scatter_(1, order[:, :masked_in_half] + 1, True)
    # Not the same symbols as in the first half, so that each can be copied from the other half.
    masked.scatter_(1, order[:, masked_in_half : 2 * masked_in_half] + length + 2, True)
    return targets.masked_fill(masked, MASK), targets


class Sequences(Dataset[CopyBatch]):
    """Batches of sequences, each determined by (seed, position)."""

    def __init__(self, length: int, seed: int) -> None:
        self.length = length
        self.seed = seed

    def __getitem__(self, plan: BatchPlan) -> CopyBatch:
        generator = torch.Generator().manual_seed(derived_seed(self.seed, plan.position))
        ids = [f"sequence {i} of batch {plan.position}" for i in range(BATCH)]
        return CopyBatch(ids, plan, *make_sequences(BATCH, self.length, generator))


class CopyData(NumberedBatches):
    """Random training sequences and a fixed development set.

    Args:
        length: number of symbols in each half L.
        seed: random seed for the training sequences.
    """

    def __init__(self, length: int, seed: int) -> None:
        self.length = length
        self.seed = seed
        super().__init__(Sequences(length, seed), self.held_out("dev", DEV_SEQUENCES))

    def held_out(self, split: str, items: int) -> list[CopyBatch]:
        """Return the batches of dev or test; the last batch is complete, too."""
        sequences = Sequences(self.length, HELD_OUT_SEEDS[split])
        return [sequences[BatchPlan((), 0, i)] for i in range(-(-(items or SEQUENCES) // BATCH))]

    def epoch_batches(self, epoch: int) -> int:
        """Return the validation interval, because there are no epochs."""
        return VALIDATE_EVERY

    def worst_batch(self) -> CopyBatch:
        """Return a batch; all have the same size."""
        return Sequences(self.length, self.seed)[BatchPlan(())]

    def advice(self, batch: CopyBatch) -> str:
        """Return the size of a batch and the option to lower if it doesn't fit in memory."""
        return f"{BATCH} sequences of {batch.inputs.shape[1]} positions; lower recipe.length"

    def describe(self) -> str:
        """Return the task and the length of its sequences."""
        return f"masked copy of {self.length} symbols"

    def digest(self, split: str) -> str:
        """Return an empty text, because length and seed determine the sequences."""
        return ""


class CopyModel(AttentionModel):
    """The encoder of the acoustic model on one-hot symbols, with a linear classifier.

    Args:
        config: sizes of the encoder; subsampling must be 1.
        attention: attention mechanism.
        backend: `auto`, `reference` or `native`.
    """

    def __init__(self, config: ModelConfig, attention: str, backend: str) -> None:
        super().__init__()
        if config.subsampling != 1:
            raise UserError(f"model.subsampling={config.subsampling}: expected 1 for masked copy")
        self.config = config
        self.encoder = Encoder(config, MASK + 1, attention, backend)
        self.classifier = Linear(config.heads * config.head_dim, SYMBOLS + 1)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map symbols [B, N] to logits [B, N, 11]."""
        lengths = torch.full((len(inputs),), inputs.shape[1], device=inputs.device)
        states, _ = self.encoder(nn.functional.one_hot(inputs, MASK + 1).float(), lengths)
        return self.classifier(states)


class CopyTask(LabelTask):
    """Trains with cross-entropy at masked positions, validated by the error rate at these positions."""

    def scores(self, batch: CopyBatch) -> tuple[Tensor, Tensor, Tensor]:
        """Return the cross-entropy, the wrong symbols and the masked positions of each sequence, [B] each."""
        masked = batch.inputs == MASK
        logits = self.model(batch.inputs)
        losses = nn.functional.cross_entropy(logits.transpose(1, 2).float(), batch.targets, reduction="none")
        wrong = (logits.argmax(dim=-1) != batch.targets) & masked
        return losses.masked_fill(~masked, 0.0).sum(dim=1), wrong.sum(dim=1), masked.sum(dim=1)

    def frames(self, batch: CopyBatch) -> int:
        """Return the number of positions in a batch."""
        return batch.inputs.numel()


def build(options: TrainConfig, resuming: bool) -> tuple[CopyTask, CopyData]:
    """Return the task and its data.

    Raises:
        UserError: recipe.length is below 1, or the weights of init_from don't fit the model.
    """
    assert isinstance(options.recipe, TaskOptions)
    data = CopyData(options.recipe.length, options.seed)
    model = CopyModel(options.model, options.attention, options.backend)
    if options.init_from and not resuming:
        initialise(model, options.init_from, options.backend)
    return CopyTask(model, training_plan(options, data)), data
