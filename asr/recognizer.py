"""The recogniser: an acoustic model with its tokenizer; transcribes and decodes."""

import sys
import threading
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import nullcontext
from os import PathLike
from pathlib import Path
from typing import Any, overload

import torch

from asr.attention.products import keep_packed
from asr.attention.table import given_name
from asr.config import check, check_effect, parse
from asr.config.given import values_of
from asr.config.schedule import check_schedule
from asr.environment import pick_device, pick_precision
from asr.errors import UserError
from asr.model.acoustic_model import AcousticModel
from asr.model.hub import local_folder
from asr.model.options import LoadOptions
from asr.model.portable import portable_folder, read_state
from asr.model.published import is_published, published_model
from asr.records.options import Shard
from asr.search.decoder import Decoder, Search
from asr.search.options import DecodeOptions, DecoderChoice
from asr.search.path import TokenPath
from asr.search.run import search_stretches
from asr.search.streaming import start_stream
from asr.search.tune import tuned
from asr.text.tokenizer import Tokenizer, tokenizer_from_state
from asr.transcription.batches import groups_in_order, unfinished
from asr.transcription.decode import decode_split
from asr.transcription.options import TranscriptionConfig
from asr.transcription.pipeline import Advance, Channel, Pipeline
from asr.transcription.sources import Audio, recordings
from asr.transcription.stream import Stream, check_streamed
from asr.transcription.transcript import Outcome, Transcript, silent_transcript, transcript_of


class Recognizer:
    """An acoustic model with its tokenizer.

    Args:
        model: acoustic model with one output per symbol of the tokenizer.
        tokenizer: tokenizer of the model.
        file: source of the weights: a checkpoint file, or the folder of an exported or published model.
        folder: folder for results; None: the run folder of `file`, or `file` itself if it is a folder.

    Example:
        >>> recognizer = Recognizer.load("exp/demo/full")  # doctest: +SKIP
        >>> recognizer.set_attention("i-clustered-25")  # doctest: +SKIP
        >>> recognizer.transcribe("long.wav").text  # doctest: +SKIP
        'the board approved the merger'
    """

    def __init__(
        self, model: AcousticModel, tokenizer: Tokenizer, file: Path | None = None, folder: Path | None = None
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.file = file
        self.folder = folder

    def __repr__(self) -> str:
        """Return path, attention, frames and size: `Recognizer(exp/demo/full: near-25, 1.3 M parameters)`."""
        size = sum(x.numel() for x in self.model.parameters()) / 1e6
        where = f"{self.run_folder}: " if self.run_folder else ""
        schedule = self.model.config.model.frames
        frames = f" frames={schedule}" if schedule != "1" else ""
        return f"Recognizer({where}{self.model.attention}{frames}, {size:.1f} M parameters)"

    @classmethod
    def load(
        cls,
        path: str | PathLike[str],
        *,
        checkpoint: str = "auto",
        device: str = "cpu",
        attention: str = "",
        frames: str = "",
        backend: str | None = None,
        precision: str = "fp32",
    ) -> "Recognizer":
        """Load a recogniser from a run folder, a checkpoint file, or an exported or published model.

        Args:
            path: e.g. `exp/demo/full` or `exp/demo/full/checkpoints/last.ckpt`; a folder written by
                `asr export` or transformers; or the name of a model on the Hugging Face Hub, owner/model.
            checkpoint: checkpoint in a run folder: `auto` (average, else best, else last), `best`, `last`
                or the name of a file.
            device: `auto`, `cpu`, `cuda`, …
            attention: attention mechanism; empty: the one used in training. Code that a model needs is
                loaded only if it is named here, e.g. `./nystrom.py:Nystrom-32`, or installed.
            frames: number of encoder frames per frame of each layer, e.g. `1,2*3`; empty: as in training.
            backend: `auto`, `reference` or `native`; None: the one used in training, but `auto` for
                `native`, so that a model runs where the kernels are missing.
            precision: precision of the matrix products: `fp32`, `bf16`, `fp16` (CUDA), or `auto`, which is
                fp32: bf16 can cost accuracy.

        Raises:
            UserError: the file is missing, isn't a checkpoint or would run code when loaded; an exported
                model was truncated or changed; a published model isn't supported or its files don't fit each
                other; `checkpoint` is set for a single model; or mechanism or frames don't fit the model.
        """
        texts = {"checkpoint": checkpoint, "attention": attention, "frames": frames, "precision": precision}
        for name, value in (texts | {"backend": backend or ""}).items():
            if not isinstance(value, str):
                raise UserError(f"{name}={value!r:.60}: expected text")
        attention = attention and given_name(attention)
        if frames:
            check_schedule(frames)
        place = local_folder(path)
        published = is_published(place)
        if checkpoint != "auto" and (published or portable_folder(place) or place.is_file()):
            raise UserError(f"checkpoint={checkpoint}: has no effect with {path}, which is one model")
        if published:
            # The Hub's cache is not a place for results.
            results = None if place == Path(path) else Path("exp") / path
            recognizer = cls(*published_model(place, backend or "auto"), place, results)
        else:
            recognizer = cls._own(place, checkpoint, backend)
        target = pick_device(device)
        keep_packed(recognizer.model)
        recognizer.model.to(target).precision = pick_precision(precision, target, recognising=True)
        if attention:
            recognizer.set_attention(attention)
        if frames:
            recognizer.set_frames(frames)
        return recognizer

    @classmethod
    def _own(cls, place: Path, checkpoint: str, backend: str | None) -> "Recognizer":
        """Load a model of this project; see `load`."""
        file, state = read_state(place, checkpoint)
        config = state["config"]
        stored = config.get("backend", "auto")
        config["backend"] = backend or ("auto" if stored == "native" else stored)
        recognizer = cls.from_state(state, str(file))
        recognizer.file = file
        return recognizer

    @classmethod
    def load_as(cls, path: str | PathLike[str], options: LoadOptions) -> "Recognizer":
        """Load a recogniser with a command's options; see `load`.

        Raises:
            UserError: as in `load`; an unknown mechanism or missing device before any file is read.
        """
        attention = options.attention and given_name(options.attention)
        pick_device(options.device)
        recognizer = cls.load(
            path,
            checkpoint=options.checkpoint,
            device=options.device,
            attention=attention,
            frames=options.frames,
            backend=options.backend,
            precision=options.precision,
        )
        if options.precision == "auto":
            chosen = recognizer.model.precision
            print(f"precision={chosen.name}, because {chosen.reason}", file=sys.stderr)
        return recognizer

    @property
    def run_folder(self) -> Path | None:
        """Run folder of the checkpoint, or the folder of an exported or published model."""
        if self.folder or self.file is None:
            return self.folder
        return self.file if self.file.is_dir() else self.file.parent.parent

    def set_attention(self, name: str, backend: str | None = None) -> None:
        """Set the attention mechanism of every layer; see `AcousticModel.set_attention`."""
        self.model.set_attention(given_name(name), backend)

    def set_frames(self, frames: str) -> None:
        """Set how many encoder frames a frame of each layer stands for; see `AcousticModel.set_frames`."""
        self.model.set_frames(frames)

    @overload
    def transcribe(self, audio: Audio, sample_rate: int | None = None, **options: Any) -> Transcript: ...
    @overload
    def transcribe(
        self, audio: Sequence[Audio], sample_rate: int | None = None, **options: Any
    ) -> list[Transcript]: ...
    def transcribe(
        self, audio: Audio | Sequence[Audio], sample_rate: int | None = None, **options: Any
    ) -> Transcript | list[Transcript]:
        """Transcribe a recording of any length, sample rate and container, or a list of them in batches.

        Args:
            audio: path of a file that libsndfile or FFmpeg can read, a file object opened in binary mode, or
                an array or tensor, [samples] or [channels, samples], floats in −1 … 1 or signed integers; or
                a list of these. Short recordings take far less time in a list than one by one, above all if
                other processes use the cores (docs/machines.md, Threads).
            sample_rate: sample rate of arrays and tensors in Hz.
            options: fields of `TranscriptionConfig`, given as for `asr.decode`: `mode="chunked"`,
                `decoder="beam"`, `beam={"size": 5}`, … Weights not set in `beam` default to those stored in
                the run folder by `asr decode … tune=dev`.

        Returns:
            A transcript, or a list of them in order.

        Raises:
            UserError: audio can't be read, or is shorter than one frame.

        Example:
            >>> recognizer = Recognizer.load("exp/demo/full")  # doctest: +SKIP
            >>> recognizer.transcribe(torch.randn(16000), 16000).duration_s  # doctest: +SKIP
            1.0
        """
        config = parse(TranscriptionConfig, values_of(options, schema=TranscriptionConfig))
        if config.channels != "mix":
            raise UserError(
                f"channels={config.channels!r}: expected 'mix'; for one transcript per channel use "
                "transcribe_each()"
            )
        several = isinstance(audio, list | tuple)
        items: list[Audio] = list(audio) if several else [audio]  # type: ignore[arg-type, list-item]
        found = []
        for _, outcome in self.transcribe_each(items, config, sample_rate=sample_rate):
            if isinstance(outcome, Exception):
                raise outcome
            found += outcome
        return found if several else found[0]

    def stream(self, sample_rate: int | None = None, **options: Any) -> Stream:
        """Recognise audio as it arrives, with a model whose look-ahead is bounded.

        Args:
            sample_rate: sample rate of the blocks in Hz; None: the model's. Other rates are resampled.
            options: `decoder`, greedy or prefix, and `beam`, as in `transcribe`.

        Returns:
            A stream that takes blocks of samples and returns the words of `transcribe`.

        Raises:
            UserError: the look-ahead of model or search is unbounded; the message says which options to train
                with.

        Example:
            >>> recognizer = Recognizer.load("exp/demo/local-16:right=2")  # doctest: +SKIP
            >>> for word in recognizer.stream().words(blocks):  # doctest: +SKIP
            ...     print(word.word, word.start_s, word.end_s, word.confidence)
        """
        return self.stream_as(parse(DecoderChoice, values_of(options)), sample_rate)

    def stream_as(self, config: DecoderChoice, sample_rate: int | None = None) -> Stream:
        """Recognise audio as it arrives, with a command's options; see `stream`."""
        check_streamed(self.model, str(self.run_folder or "stream"))
        topology = self.model.config.topology
        if not config.chosen_decoder.streams or topology != "ctc":
            raise UserError(
                f"decoder={config.decoder} with loss.topology={topology} searches whole stretches: for audio "
                "as it comes, expected greedy or prefix with ctc"
            )
        search = start_stream(self.search(config)[0], self.model.frame_s)
        assert search is not None
        return Stream(
            self.model, self.tokenizer, search, self.model.sample_rate if sample_rate is None else sample_rate
        )

    def transcribe_each(
        self,
        audio: Sequence[Audio],
        config: TranscriptionConfig,
        search: Search | None = None,
        *,
        sample_rate: int | None = None,
        shard: Shard | None = None,
        done: Container[int] = (),
        advance: Callable[[float], None] = lambda share: None,
    ) -> Iterator[tuple[int, Outcome]]:
        """Yield each recording's position, and the transcripts of its channels or the error that it raised.

        Args:
            audio: recordings, see `transcribe`.
            config: mode, channels and decoder.
            search: search to use; None: build it from `config`.
            sample_rate: sample rate of arrays and tensors in Hz.
            shard: shard whose recordings to transcribe; None: all.
            done: positions of recordings to leave out, unless they are read together with others.
            advance: called with the fraction of a recording done since the last call; a recording's fractions
                add up to 1.
        """
        check(config)
        check_effect(config)
        sources = recordings(audio, sample_rate, config.channels)
        used = search or self.search(config)[0]
        turn = nullcontext() if used.reentrant else threading.Lock()

        def find(_: Sequence[Channel], log_probs: list[torch.Tensor], advance: Advance) -> list[TokenPath]:
            with turn:
                return search_stretches(used, log_probs, self.model.frame_s, advance)

        pipeline = Pipeline(self.model, config, find, skip_silent=True)
        groups = unfinished(groups_in_order([source.size for source in sources]), shard, done)
        for position, found in pipeline(sources, groups, advance):
            if isinstance(found, Exception):
                yield position, found
            else:
                yield position, [self._transcript(*own, config.min_confidence) for own in found]

    def _transcript(self, channel: Channel, path: TokenPath | None, min_confidence: float) -> Transcript:
        duration_s = len(channel.samples) / self.model.sample_rate
        if path is None:
            return silent_transcript(duration_s, channel.name, channel.number)
        return transcript_of(
            path,
            self.tokenizer,
            frame_s=self.model.frame_s,
            duration_s=duration_s,
            min_confidence=min_confidence,
            name=channel.name,
            channel=channel.number,
        )

    def decode(
        self,
        options: DecodeOptions,
        *,
        weights_in: Path | None = None,
        shard: Shard | None = None,
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
            shard=shard,
            advance=advance,
        )

    def search(self, config: DecoderChoice) -> tuple[Search, str | None]:
        """Build the search, with tuned weights for those that `config` doesn't set.

        Returns:
            The search, and the file and entry of its tuned weights; None if there are none.

        Raises:
            UserError: options don't fit the model, or tuned weights can't be read.
        """
        decoder, source = self.decoder(config)
        return decoder.build(self.tokenizer, self.model.config.topology), source

    def decoder(self, config: DecoderChoice) -> tuple[Decoder, str | None]:
        """Return the decoder with tuned weights, and their source as `search` does."""
        decoder = config.chosen_decoder
        return (decoder, None) if self.run_folder is None else tuned(self.run_folder, decoder)

    def state(self) -> dict[str, Any]:
        """Return configuration, tokenizer and weights as plain data and tensors."""
        return self.model.state() | {"tokenizer": self.tokenizer.state()}

    @classmethod
    def from_state(cls, state: dict[str, Any], source: str) -> "Recognizer":
        """Build a recogniser in evaluation mode from `state()`; errors name `source`."""
        if "tokenizer" not in state:
            raise UserError(
                f"{source}: expected the checkpoint of a recogniser, found a model without a vocabulary "
                "(asr evaluate is for those of other tasks)"
            )
        tokenizer = tokenizer_from_state(state["tokenizer"], f"{source}: tokenizer")
        return cls(AcousticModel.from_state(state, len(tokenizer), source), tokenizer)
