"""The recogniser that users hold: an acoustic model, its tokenizer and a decoder."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from asr.data.recording import read_recording
from asr.environment import pick_device
from asr.errors import UserError
from asr.model.acoustic_model import AcousticModel
from asr.model.checkpoint import find
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
        model: acoustic model; its head has an output for each symbol of the tokenizer.
        tokenizer: vocabulary of the model.
        file: checkpoint file, or folder of an exported model, that holds the weights.

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
        """Load a recogniser from a run folder, a checkpoint file or a model that `asr export` wrote.

        Args:
            path: e.g. `exp/demo/full` or `exp/demo/full/checkpoints/last.ckpt`.
            checkpoint: in a run folder: `auto` (what training chose), `best`, `last` or a file's stem.
            device: `auto`, `cpu`, `cuda`, …
            attention: attention mechanism; empty: the one of training.
            backend: `auto`, `reference` or `native`; None: the one of training.

        Raises:
            UserError: no such file, not a checkpoint, one that would run code when loaded, an exported
                model that was truncated or changed, or a mechanism that doesn't fit the model.
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

    @property
    def run_folder(self) -> Path | None:
        """Run folder of the checkpoint, or the folder of an exported model."""
        if self.file is None:
            return None
        return self.file if self.file.is_dir() else self.file.parent.parent

    def set_attention(self, name: str, backend: str | None = None) -> None:
        """Exchange the attention mechanism of every layer; see `AcousticModel.set_attention`."""
        self.model.set_attention(name, backend)

    def transcribe(self, path: str | Path, **options: Any) -> Transcript:
        """Transcribe an audio file of any length, rate and container.

        Args:
            path: a file that libsndfile or FFmpeg reads.
            options: fields of `TranscriptionConfig`: `mode="chunked"`, `decoder="beam"`, …; weights that
                `beam` leaves open are those that `asr decode … tune=dev` recorded in the run folder.

        Raises:
            UserError: the file can't be read, or is shorter than one frame.
        """
        config = TranscriptionConfig(**options)
        if config.channels != "mix":
            raise UserError(
                f"channels={config.channels!r}: transcribe_channels() returns a transcript for each"
            )
        return self.transcribe_channels(path, config)[0]

    def transcribe_channels(
        self, path: str | Path, config: TranscriptionConfig, decoder: Decoder | None = None
    ) -> list[Transcript]:
        """Transcribe the channels of an audio file, or their mean.

        Args:
            path: a file that libsndfile or FFmpeg reads.
            config: mode, channels, decoder.
            decoder: decoder to use for many files; None: build one from `config`.

        Raises:
            UserError: the file can't be read, or is shorter than one frame.
        """
        config.check()
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
        """Build the decoder, with tuned weights where `config.beam` leaves them open.

        Returns:
            The decoder, and the source of its weights; None: options and defaults alone.

        Raises:
            UserError: see `build_decoder`; a record of tuning that can't be read.
        """
        beam, source = config.beam, None
        if self.run_folder is not None:
            beam, source = tuned(self.run_folder, config.decoder, beam)
        return build_decoder(config.decoder, self.tokenizer, beam), source

    def state(self) -> dict[str, Any]:
        """Return configuration, tokenizer and weights as plain data and tensors."""
        return self.model.state() | {"tokenizer": self.tokenizer.state()}

    @classmethod
    def from_state(cls, state: dict[str, Any], source: str) -> "Recognizer":
        """Build a recogniser from `state()`, in evaluation mode; errors name `source`."""
        if "tokenizer" not in state:
            raise UserError(
                f"{source}: expected the checkpoint of a recogniser, found a model without vocabulary"
            )
        tokenizer = tokenizer_from_state(state["tokenizer"])
        return cls(AcousticModel.from_state(state, len(tokenizer), source), tokenizer)
