"""Random input as a workload: shapes, seed and tensors."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from asr.losses.options import LossConfig
from asr.model.options import ModelConfig

# As in the recipe wsj.
MEL_BINS = 40
VOCABULARY = 42
FRAMES_PER_LABEL = 12  # after subsampling


@dataclass(frozen=True)
class Problem:
    """An operation's sizes, and its normally distributed random input.

    Attributes:
        heads, head_dim: H and D of mechanisms and layers; the model size of a layer is their product.
        precision: type of input and parameters, `fp32`, `bf16` or `fp16`; in models, of the matrix products.
        device: device of input and parameters.
        seed: seed of input and parameters.
        unit: `mechanism` alone, transformer `layer` or whole `model`.
        feedforward: hidden size of a layer's feed-forward part; 0: only self-attention, with projections.
        batch, length: number of sequences, B, and their length, N (for models: T frames).
        preset, loss: architecture and loss of a model.
    """

    heads: int
    head_dim: int
    precision: str
    device: str
    seed: int
    unit: str = "mechanism"
    feedforward: int = 0
    batch: int = field(kw_only=True)
    length: int = field(kw_only=True)
    # Mutable, so not part of the hash; but part of equality, by which problems share their input.
    preset: ModelConfig = field(default_factory=ModelConfig, hash=False)
    loss: LossConfig = field(default_factory=LossConfig, hash=False)

    @property
    def dtype(self) -> torch.dtype:
        """Type for PyTorch."""
        return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[self.precision]

    @property
    def labels(self) -> int:
        """Number of labels of an utterance, U."""
        return max(1, self.length // self.preset.subsampling // FRAMES_PER_LABEL)

    def tensors(self) -> tuple[list[Tensor], Tensor]:
        """Return the inputs, and the tensor from which the backward pass starts.

        For a mechanism these are q, k, v and the gradient of the output, all [B, H, N, D]; for a layer x and
        gradient, [B, N, M]; for a model features [B, T, F] and labels [B, U].
        """
        generator = torch.Generator().manual_seed(self.seed)
        if self.unit == "model":
            features = torch.randn(self.batch, self.length, MEL_BINS, generator=generator)
            labels = markov_labels(self.batch, self.labels, generator)
            return [features.to(self.device)], labels.to(self.device)
        if self.unit == "layer":
            shape: tuple[int, ...] = (2, self.batch, self.length, self.heads * self.head_dim)
        else:
            shape = (4, self.batch, self.heads, self.length, self.head_dim)
        *inputs, grad = torch.randn(shape, generator=generator).to(self.device, self.dtype)
        return inputs, grad


def markov_labels(utterances: int, count: int, generator: torch.Generator) -> Tensor:
    """Return labels [utterances, count]; each follows the previous one with probability ∝ 1 / rank.

    Independent labels would have no n-gram structure for `loss=mmi`.
    """
    ranked = torch.rand(VOCABULARY, VOCABULARY - 1, generator=generator).argsort(dim=1) + 1
    chance = 1 / torch.arange(1, VOCABULARY).double()
    labels = torch.zeros(utterances, count + 1, dtype=torch.long)
    for u in range(count):
        rank = torch.multinomial(chance, utterances, replacement=True, generator=generator)
        labels[:, u + 1] = ranked[labels[:, u], rank]
    return labels[:, 1:]
