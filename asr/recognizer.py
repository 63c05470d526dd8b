"""The recogniser: audio to CTC log-probabilities, with the tokenizer that names them."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from asr.attention.layer import SelfAttentionLayer
from asr.augment import AugmentConfig, augment_audio, spec_augment
from asr.checkpoint import find
from asr.checkpoint import load as load_checkpoint
from asr.confidence import UsualCertainty
from asr.config import from_dict, to_dict
from asr.ctc import CTCHead
from asr.data.recording import read_recording
from asr.encoder import Encoder, ModelConfig
from asr.errors import UserError
from asr.export import portable_folder, read_portable
from asr.features import FeatureConfig, FilterBanks, Normalisation
from asr.search.decoder import Decoder
from asr.text.tokenizer import Tokenizer, tokenizer_from_state
from asr.transcript import Transcript
from asr.transcription import TranscriptionConfig, transcribe_samples, tuned_decoder

LABELS = "label_model"  # its name among the weights
FORMER = ("usual_certainty",)  # in configurations of earlier checkpoints: a limit on another scale


@dataclass
class RecognizerConfig:
    """What it takes to build a recogniser, but for the tokenizer."""

    attention: str = "full"
    backend: str = "auto"
    features: FeatureConfig = field(default_factory=FeatureConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    longest_s: float = 0.0  # longest audio in training; 0: not known, an older checkpoint
    usual: UsualCertainty = field(default_factory=UsualCertainty)  # on the development set


class Recognizer(nn.Module):
    """Filter banks → normalisation → encoder → CTC.

    Args:
        config: sizes and the attention mechanism.
        tokenizer: the vocabulary; it travels with the model.
        augment: augmentation in training mode.

    Example:
        >>> recognizer = Recognizer.load("exp/demo/full")  # doctest: +SKIP
        >>> recognizer.set_attention("i-clustered-25")  # doctest: +SKIP
        >>> recognizer.transcribe("long.wav").text  # doctest: +SKIP
        'the board approved the merger'
    """

    def __init__(
        self, config: RecognizerConfig, tokenizer: Tokenizer, augment: AugmentConfig | None = None
    ) -> None:
        super().__init__()
        self.config = config
        self.tokenizer = tokenizer
        self.file: Path | None = None  # the checkpoint, or the exported model's folder, it was loaded from
        self.run_folder: Path | None = None  # of that checkpoint; or the exported model's folder
        self.augment = augment or AugmentConfig()
        self.filter_banks = FilterBanks(config.features)
        features = config.features
        window_frames = max(1, round(1000 * features.normalise_window_s / features.frame_shift_ms))
        self.normalisation = Normalisation(features.normalise, features.mel_bins, window_frames)
        self.encoder = Encoder(config.model, config.features.mel_bins, config.attention, config.backend)
        self.head = CTCHead(config.model.heads * config.model.head_dim, len(tokenizer))
        self.label_model: Tensor | None = None  # of the training transcripts; on the CPU, unlike the weights

    def forward(self, audio: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Compute log-probabilities.

        Args:
            audio: [B, samples] in −1 … 1, right-padded.
            lengths: [B] valid samples.

        Returns:
            [B, T, V] float32 log-probabilities and [B] valid frames.
        """
        if self.training:
            audio = augment_audio(audio, lengths, self.augment)
        features, frames = self.filter_banks(audio, lengths)
        features = self.normalisation(features, frames)
        if self.training:
            features = spec_augment(features, frames, self.augment)
        states, frames = self.encoder(features, frames)
        return self.head(states), frames

    def encoder_frames(self, duration_s: float) -> int:
        """Return the encoder frames of an utterance that lasts `duration_s` seconds."""
        samples = torch.tensor([round(duration_s * self.config.features.sample_rate)])
        return int(self.encoder.subsampling.lengths(self.filter_banks.frames(samples)))

    def transcribe(self, path: str | Path, **options: Any) -> Transcript:
        """Transcribe an audio file of any length, rate and container.

        Args:
            path: anything that libsndfile or FFmpeg reads.
            options: of `TranscriptionConfig`: `mode="chunked"`, `decoder="beam"`, …; weights that `beam`
                leaves open are those that `asr decode … tune=dev` has recorded in the run folder.

        Raises:
            UserError: the file can't be read, or is shorter than one frame.
        """
        config = TranscriptionConfig(**options)
        if config.channels != "mix":
            raise UserError(
                f"channels={config.channels!r}: transcribe_channels() has one transcript for each"
            )
        return self.transcribe_channels(path, config)[0]

    def transcribe_channels(
        self, path: str | Path, config: TranscriptionConfig, decoder: Decoder | None = None
    ) -> list[Transcript]:
        """Transcribe the channels of an audio file, or their mean.

        Args:
            path: anything that libsndfile or FFmpeg reads.
            config: how.
            decoder: built from `config` before, for many files; None: built here, by `tuned_decoder`.

        Raises:
            UserError: the file can't be read, or is shorter than one frame.
        """
        config.check()
        recording = read_recording(Path(path), self.config.features.sample_rate, config.channels)
        decoder = decoder or tuned_decoder(self, config)[0]
        several = config.channels == "separate" and len(recording) > 1
        return [
            transcribe_samples(
                self,
                samples,
                config,
                f"{path}, channel {number}" if several else str(path),
                decoder,
                number if several else None,
            )
            for number, samples in enumerate(recording, start=1)
        ]

    @property
    def frame_s(self) -> float:
        """Duration of an encoder frame in seconds."""
        return self.config.features.frame_shift_ms / 1000 * self.config.model.subsampling

    def set_attention(self, name: str, backend: str | None = None) -> None:
        """Exchange the attention mechanism of every layer; the weights stay.

        Args:
            name: any mechanism of the softmax family.
            backend: `auto`, `reference` or `native`; None keeps the present one.

        Raises:
            UserError: the mechanism has parameters of its own, or doesn't fit the layer.
        """
        backend = backend or self.config.backend
        for layer in self.attention_layers():
            layer.set_mechanism(name, backend=backend)
        self.config.attention, self.config.backend = name, backend

    def backend_on(self, device_type: str) -> str:
        """Return the backend that attention runs on, on `cpu` or `cuda`."""
        return self.attention_layers()[0].backend_on(device_type)

    def attention_layers(self) -> list[SelfAttentionLayer]:
        """Return the attention layers, first to last."""
        return [layer for layer in self.modules() if isinstance(layer, SelfAttentionLayer)]

    def state(self) -> dict[str, Any]:
        """Return configuration, tokenizer and weights as plain data and tensors."""
        return {
            "config": to_dict(self.config),
            "tokenizer": self.tokenizer.state(),
            "weights": self.state_dict() | ({} if self.label_model is None else {LABELS: self.label_model}),
        }

    @classmethod
    def from_state(cls, state: dict[str, Any], source: str) -> "Recognizer":
        """Build a recogniser from `state()`, in evaluation mode; errors name `source`."""
        known = {name: value for name, value in state["config"].items() if name not in FORMER}
        recognizer = cls(from_dict(RecognizerConfig, known, source), tokenizer_from_state(state["tokenizer"]))
        weights = dict(state["weights"])
        recognizer.label_model = weights.pop(LABELS, None)
        try:
            recognizer.load_state_dict(weights)
        except RuntimeError as error:
            detail = " ".join(str(error).split())[:300]
            raise UserError(f"{source}: weights don't fit the model: {detail}") from error
        return recognizer.eval()

    @classmethod
    def load(cls, path: str | Path, *, checkpoint: str = "auto", device: str = "cpu") -> "Recognizer":
        """Load a recogniser from a run folder, a checkpoint file or a model that `asr export` wrote.

        Args:
            path: e.g. `exp/demo/full` or `exp/demo/full/checkpoints/last.ckpt`.
            checkpoint: in a run folder: `auto` (what training chose), `best`, `last` or a file's stem.
            device: `cpu`, `cuda`, …

        Raises:
            UserError: no such file, not a checkpoint, one that would run code when loaded, or an exported
                model that was cut or changed.
        """
        folder = portable_folder(Path(path))
        if folder:
            file = run_folder = folder
            state = read_portable(folder)
        else:
            file = find(Path(path), checkpoint)
            run_folder = file.parent.parent
            state = load_checkpoint(file)["recognizer"]
        recognizer = cls.from_state(state, str(file)).to(device)
        recognizer.file, recognizer.run_folder = file, run_folder
        return recognizer
