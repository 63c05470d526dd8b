"""The acoustic model on a stream: each layer keeps only the inputs that later outputs need.

An output of a layer depends on a bounded range of its inputs: a convolution's kernel, the window of local
attention, a run of frames. A layer is run on new inputs and the earlier ones in this range, and returns the
outputs whose inputs are complete. Memory and work per block don't grow with the stream. The result equals
that of the whole recording in one pass, to the precision of float32.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.attention.layer import FrameRate, SelfAttentionLayer
from asr.attention.local import LocalAttention
from asr.attention.multihead import SelfAttention
from asr.attention.none import NoAttention
from asr.attention.table import look_ahead
from asr.config.schedule import Merging
from asr.model.acoustic_model import AcousticModel, evaluating
from asr.model.blocks import Block, Branches, ConvolutionModule, FeedForward, Residual
from asr.model.encoder import ConvolutionalPositions, Encoder, SinusoidalPositions
from asr.model.features import FilterBanks, Normalisation
from asr.model.frames import pool, restored

MOST_PHASES = 2**16  # frames whose look-ahead is computed; only several large, odd chunks would need more

Apply = Callable[[Tensor], Tensor]


def why_not_streamed(model: AcousticModel) -> list[str]:
    """Return the reasons why a model needs an unbounded part of a recording; empty: it can be streamed.

    Each reason says which options to train with instead.
    """
    encoder, normalisation = model.encoder, model.normalisation
    if not isinstance(encoder, Encoder) or not isinstance(normalisation, Normalisation):
        return ["a pretrained encoder looks ahead over the whole utterance: train one of this project"]
    reasons = []
    if not normalisation.framewise:
        reasons.append(
            f"features.normalise={normalisation.kind} takes its statistics from later audio: train with "
            "features.normalise=corpus or none"
        )
    if isinstance(encoder.positions, SinusoidalPositions):
        reasons.append(
            "model.positions=sinusoidal counts from the start of the recording, beyond the positions seen in "
            "training: train with model.positions=rotary, convolution or none"
        )
    if merging := [x for x in encoder.factors if isinstance(x, Merging)]:
        reasons.append(
            f"frames={merging[0]} compares frames of the whole utterance ahead: train with frames=2"
        )
    unbounded = [layer.name for layer in model.attention_layers() if not _window(layer)]
    for name in dict.fromkeys(unbounded):
        ahead = look_ahead(name, layers=1)
        bounded = "back over all that came before" if ahead is not None else "ahead over the whole utterance"
        reasons.append(
            f"attention {name} looks {bounded}: train with attention=local-64:right=4 or "
            "local-64:right=0,chunk=16"
        )
    return reasons


class StreamingModel:
    """An acoustic model that maps audio to log-probabilities as it arrives.

    Args:
        model: model for which `why_not_streamed` is empty; in evaluation mode while it is used.

    Example:
        >>> from asr.config import from_dict
        >>> from asr.model.acoustic_model import AcousticModelConfig
        >>> config = from_dict(AcousticModelConfig, {
        ...     "attention": "local-8:right=2", "features": {"normalise": "none"},
        ...     "model": {"layers": 2, "heads": 2, "head_dim": 8, "positions": "rotary"}}, "")
        >>> stream = StreamingModel(AcousticModel(config, 5))
        >>> [len(stream.push(torch.zeros(1600))) for _ in range(4)]
        [4, 10, 10, 10]
        >>> len(stream.push(torch.zeros(0), last=True))
        4
        >>> stream.look_ahead_samples  # 2 layers of 2 frames, and a window 240 samples longer than a frame
        880
    """

    def __init__(self, model: AcousticModel) -> None:
        self.model = model
        self._layers = _Chain(_layers_of(model))

    @property
    def look_ahead_samples(self) -> int:
        """Samples after the end of an encoder frame that its log-probabilities need, at most."""
        hop = self.model.front_end.shift_samples * self.model.config.model.subsampling
        frames = range(self._layers.period)[:MOST_PHASES]
        return max(self._layers.last(frame) + 1 - (frame + 1) * hop for frame in frames)

    @torch.inference_mode()
    def push(self, samples_S: Tensor, last: bool = False) -> Tensor:
        """Return the log-probabilities of the frames that new samples complete.

        Args:
            samples_S: [samples], any number, at the model's rate, in −1 … 1.
            last: whether these samples end the recording.

        Returns:
            [frames, outputs] float32 on the CPU.
        """
        with evaluating(self.model), self.model.rounding():
            outputs = self._layers.push(samples_S.to(self.model.device).unsqueeze(0), last)
        if outputs is None:
            return torch.empty(0, self.model.head.projection.out_features)
        return outputs[0].cpu()


class _Layer:
    """A layer with bounded context, which keeps the inputs that its next outputs need.

    Output i depends on the inputs s·c − left … s·(c + C − 1) + right, where c is the start of its chunk. A
    sequence of N inputs has ⌈N / s⌉ outputs.

    Args:
        apply: maps [1, N, …] to [1, outputs, …], as if the input were a whole recording.
        left, right: numbers of inputs needed before and after a chunk.
        stride: s.
        chunk: C.
        phase: number of outputs after which the pattern of chunks inside the layer repeats; None: C.
        edges: whether there are outputs at the end, whose inputs would extend beyond it.
    """

    def __init__(
        self,
        apply: Apply,
        left: int = 0,
        right: int = 0,
        *,
        stride: int = 1,
        chunk: int = 1,
        phase: int | None = None,
        edges: bool = True,
    ) -> None:
        self._apply = apply
        self._left, self._right, self.stride, self._chunk = left, right, stride, chunk
        self._edges = edges
        self.period = phase or chunk  # outputs after which `last` repeats
        self._kept: Tensor | None = None
        self._first = 0  # number of the first input that is kept
        self._done = 0  # outputs returned so far

    def last(self, output: int) -> int:
        """Return the last input that an output needs."""
        chunk = output - output % self._chunk
        return self.stride * (chunk + self._chunk - 1) + self._right

    def push(self, x: Tensor | None, ended: bool) -> Tensor | None:
        """Return the outputs that are complete with new inputs [1, n, …]; None: none."""
        if x is not None:
            self._kept = x if self._kept is None else torch.cat((self._kept, x), 1)
        if self._kept is None:
            return None
        total = self._first + self._kept.shape[1]
        step = self.stride * self._chunk
        ready = max(0, (total - self._right + self.stride - 1) // step * self._chunk)
        if ended and self._edges:
            ready = -(-total // self.stride)
        if ready <= self._done:
            return None
        begin, end = self._begin(self._done), total if ended else self.last(ready - 1) + 1
        y = self._apply(self._kept[:, begin - self._first : end - self._first])
        y = y[:, self._done - begin // self.stride : ready - begin // self.stride]
        kept = min(self._begin(ready), total)
        self._kept, self._first, self._done = self._kept[:, kept - self._first :].clone(), kept, ready
        return y

    def _begin(self, output: int) -> int:
        """Return the first input needed to run the layer for an output and later ones."""
        first = max(0, self.stride * (output - output % self._chunk) - self._left)
        return first - first % (self.stride * self.period)


class _Chain:
    """Layers in sequence."""

    def __init__(self, layers: "Sequence[_Layer | _Runs]") -> None:
        self._layers = layers
        self.period = 1
        for layer in layers:
            self.period = math.lcm(layer.stride * layer.period, self.period) // layer.stride

    def last(self, output: int) -> int:
        """Return the last input that an output needs."""
        for layer in reversed(self._layers):
            output = layer.last(output)
        return output

    def push(self, x: Tensor | None, ended: bool) -> Tensor | None:
        """Return the outputs that are complete with new inputs [1, n, …]; None: none."""
        for layer in self._layers:
            x = layer.push(x, ended)
            if x is None and not ended:
                return None
        return x


class _Runs:
    """Blocks that see the means of runs of frames; see `asr.model.frames`.

    Args:
        blocks: blocks.
        factor: ρ, number of frames in a run.
    """

    stride = 1

    def __init__(self, blocks: Sequence[nn.Module], factor: int) -> None:
        self._factor = factor
        self._pool = _Layer(self._means, 0, factor - 1, stride=factor)
        self._chain = _Chain([layer for block in blocks for layer in _block_layers(block, self._rate)])
        self.period = factor * self._chain.period
        self._x: Tensor | None = None  # frames, and the means of their runs, waiting for the blocks' output
        self._starts: Tensor | None = None
        self._rest = 0  # number of frames in a shorter last run, once the recording has ended

    def last(self, output: int) -> int:
        """See `_Layer`."""
        return self._pool.last(self._chain.last(output // self._factor))

    def push(self, x: Tensor | None, ended: bool) -> Tensor | None:
        """See `_Layer`."""
        self._x = _joined(self._x, x)
        if ended and self._x is not None:
            self._rest = self._x.shape[1] % self._factor  # earlier runs are complete
        start = self._pool.push(x, ended)
        self._starts = _joined(self._starts, start)
        z = self._chain.push(start, ended)
        if z is None or self._x is None or self._starts is None:
            return None
        runs = z.shape[1]
        y = restored(self._x[:, : runs * self._factor], self._starts[:, :runs], z, self._factor)
        self._x, self._starts = self._x[:, runs * self._factor :], self._starts[:, runs:]
        return y

    def _means(self, x: Tensor) -> Tensor:
        return pool(x, _length(x), self._factor)[0]

    def _rate(self, x: Tensor) -> FrameRate:
        """Return the rate of runs [1, N, M]; the last of them are the latest."""
        if not self._rest:
            return FrameRate(self._factor, None)
        log_sizes_BN = x.new_zeros(1, x.shape[1], dtype=torch.float32)
        log_sizes_BN[:, -1] = math.log(self._rest / self._factor)
        return FrameRate(self._factor, log_sizes_BN)


def _joined(kept: Tensor | None, x: Tensor | None) -> Tensor | None:
    if kept is None or x is None:
        return x if kept is None else kept
    return torch.cat((kept, x), 1)


def _length(x: Tensor) -> Tensor:
    """Return the length of a sequence [1, N, …] without padding, [1]."""
    return torch.tensor([x.shape[1]], device=x.device)


def _layers_of(model: AcousticModel) -> list[_Layer | _Runs]:
    """Return the layers of a model from samples to log-probabilities."""
    banks, encoder = model.front_end, model.encoder
    assert isinstance(banks, FilterBanks)
    assert isinstance(encoder, Encoder)
    frames = _Layer(
        lambda samples: model.input(samples, _length(samples))[0],
        right=banks.window_samples - 1,
        stride=banks.shift_samples,
        edges=False,
    )
    layers: list[_Layer | _Runs] = [frames]
    for convolution in encoder.subsampling.convolutions:
        reach = _reach(convolution)
        layers.append(_Layer(partial(_subsampled, convolution), reach, reach, stride=2))
    layers.append(_Layer(encoder.subsampling.projection))
    if isinstance(encoder.positions, ConvolutionalPositions):
        reach = _reach(encoder.positions.convolution)
        layers.append(_Layer(partial(_whole, encoder.positions), reach, reach))
    conditioned = model.config.intermediate if model.condition is not None else []
    # If the states of blocks are mapped to labels, each block has separate runs.
    keys = [(factor, number if conditioned else 0) for number, factor in enumerate(encoder.factors, start=1)]
    done = 0
    for (factor, _), group in groupby(keys):
        assert isinstance(factor, int)
        blocks = list(encoder.blocks[done : done + len(list(group))])
        done += len(blocks)
        if factor == 1:
            layers += [layer for block in blocks for layer in _block_layers(block)]
        else:
            layers.append(_Runs(blocks, factor))
        if done in conditioned and done < len(keys):
            layers.append(_Layer(partial(_conditioned, model)))
    return [*layers, _Layer(lambda states: model.head(encoder.norm(states)))]


def _block_layers(block: nn.Module, rate: Callable[[Tensor], FrameRate] | None = None) -> list[_Layer]:
    """Return the sublayers of a block, which sees runs of frames at `rate`; None: the encoder's frames."""

    def run(sublayer: Residual, x: Tensor) -> Tensor:
        return sublayer(x, _length(x), rate(x) if rate else None)

    assert isinstance(block, Block)
    window = _window(next(x for x in block.modules() if isinstance(x, SelfAttentionLayer)))
    assert window is not None
    left, right, chunk = window
    layers = []
    for residual in block.sublayers:
        assert isinstance(residual, Residual)
        apply = partial(run, residual)
        match residual.sublayer:
            case FeedForward():
                layers.append(_Layer(apply))
            case ConvolutionModule(depthwise=depthwise):
                layers.append(_Layer(apply, _reach(depthwise.convolution), _reach(depthwise.convolution)))
            case Branches(local=local, depthwise=depthwise):
                # The merging convolution reads frames of up to two other chunks.
                kernel_reach, reach = _reach(local.depthwise.convolution), _reach(depthwise.convolution)
                before, after = (reach + max(kernel_reach, x + chunk - 1) for x in (left, right))
                layers.append(_Layer(apply, before, after, phase=chunk))
            case _:
                layers.append(_Layer(apply, left, right, chunk=chunk))
    return [*layers, _Layer(block.norm)]


def _window(layer: SelfAttentionLayer) -> tuple[int, int, int] | None:
    """Return W, R and C of local attention; None if the layer sees more than a window."""
    match layer:
        case NoAttention():
            return 0, 0, 1
        case SelfAttention(mechanism=LocalAttention(first=0, window=left, right=right, chunk=chunk)):
            return left, right, chunk
    return None


def _reach(convolution: nn.Module) -> int:
    """Return how many frames a convolution sees on each side."""
    assert isinstance(convolution, nn.Conv1d)
    return convolution.kernel_size[0] // 2


def _whole(module: nn.Module, x: Tensor) -> Tensor:
    """Apply a module to a sequence [1, N, M] without padding."""
    y: Tensor = module(x, _length(x))
    return y


def _subsampled(convolution: nn.Module, x: Tensor) -> Tensor:
    """Apply a convolution of `Subsampling` to [1, N, F]."""
    return F.gelu(convolution(x.transpose(1, 2))).transpose(1, 2)


def _conditioned(model: AcousticModel, states: Tensor) -> Tensor:
    """Add the posteriors of a self-conditioned model to the states that they are computed from."""
    assert model.condition is not None
    posteriors = model.head(model.encoder.norm(states)).softmax(dim=-1)
    return states + model.condition(posteriors.to(states.dtype))
