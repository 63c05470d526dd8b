"""Whole models: encoding, and training steps with their parts."""

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from asr.benchmark.problem import MEL_BINS, VOCABULARY, BenchProblem, markov_labels
from asr.losses.loss import build_loss
from asr.measure import Seconds, now
from asr.model.encoder import Encoder
from asr.model.head import Head

TRAINING_UTTERANCES = 1000  # to estimate the denominator of loss=mmi from
PARTS = ("forward", "loss", "backward", "optimiser")


@dataclass(frozen=True)
class StepSeconds(Seconds):
    """Time of a training step, and of each of its `PARTS`."""

    parts: tuple[Seconds, ...] = ()


class MeasuredModel(nn.Module):
    """Features to log-probabilities of the outputs, with loss and optimiser; all positions are valid.

    The optimiser is RAdam (Vyas et al. 2020, section 4): what parameters cost is the same for all mechanisms.

    Args:
        name: mechanism in every layer.
        backend: `auto`, `reference` or `native`.
        problem: architecture, loss, sizes and seed.
    """

    def __init__(self, name: str, backend: str, problem: BenchProblem) -> None:
        super().__init__()
        self.problem = problem
        preset, loss = problem.preset, problem.loss
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(problem.seed)
            self.encoder = Encoder(preset, MEL_BINS, name, backend)
            self.head = Head(preset.size, VOCABULARY, loss.topology)
        generator = torch.Generator().manual_seed(problem.seed)
        training = markov_labels(TRAINING_UTTERANCES, problem.labels, generator).tolist()
        self.loss = build_loss(loss, VOCABULARY, training)
        self.to(problem.device)
        parameters = [*self.encoder.parameters(), *self.head.parameters()]
        self.optimizer = torch.optim.RAdam(
            parameters, lr=1e-4, weight_decay=0.01, decoupled_weight_decay=True
        )

    def forward(self, features: Tensor) -> Tensor:
        """Encode without dropout: [B, T, F] to log-probabilities [B, T', O]."""
        self.eval()
        return self._outputs(features)[0]

    def step(self, features: Tensor, labels: Tensor) -> StepSeconds:
        """Train on a batch, [B, T, F] and [B, U], and return the time of the step."""
        device = str(features.device)
        self.train()
        label_lengths = torch.full(labels.shape[:1], labels.shape[1], device=device)
        marks = [now(device)]
        outputs, frames = self._outputs(features)
        marks.append(now(device))
        loss = self.loss(outputs.float(), frames, labels, label_lengths).sum() / label_lengths.sum()
        marks.append(now(device))
        loss.backward()
        marks.append(now(device))
        self.optimizer.step()
        self.optimizer.zero_grad()
        marks.append(now(device))
        whole = marks[-1] - marks[0]
        parts = tuple(after - before for before, after in itertools.pairwise(marks))
        return StepSeconds(whole.wall_s, whole.cpu_s, parts)

    def _outputs(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Map [B, T, F] to [B, T', O] and [B]."""
        lengths = torch.full(features.shape[:1], features.shape[1], device=features.device)
        dtype = self.problem.dtype
        with torch.autocast(features.device.type, dtype, enabled=dtype != torch.float32):
            states, frames = self.encoder(features, lengths)
            return self.head(states), frames
