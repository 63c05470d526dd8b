"""Operations on random input: mechanisms alone, transformer layers, and models with their training steps."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from asr.attention import build_mechanism, build_self_attention
from asr.attention.clustered import ClusteredAttention
from asr.attention.products import keep_packed
from asr.experiment.options import GROUPING
from asr.experiment.peers import Attend, build_peer
from asr.experiment.random_input import MEL_BINS, VOCABULARY, Problem, markov_labels
from asr.experiment.variant import Variant
from asr.losses.loss import build_loss
from asr.measure import Seconds, now, time_of
from asr.model.blocks import Block
from asr.model.encoder import Encoder
from asr.model.head import Head
from asr.model.options import BlockConfig

TRAINING_UTTERANCES = 1000  # from which the denominator of loss=mmi is estimated
PARTS = ("forward", "loss", "backward", "optimiser")


def build_operation(name: str, problem: Problem) -> Attend:
    """Return the function of a problem's inputs that a name stands for.

    Args:
        name: a variant (`i-clustered-100`; for models also `full frames=1,2*8 precision=bf16`), perhaps with
            a backend (`i-clustered-100@reference`); or `peer:` and a name for `build_peer`. A trailing number
            of threads (`@2`) is ignored.
        problem: shapes.

    Raises:
        UserError: an unknown name or backend, or a library that isn't installed.
    """
    problem = _as_variant(problem, name)
    name, _ = split_threads(Variant.read(name).attention)
    if name.startswith("peer:"):
        return build_peer(
            name.removeprefix("peer:"), length=problem.length, batch=problem.batch, device=problem.device
        )
    mechanism_name, _, backend = name.partition("@")
    if problem.unit == "model":
        return MeasuredModel(mechanism_name, backend or "auto", problem)
    if problem.unit == "layer":
        return Layer(mechanism_name, backend or "auto", problem)
    mechanism = build_mechanism(mechanism_name, backend=backend or "auto").eval().to(problem.device)
    if not mechanism.needs_shared_keys:
        return mechanism
    root = problem.head_dim**0.5
    # Keys are computed here from the queries, so that the time includes their normalisation.
    return lambda q, k, v: mechanism(q, torch.nn.functional.normalize(q, dim=-1) * root, v)


def _as_variant(problem: Problem, name: str) -> Problem:
    """Return a model's problem with the frames, layers and precision of a variant."""
    variant, preset = Variant.read(name), problem.preset
    preset = replace(preset, frames=variant.frames or preset.frames, layers=variant.layers or preset.layers)
    return replace(problem, preset=preset, precision=variant.precision or problem.precision)


def split_threads(name: str) -> tuple[str, int | None]:
    """Split a name into name and trailing number of threads; None without one.

    Example:
        >>> split_threads("clustered-100@2"), split_threads("clustered-100@native")
        (('clustered-100', 2), ('clustered-100@native', None))
    """
    head, _, tail = name.rpartition("@")
    return (head, int(tail)) if head and tail.isdecimal() else (name, None)


class Layer(nn.Module):
    """A transformer layer, or its self-attention alone; all positions of its input are valid.

    Args:
        name: mechanism.
        backend: `auto`, `reference` or `native`.
        problem: sizes and seed; without dropout.
    """

    def __init__(self, name: str, backend: str, problem: Problem) -> None:
        super().__init__()
        heads, head_dim, hidden = problem.heads, problem.head_dim, problem.feedforward
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(problem.seed)
            if hidden:
                config = BlockConfig(heads=heads, head_dim=head_dim, feedforward=hidden)
                self.layer: nn.Module = Block(config, name, backend)
            else:
                self.layer = build_self_attention(name, heads * head_dim, heads, head_dim, backend=backend)
        keep_packed(self.eval().to(problem.device, problem.dtype))

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, N, M] to [B, N, M]."""
        return self.layer(x, torch.full(x.shape[:1], x.shape[1], device=x.device))


@dataclass(frozen=True)
class StepSeconds(Seconds):
    """Time of a training step, and of each of its `PARTS`."""

    parts: tuple[Seconds, ...] = ()


class MeasuredModel(nn.Module):
    """Features to log-probabilities of the outputs, with loss and optimiser; all positions are valid.

    The optimiser is RAdam (Vyas et al. 2020, section 4): parameters cost the same with all mechanisms.

    Args:
        name: mechanism in every layer.
        backend: `auto`, `reference` or `native`.
        problem: architecture, loss, sizes and seed.
    """

    def __init__(self, name: str, backend: str, problem: Problem) -> None:
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
        keep_packed(self.to(problem.device))
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


def run_once(attend: Attend, inputs: Sequence[Tensor], target: Tensor, passes: str) -> Seconds:
    """Run a pass and return its time.

    Args:
        attend: result of `build_operation`.
        inputs, target: results of `Problem.tensors`.
        passes: `forward`; `grouping`: only the groups of clustered attention; or `forward+backward`, which
            computes the gradients of the inputs and of a layer's parameters, or trains a model.
    """
    device = str(target.device)
    if passes == GROUPING:
        assert isinstance(attend, ClusteredAttention)
        return time_of(partial(attend.clusters, inputs[0], k=inputs[1]), device)
    if passes == "forward":
        with torch.no_grad():
            return time_of(partial(attend, *inputs), device)
    if isinstance(attend, MeasuredModel):
        (features,) = inputs
        return attend.step(features, target)
    parameters = list(attend.parameters()) if isinstance(attend, nn.Module) else []

    def both() -> None:
        leaves = [x.detach().requires_grad_() for x in inputs]
        torch.autograd.grad(attend(*leaves), [*leaves, *parameters], target, allow_unused=True)

    return time_of(both, device)
