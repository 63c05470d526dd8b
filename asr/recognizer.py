"""The recogniser: an acoustic model with its tokenizer, to transcribe and decode."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from asr.config import check
from asr.data.recording import read_recording
from asr.environment import pick_device
from asr.errors import UserError
from asr.model.acoustic_model import AcousticModel
from asr.model.checkpoint import LoadOptions, find
from asr.model.checkpoint import load as load_checkpoint
from asr.model.portable import portable_folder, read_portable
from asr.search.decode import DecodeOptions, decode_split
from asr.search.decoder import Decoder, build_decoder
from asr.search.tune import tuned
from asr.text.tokenizer import Tokenizer, tokenizer_from_state
from asr.transcription.run import TranscriptionConfig, transcribe_samples
from asr.transcription.transcript import Transcript


class Recognizer:
    """An acoustic model with its tokenizer.

    Args:
        model: acoustic model with one output per symbol of the tokenizer.
        tokenizer: tokenizer of the model.
        file: checkpoint file or folder of an exported model that the weights come from.

    Example:
        >>> recognizer = Recognizer.load("exp/demo/full")  # doctest: +SKIP
        >>> recognizer.set_attention("i-clustered-25")  # doctest: +SKIP
        >>> recognizer.transcribe("long.wav").text  # doctest: +SKIP
        'the board approved the merger'
    """

    def __init__(self, model: AcousticModel, tokenizer: Tokenizer, file: Path | None = None) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.file = file

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        checkpoint: str = "auto",
        device: str = "cpu",
        attention: str = "",
        backend: str | None = None,
    ) -> "Recognizer":
        """Load a recogniser from a run folder, a checkpoint file or a model written by `asr export`.

        Args:
            path: e.g. `exp/demo/full` or `exp/demo/full/checkpoints/last.ckpt`.
            checkpoint: checkpoint in a run folder: `auto` (average, else best, else last), `best`, `last`
                or the name of a file.
            device: `auto`, `cpu`, `cuda`, …
            attention: attention mechanism; empty: the one used in training.
            backend: `auto`, `reference` or `native`; None: the one used in training.

        Raises:
            UserError: the file is missing, isn't a checkpoint or would run code when loaded; an exported
                model was truncated or changed; or the mechanism doesn't fit the model.
        """
        folder = portable_folder(Path(path))
        file = folder or find(Path(path), checkpoint)
        state = read_portable(folder) if folder else load_checkpoint(file)["model"]
        recognizer = cls.from_state(state, str(file))
        recognizer.file = file
        recognizer.model.to(pick_device(device))
        if attention or backend:
            recognizer.set_attention(attention or recognizer.model.config.attention, backend)
        return recognizer

    @classmethod
    def load_as(cls, path: str | Path, options: LoadOptions) -> "Recognizer":
        """Load a recogniser as a command's options say; see `load`."""
        return cls.load(
            path,
            checkpoint=options.checkpoint,
            device=options.device,
            attention=options.attention,
            backend=options.backend,
        )

    @property
    def run_folder(self) -> Path | None:
        """Run folder of the checkpoint, or the folder of an exported model."""
        if self.file is None:
            return None
        return self.file if self.file.is_dir() else self.file.parent.parent

    def set_attention(self, name: str, backend: str | None = None) -> None:
        """Set the attention mechanism of every layer; see `AcousticModel.set_attention`."""
        self.model.set_attention(name, backend)

    def transcribe(self, path: str | Path, **options: Any) -> Transcript:
        """Transcribe an audio file of any length, sample rate and container.

        Args:
            path: file that libsndfile or FFmpeg can read.
            options: fields of `TranscriptionConfig`: `mode="chunked"`, `decoder="beam"`, … Weights not set
                in `beam` default to those that `asr decode … tune=dev` stored in the run folder.

        Raises:
            UserError: the file can't be read, or is shorter than one frame.
        """
        config = TranscriptionConfig(**options)
        if config.channels != "mix":
            raise UserError(
                f"channels={config.channels!r}: expected 'mix'; for one transcript per channel use "
                "transcribe_channels()"
            )
        return self.transcribe_channels(path, config)[0]

    def transcribe_channels(
        self, path: str | Path, config: TranscriptionConfig, decoder: Decoder | None = None
    ) -> list[Transcript]:
        """Transcribe the channels of an audio file, or their average.

        Args:
            path: file that libsndfile or FFmpeg can read.
            config: mode, channels and decoder.
            decoder: decoder to reuse for several files; None: build one from `config`.

        Raises:
            UserError: the file can't be read, or is shorter than one frame.
        """
        check(config)
        recording = read_recording(Path(path), self.model.sample_rate, config.channels)
        decoder = decoder or self.decoder(config)[0]
        several = config.channels == "separate" and len(recording) > 1
        return [
            transcribe_samples(
                self.model,
                self.tokenizer,
                samples,
                config,
                decoder,
                name=f"{path}, channel {number}" if several else str(path),
                channel=number if several else None,
            )
            for number, samples in enumerate(recording, start=1)
        ]

    def decode(
        self,
        options: DecodeOptions,
        *,
        weights_in: Path | None = None,
        advance: Callable[[float], None] = lambda share: None,
    ) -> Path:
        """Decode a split of a corpus and return the folder of hypotheses; see `decode_split`."""
        assert self.file is not None
        assert self.run_folder is not None
        return decode_split(
            self.model,
            self.tokenizer,
            options,
            checkpoint=self.file,
            run_folder=self.run_folder,
            weights_in=weights_in,
            advance=advance,
        )

    def decoder(self, config: TranscriptionConfig) -> tuple[Decoder, str | None]:
        """Build the decoder, with tuned weights where `config.beam` doesn't set them.

        Returns:
            The decoder, and the file and entry of its tuned weights; None if there are none.

        Raises:
            UserError: invalid decoder options, or tuned weights that can't be read.
        """
        beam, source = config.beam, None
        if self.run_folder is not None:
            beam, source = tuned(self.run_folder, config.decoder, beam)
        return build_decoder(config.decoder, self.tokenizer, beam, self.model.config.topology), source

    def state(self) -> dict[str, Any]:
        """Return configuration, tokenizer and weights as plain data and tensors."""
        return self.model.state() | {"tokenizer": self.tokenizer.state()}

    @classmethod
    def from_state(cls, state: dict[str, Any], source: str) -> "Recognizer":
        """Build a recogniser in evaluation mode from `state()`; errors name `source`."""
        if "tokenizer" not in state:
            raise UserError(
                f"{source}: expected the checkpoint of a recogniser, found a model without a vocabulary"
            )
        tokenizer = tokenizer_from_state(state["tokenizer"])
        return cls(AcousticModel.from_state(state, len(tokenizer), source), tokenizer)
