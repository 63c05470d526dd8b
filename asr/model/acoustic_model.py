"""The acoustic model: audio to log-probabilities of labels."""

import itertools
import logging
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from asr.attention.products import Linear, use_faster_products
from asr.attention.table import code_digests
from asr.config import from_dict, to_dict, user_code
from asr.config.schedule import Factor, Merging, joined_factors, layer_factors
from asr.environment import Precision
from asr.errors import UserError
from asr.files import digest
from asr.model.attention_model import AttentionModel
from asr.model.augment import spec_augment, with_more_time_masks
from asr.model.encoder import Encoder
from asr.model.features import WINDOW_S, FilterBanks, Normalisation
from asr.model.head import Head
from asr.model.options import AugmentConfig, FeatureConfig, ModelConfig, without_lost
from asr.model.pretrained import (
    ConvolutionalFrontEnd,
    LatentProjection,
    PretrainedEncoder,
    pretrained_parts,
)
from asr.model.pretrained_conformer import ConformerEncoder
from asr.model.pretrained_folder import Pretrained, empty_model
from asr.model.pretrained_mel import ScaledProjection, StackedMel, SubsampledMel
from asr.model.pretrained_whisper import WhisperEncoder, WhisperMel, WhisperScaling

log = logging.getLogger(__name__)
AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass
class AcousticModelConfig:
    """Everything needed to build an acoustic model except the vocabulary size."""

    attention: str = "full"
    backend: str = "auto"
    features: FeatureConfig = field(default_factory=FeatureConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    topology: str = "ctc"  # label topology, see asr/losses/topology.py
    longest_s: float = 0.0  # longest training audio; 0: unknown
    intermediate: list[int] = field(default_factory=list)  # blocks whose states are mapped to labels, too
    pretrained: dict[str, Any] = field(default_factory=dict)  # see `read_pretrained`
    code: dict[str, Any] = field(default_factory=dict)  # see `code_digests`


class AcousticModel(AttentionModel):
    """Front end → normalisation → encoder → head.

    The front end computes filter banks; or convolutions of a pretrained model, whose normalisation includes a
    projection.

    A self-conditioned model adds W p to the input of a block, where p are the posteriors of the block before
    (Nozaki and Komatsu 2021).

    Args:
        config: features, encoder and attention mechanism.
        vocabulary: vocabulary size V, including blank (index 0).
        augment: augmentation in training mode; None: no augmentation.
        pretrained: weights of a pretrained encoder, perhaps with a head in the vocabulary's order; None:
            random weights.

    Attributes:
        encoder_frozen: whether only the head gets gradients, not normalisation and encoder.
        precision: precision of matrix products outside training; the training loop sets its own.
    """

    front_end: FilterBanks | ConvolutionalFrontEnd | SubsampledMel | StackedMel | WhisperMel
    normalisation: Normalisation | LatentProjection | ScaledProjection | WhisperScaling
    encoder: Encoder | PretrainedEncoder | ConformerEncoder | WhisperEncoder

    def __init__(
        self,
        config: AcousticModelConfig,
        vocabulary: int,
        augment: AugmentConfig | None = None,
        pretrained: Pretrained | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.augment = augment or AugmentConfig()
        self.encoder_frozen = False
        self.precision = Precision()
        features, model, attention = config.features, config.model, (config.attention, config.backend)
        if config.pretrained:
            encoder = pretrained.encoder if pretrained else empty_model(config.pretrained, model)
            parts = pretrained_parts(encoder, config.pretrained, *attention)
            for part in parts:
                use_faster_products(part)
            self.front_end, self.normalisation, self.encoder = parts
            self.encoder.factors = self._factors(model.frames)
            if (
                parts[1].masked_frame is not None
            ):  # distributed training needs a gradient for every trained parameter
                parts[1].masked_frame.requires_grad_(self.augment.time_mask_every > 0)
        else:
            self.front_end = FilterBanks(features)
            window_frames = max(1, round(1000 * WINDOW_S / features.frame_shift_ms))
            self.normalisation = Normalisation(features.normalise, features.mel_bins, window_frames)
            self.encoder = Encoder(model, features.mel_bins, *attention)
        try:
            self._drawn = [self._factors(frames) for frames in self.augment.frames]
        except UserError as error:
            raise UserError(f"augment.{error}") from None
        if line := user_code.changed(config.code):
            log.warning("attention %s: %s", config.attention, line)
        config.code = code_digests(config.attention)
        self.head = Head(config.model.size, vocabulary, config.topology)
        if pretrained and pretrained.weight is not None and pretrained.bias is not None:
            self.head.projection.weight.data.copy_(pretrained.weight)
            self.head.projection.bias.data.copy_(pretrained.bias)
        outputs, conditioned = self.head.projection.out_features, config.model.self_conditioned
        self.condition = Linear(outputs, config.model.size) if conditioned else None

    def forward(self, audio: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Compute log-probabilities.

        Args:
            audio: [B, samples] in −1 … 1, right-padded.
            lengths: [B] valid samples.

        Returns:
            [B, T, O] float32 log-probabilities of the outputs and [B] valid frames; see `Head`.
        """
        log_probs, frames = self.emit(*self.input(audio, lengths))
        return log_probs[-1], frames

    def input(self, audio: Tensor, lengths: Tensor, views: int = 1) -> tuple[Tensor, Tensor]:
        """Compute normalised features, augmented in training.

        Args:
            audio: [B, samples] in −1 … 1, right-padded.
            lengths: [B] valid samples.
            views: number of differently augmented copies of each utterance.

        Returns:
            [views · B, T, F], all utterances of one view, then of the next; and [views · B] valid frames.
        """
        with self.rounding():
            features, frames = self.front_end(audio, lengths)
        with self._encoder_gradients(), self.rounding():
            features = self.normalisation(features, frames).repeat(views, 1, 1)
            frames = frames.repeat(views)
            if self.training:
                # More masks make the views differ, for the loss that makes them agree (CR-CTC).
                augment = self.augment if views == 1 else with_more_time_masks(self.augment)
                features = spec_augment(features, frames, augment, self.normalisation.masked_frame)
        return features, frames

    def emit(self, features: Tensor, lengths: Tensor) -> tuple[list[Tensor], Tensor]:
        """Map normalised features to log-probabilities.

        Args:
            features: [B, T, F].
            lengths: [B] valid frames.

        In training, `augment.frames` are frame rates of which each call draws one (stochastic compression,
        Vyas et al. 2022, arXiv 2204.11934).

        Returns:
            Log-probabilities [B, T', O] from the encoder's states; in training or with self-conditioning,
            those from the blocks in `config.intermediate` come before them. And [B] valid encoder frames.
        """
        intermediate: list[Tensor] = []

        def tap(number: int, states: Tensor) -> Tensor:
            if number not in self.config.intermediate:
                return states
            normed = self.encoder.norm(states)
            with torch.enable_grad() if self.training else nullcontext():  # the head isn't frozen
                intermediate.append(self.head(normed))
            if self.condition is None:
                return states
            return states + self.condition(intermediate[-1].softmax(dim=-1).to(states.dtype))

        tapped = self.config.intermediate and (self.training or self.condition is not None)
        with self.rounding():
            with self._encoder_gradients(), self._drawn_factors():
                states, lengths = self.encoder(features, lengths, tap if tapped else None)
            return [*intermediate, self.head(states)], lengths

    def encoder_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that get no gradients if `encoder_frozen` is true."""
        modules = (self.normalisation, self.encoder, self.condition)
        return [x for module in modules if module is not None for x in module.parameters()]

    def _encoder_gradients(self) -> AbstractContextManager[None]:
        return torch.no_grad() if self.encoder_frozen else nullcontext()

    @contextmanager
    def _drawn_factors(self) -> Iterator[None]:
        """In training, use one of the schedules in `augment.frames`."""
        factors = self.encoder.factors
        if self.training and self._drawn:
            self.encoder.factors = self._drawn[int(torch.randint(len(self._drawn), ()))]
        try:
            yield
        finally:
            self.encoder.factors = factors

    def rounding(self) -> AbstractContextManager[Any]:
        """Run matrix products in `precision`, unless the model is in training mode."""
        if self.training or self.precision.name == "fp32":
            return nullcontext()
        return torch.autocast(self.device.type, AUTOCAST[self.precision.name])

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.head.projection.weight.device

    @property
    def sample_rate(self) -> int:
        """Sample rate of the input in Hz."""
        return self.config.features.sample_rate

    @property
    def frame_s(self) -> float:
        """Duration of an encoder frame in seconds."""
        return self.front_end.shift_samples / self.sample_rate * self.config.model.subsampling

    @property
    def longest_input_s(self) -> float:
        """Duration in seconds for which the encoder has positions; infinite for most encoders."""
        if not isinstance(self.encoder, WhisperEncoder):
            return math.inf
        return self.encoder.positions.num_embeddings * self.frame_s

    def encoder_frames(self, duration_s: float) -> int:
        """Return the number of encoder frames for audio of `duration_s` seconds."""
        return int(self.encoder_lengths(np.array([duration_s]))[0])

    def encoder_lengths(self, durations_s: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the numbers of encoder frames, [B], for durations in seconds, [B]."""
        samples = torch.from_numpy(np.rint(durations_s * self.sample_rate).astype(np.int64))
        return self.encoder.lengths(self.front_end.frames(samples)).numpy()

    def set_attention(self, name: str, backend: str | None = None) -> None:
        """Set the attention mechanism of every layer; the weights don't change.

        Args:
            name: mechanism of the softmax family.
            backend: `auto`, `reference` or `native`; None: don't change the backend.

        Raises:
            UserError: the mechanism has its own parameters, or doesn't fit a layer.
        """
        backend = backend or self.config.backend
        super().set_attention(name, backend)
        self.config.attention, self.config.backend = self.attention, backend
        self.config.code = code_digests(self.attention)

    def set_frames(self, frames: str) -> None:
        """Set how many encoder frames a frame of each layer stands for; the weights don't change.

        Args:
            frames: schedule, e.g. `1,2*3`; see `asr.config.schedule.layer_factors`.

        Raises:
            UserError: the schedule can't be parsed, has another number of layers, or doesn't fit them.
        """
        factors = self._factors(frames)
        if factors != self.encoder.factors:  # `1,2*` is the same as `1,2*3`
            self.encoder.factors = factors
            self.config.model = replace(self.config.model, frames=joined_factors(factors))

    def _factors(self, frames: str) -> list[Factor]:
        found = layer_factors(frames, len(self.encoder.blocks))
        spaced = any(layer.evenly_spaced for layer in self.attention_layers())
        if spaced and isinstance(found[-1], Merging):
            raise UserError(
                f"frames={frames}: expected factors: this model's layers need frames at equal distances"
            )
        return found

    def digest(self) -> str:
        """Return a hash of configuration and weights."""
        weights = (
            name.encode() + x.detach().cpu().contiguous().numpy().tobytes()
            for name, x in self.state_dict().items()
        )
        return digest(itertools.chain([repr(to_dict(self.config))], weights))

    def state(self) -> dict[str, Any]:
        """Return configuration and weights as plain data and tensors."""
        return {"config": to_dict(self.config), "weights": self.state_dict()}

    @classmethod
    def from_state(cls, state: dict[str, Any], vocabulary: int, source: str) -> "AcousticModel":
        """Build a model in evaluation mode from `state()`.

        Raises:
            UserError: the configuration is invalid, or the weights don't fit it; the message names `source`.
        """
        config = from_dict(AcousticModelConfig, without_lost(state["config"], source), source)
        try:
            model = cls(config, vocabulary)
            model.load_state_dict(state["weights"])
        except UserError as error:
            raise UserError(f"{source}: {error}") from None
        except RuntimeError as error:
            detail = " ".join(str(error).split())[:300]
            raise UserError(f"{source}: weights don't fit the model: {detail}") from error
        return model.eval()


@contextmanager
def evaluating(model: AcousticModel) -> Iterator[None]:
    """Put the model in evaluation mode within the block, and restore its mode afterwards."""
    training = model.training
    if training:
        model.eval()
    try:
        yield
    finally:
        if training:
            model.train()
