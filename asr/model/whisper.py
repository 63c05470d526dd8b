"""OpenAI's Whisper, as saved by transformers: encoder states, transcripts, and forced transcripts.

Radford et al., *Robust Speech Recognition via Large-Scale Weak Supervision* (2022). The encoder is that of
`asr.model.pretrained_whisper`, on inputs padded to 30 s as in OpenAI's program; the decoder is transformers'.
"""

import json
import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from asr.attention.hashing import number_layers
from asr.attention.layer import SelfAttentionLayer
from asr.attention.products import keep_packed, use_faster_products
from asr.attention.table import layer_names
from asr.attention.transformers_adapter import import_transformers, quiet, refuse_adapter
from asr.config.schedule import MERGED_PADDING, layer_factors
from asr.data.audio_file import Samples
from asr.errors import UserError, in_words
from asr.files import file_digest, read_json
from asr.model.acoustic_model import AUTOCAST
from asr.model.pretrained_whisper import WhisperEncoder
from asr.text.numbers import spoken_numbers

# Prevents downloads, and code in the folder from running.
LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
PAUSE = re.compile(r"(?<=[.,:;!?]) ")
SPELT = re.compile(r"\b(?:[^\W\d_]\. ?){2,}")  # p. b. x., U.S.A.
# Loss of the tokenizer's tokens for the model's own texts, above that of the tokens it found; see
# `Whisper.check_own_texts`.
MOST_ADDED, FEWEST_ADDED = 0.5, 20.0  # nats per token, and nats
ENOUGH_TOKENS = 200


def is_whisper(folder: Path) -> bool:
    """Return whether a folder's configuration is Whisper's."""
    file = folder / "config.json"
    return file.is_file() and read_json(file, "a configuration").get("model_type") == "whisper"


class Whisper:
    """A Whisper model whose encoder has exchangeable attention; the decoder's attention stays.

    Args:
        folder: folder written by `save_pretrained` of the model and of its processor.
        device: device to compute on.
        language: code of the language, e.g. `de`; may be empty if the model knows only English.

    Attributes:
        rate: sample rate in Hz.
        longest_s: duration of every input in seconds, with padding.
        positions: number of encoder positions of every input.
        layers: number of encoder layers.
        normalise: text normalisation of the language; see `normaliser`.

    Raises:
        UserError: transformers is missing; the folder can't be read, lacks files or weights, or contains
            another model; or the model doesn't know the language.
    """

    def __init__(self, folder: Path, device: str, language: str) -> None:
        refuse_adapter(folder)
        if not is_whisper(folder):
            raise UserError(f"model={folder}: expected the folder of a Whisper model, found none")
        self.folder, self.device = folder, device
        self.model, processor = loaded_whisper(folder)
        self.extractor, self.tokenizer = processor.feature_extractor, processor.tokenizer
        self._check()
        self.model.eval().to(device)
        use_faster_products(self.model)
        config = self.model.config
        self.rate: int = self.extractor.sampling_rate
        self.longest_s: float = self.extractor.chunk_length
        self.positions: int = config.max_source_positions
        self.encoder = WhisperEncoder(self.model.model.encoder, "full", "auto").eval()
        keep_packed(self.encoder)
        self._blocks, self.layers = self.encoder.blocks, len(self.encoder.blocks)
        self._padding, self._precision = 1, "fp32"
        self._own_tokens, self._added = 0, 0.0
        self.settings = _settings(self.model.generation_config, folder, language)
        self.normalise = normaliser(self.tokenizer.english_spelling_normalizer, language or "en")

    def _check(self) -> None:
        """Raise UserError if the folder's files don't fit each other."""
        tokenizer, config = self.tokenizer, self.model.config
        # Without files, transformers makes a tokenizer that knows no text.
        if set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):
            raise UserError(f"model={self.folder}: expected a tokenizer (tokenizer.json), found none")
        stored = json.loads(tokenizer.backend_tokenizer.to_str())
        expected = f"model={self.folder}: expected a tokenizer that cuts texts as in training, found"
        if lost := tokens_without_merge(stored):
            raise UserError(
                f"{expected} one without the merges of {len(lost)} tokens, e.g. {lost[0]!r}: take "
                "tokenizer.json from a newer conversion"
            )
        if late := merges_out_of_order(stored):
            raise UserError(
                f"{expected} {len(late)} merges in another order than their tokens, e.g. that of "
                f"{late[0]!r}: take tokenizer.json from the model's own folder"
            )
        frames = 2 * config.max_source_positions
        found = self.extractor.feature_size, self.extractor.nb_max_frames
        if found != (config.num_mel_bins, frames):
            raise UserError(
                f"model={self.folder}: expected features of {config.num_mel_bins} bins × {frames} frames, "
                f"found an extractor of {found[0]} × {found[1]}"
            )
        for name in ("decoder_start_token_id", "no_timestamps_token_id", "eos_token_id"):
            if not isinstance(getattr(self.model.generation_config, name, None), int):
                raise UserError(f"model={self.folder}: expected {name} in generation_config.json, found none")
        _check_marks(tokenizer, self.model.generation_config, self.folder)

    def digest(self) -> list[str]:
        """Return hashes of all files that affect the output."""
        files = sorted(file for file in self.folder.iterdir() if file.is_file())
        return [f"{file.name} {file_digest(file)}" for file in files]

    def set_encoder(
        self,
        attention: str,
        frames: str = "",
        layers: int = 0,
        precision: str = "fp32",
        backend: str = "auto",
    ) -> None:
        """Choose how the encoder runs; the weights don't change.

        Args:
            attention: mechanism of the softmax family, or one for each layer.
            frames: number of encoder frames that a frame of each layer stands for, e.g. `2`; `pad-10`: layers
                see the silence that pads an input in runs of 10 frames; empty: all frames.
            layers: number of layers to run, evenly spread: the first, third, … for half of them; 0: all.
            precision: precision of matrix products.
            backend: `auto`, `reference` or `native`.

        Raises:
            UserError: the mechanism or schedule doesn't fit, or there are fewer layers.
        """
        if layers > self.layers:
            raise UserError(f"layers={layers}: expected at most {self.layers}, the layers of {self.folder}")
        count = layers or self.layers
        kept = nn.ModuleList(self._blocks[index * self.layers // count] for index in range(count))
        merged = MERGED_PADDING.fullmatch(frames)
        self._padding, self._precision = int(merged[1]) if merged else 1, precision
        self.encoder.factors = layer_factors("1" if merged else frames or "1", count)
        self.encoder.blocks = kept
        attentions = [x for x in kept.modules() if isinstance(x, SelfAttentionLayer)]
        for layer, name in zip(attentions, layer_names(attention, count), strict=True):
            layer.set_mechanism(name, backend)
        number_layers(kept)

    def features(self, audio: list[Samples]) -> dict[str, Tensor]:
        """Return `features` of samples at `rate`, padded or cut to the length of an input, and `heard_B`.

        The former are log-mel energies [B, T, F]; the latter, numbers of encoder positions without padding.
        """
        features = self.extractor(audio, sampling_rate=self.rate, return_tensors="pt").input_features
        shift = 2 * self.extractor.hop_length
        heard_B = torch.tensor([-(-len(samples) // shift) for samples in audio], device=self.device)
        return {"features": features.to(self.device).mT.contiguous(), "heard_B": heard_B}

    @torch.inference_mode()
    def encode(self, features: Tensor, heard_B: Tensor) -> Tensor:
        """Return the encoder states, [B, N, M], for the results of `features`."""
        lengths = torch.full((len(features),), features.shape[1], device=features.device)
        silence = (heard_B, self._padding) if self._padding > 1 else None
        half = self._precision != "fp32"
        with torch.autocast(features.device.type, AUTOCAST[self._precision]) if half else nullcontext():
            states_BNM, _ = self.encoder(features, lengths, silence=silence)
        return states_BNM.float()

    def tokens(self, text: str) -> list[int]:
        """Return the prompt, the tokens of a transcript and the end mark, as in the model's training."""
        labels: list[int] = self.tokenizer(f" {text.strip()}", add_special_tokens=False)["input_ids"]
        return [*self.prompt, *labels, self.model.generation_config.eos_token_id]

    def check_text(self, text: str, ident: str) -> None:
        """Raise UserError for a transcript that exceeds the decoder's positions or has no tokens."""
        most, known = self.model.config.max_target_positions, self.model.config.vocab_size
        tokens = self.tokens(text)
        if len(tokens) > most:
            raise UserError(
                f"utterance {ident!r}: expected a transcript of at most {most} tokens, found {len(tokens)}"
            )
        read = self.tokenizer.decode(tokens[len(self.prompt) : -1], clean_up_tokenization_spaces=False)
        if self.normalise(read) != self.normalise(text) or max(tokens) >= known:
            raise UserError(
                f"utterance {ident!r}: expected {text[:100]!r} in the model's {known:,} tokens, "
                f"found {read[:100]!r}: the tokenizer is another model's"
            )

    @property
    def prompt(self) -> list[int]:
        """Tokens before a transcript: start; language and task, if there are several; no time stamps."""
        config, chosen = self.model.generation_config, []
        if self.settings:
            chosen = [
                config.lang_to_id[f"<|{self.settings['language']}|>"],
                config.task_to_id[self.settings["task"]],
            ]
        return [config.decoder_start_token_id, *chosen, config.no_timestamps_token_id]

    @torch.inference_mode()
    def forced(self, states_BNM: Tensor, texts: Sequence[str]) -> list[tuple[Tensor, Tensor]]:
        """Return the next-token distributions along given transcripts (teacher forcing).

        Args:
            states_BNM: states of the encoder.
            texts: transcript of each row.

        Returns:
            For each row, the labels [U], i.e. the tokens of the transcript and the end mark, and their
            log-probabilities [U, V].
        """
        return self._forced(states_BNM, [self.tokens(text) for text in texts])

    def _forced(self, states_BNM: Tensor, rows: list[list[int]]) -> list[tuple[Tensor, Tensor]]:
        width, first = max(map(len, rows)) - 1, len(self.prompt) - 1
        padded = [row[:-1] + [row[-1]] * (width + 1 - len(row)) for row in rows]
        logits = self.model(
            encoder_outputs=(states_BNM,), decoder_input_ids=torch.tensor(padded, device=self.device)
        ).logits
        return [
            (torch.tensor(row[first + 1 :], device=self.device), scores[first : len(row) - 1].log_softmax(-1))
            for row, scores in zip(rows, logits, strict=True)
        ]

    @torch.inference_mode()
    def transcripts(self, states_BNM: Tensor) -> list[str]:
        """Return the texts found by greedy search.

        Their number of tokens is at most half the decoder's positions, as in OpenAI's program.
        """
        texts: list[str] = self.tokenizer.batch_decode(self._found(states_BNM), skip_special_tokens=True)
        return [text.strip() for text in texts]

    def _found(self, states_BNM: Tensor) -> list[list[int]]:
        """Return the tokens found by greedy search."""
        from transformers.modeling_outputs import BaseModelOutput

        with quiet():  # transformers warns about settings that it makes itself
            tokens: list[list[int]] = self.model.generate(
                encoder_outputs=BaseModelOutput(last_hidden_state=states_BNM),
                do_sample=False,
                num_beams=1,
                max_new_tokens=self.model.config.max_target_positions // 2,
                **self.settings,
            ).tolist()
        return tokens

    @torch.inference_mode()
    def check_own_texts(self, states_BNM: Tensor) -> None:
        """Raise UserError if the tokenizer's tokens for the model's own texts are less probable.

        Greedy search finds tokens as in training, and their text becomes the same tokens again, except for
        some words of languages that the model knows little. Once enough was checked, does nothing.

        Args:
            states_BNM: states of the encoder with full attention.
        """
        if self._own_tokens >= ENOUGH_TOKENS:
            return
        end: int = self.model.generation_config.eos_token_id  # the first of the marks
        room = self.model.config.max_target_positions - len(self.prompt) - 1
        for index, row in enumerate(self._found(states_BNM)):
            found = [token for token in row if token < end]
            text: str = self.tokenizer.decode(found, clean_up_tokenization_spaces=False)
            if "\ufffd" in text:  # an incomplete character, which has no tokens
                continue
            cut = self.tokenizer(text, add_special_tokens=False)["input_ids"][:room]
            self._own_tokens += len(cut)
            if cut != found:
                rows = [[*self.prompt, *tokens, end] for tokens in (cut, found)]
                loss, least = (
                    -float(log_UV.gather(-1, labels_U[:, None]).double().sum())
                    for labels_U, log_UV in self._forced(states_BNM[[index, index]], rows)
                )
                self._added += loss - least
            if self._added >= max(FEWEST_ADDED, MOST_ADDED * self._own_tokens):
                raise UserError(
                    f"model={self.folder}: expected a tokenizer that cuts texts as in training, found one "
                    f"that adds {self._added / self._own_tokens:.2f} nats a token to the loss of the model's "
                    f"own texts, e.g. {text.strip()[:60]!r}: take tokenizer.json from the model's own folder"
                )


def loaded_whisper(folder: Path) -> tuple[Any, Any]:
    """Return model and processor of transformers, from a folder; raise UserError as `Whisper` does."""
    transformers = import_transformers()
    with quiet():
        try:
            processor = transformers.WhisperProcessor.from_pretrained(folder, **LOCAL)
            model, report = transformers.WhisperForConditionalGeneration.from_pretrained(
                folder, output_loading_info=True, dtype=torch.float32, use_safetensors=True, **LOCAL
            )
        except (
            Exception
        ) as error:  # from transformers, safetensors, json and PyTorch: a folder may contain anything
            raise UserError(f"model={folder}: {in_words(error)}") from error
    if missing := sorted(report["missing_keys"]):
        raise UserError(f"model={folder}: expected a whole model, found no weights {', '.join(missing)[:80]}")
    return model, processor


def tokens_without_merge(tokenizer: dict[str, Any]) -> list[str]:
    """Return the tokens of a `tokenizer.json` that never occur, because its merges can't form them.

    Some conversions took the first merge, `Ġ t`, for a header and lost it. Without it, ` the` becomes tokens
    that the model has never seen in its place.
    """
    model = tokenizer["model"]
    if "merges" not in model:
        return []
    made = {
        "".join(merge) if isinstance(merge, list) else merge.replace(" ", "") for merge in model["merges"]
    }
    made |= {token["content"] for token in tokenizer["added_tokens"]}
    return [token for token in model["vocab"] if len(token) > 1 and token not in made]


def merges_out_of_order(tokenizer: dict[str, Any]) -> list[str]:
    """Return the tokens of a `tokenizer.json` whose merge comes after a later token's.

    Byte-pair encoding numbers tokens in the order of their merges, so the order reveals merges or numbers of
    another vocabulary.
    """
    vocabulary, merges = tokenizer["model"]["vocab"], tokenizer["model"].get("merges", [])
    made = ["".join(x) if isinstance(x, list) else x.replace(" ", "") for x in merges]
    known = [token for token in made if token in vocabulary]
    return [token for before, token in pairwise(known) if vocabulary[before] > vocabulary[token]]


def _check_marks(tokenizer: Any, settings: Any, folder: Path) -> None:
    """Raise UserError unless a tokenizer's special tokens have the numbers that the model expects."""
    marks = {
        "<|startoftranscript|>": settings.decoder_start_token_id,
        "<|notimestamps|>": settings.no_timestamps_token_id,
        "<|endoftext|>": settings.eos_token_id,
        **(getattr(settings, "lang_to_id", None) or {}),
        **{f"<|{task}|>": number for task, number in (getattr(settings, "task_to_id", None) or {}).items()},
    }
    for mark, number in marks.items():
        if (found := tokenizer.convert_ids_to_tokens(number)) != mark:
            raise UserError(
                f"model={folder}: expected the token {mark} at {number}, as in generation_config.json, found "
                f"{found!r}: the tokenizer is another model's"
            )


def _settings(config: Any, folder: Path, language: str) -> dict[str, str]:
    """Return the settings of `generate` that select a language; empty for a model with only one."""
    known = getattr(config, "lang_to_id", None) if getattr(config, "is_multilingual", True) else None
    if not known:
        if language not in ("", "en"):
            raise UserError(f"language={language}: expected en, the only language of {folder}")
        return {}
    codes = sorted(code.strip("<|>") for code in known)
    if language not in codes:
        found = language or "none"
        raise UserError(f"language={language}: expected one of {', '.join(codes)}; found {found}")
    return {"language": language, "task": "transcribe"}


def normaliser(spelling: dict[str, str] | None, language: str) -> Callable[[str], str]:
    """Return Whisper's text normalisation (appendix C of the paper), after joining spelled letters, `p. b.`.

    English: numbers as digits, contractions written out, American spelling by a table that a folder may have.
    Other languages: numbers as words if known, lower case, no signs.
    """
    from transformers.models.whisper.english_normalizer import BasicTextNormalizer, EnglishTextNormalizer

    english = language == "en"
    normalise: Any = EnglishTextNormalizer(spelling or {}) if english else BasicTextNormalizer()

    def normalised(text: str) -> str:
        text = SPELT.sub(lambda match: re.sub(r"[. ]", "", match[0]) + " ", text)
        text = text if english else spoken_numbers(text, language)
        # Part by part: otherwise English numerals on both sides of a pause would become one number.
        return " ".join(" ".join(map(normalise, PAUSE.split(text))).split())

    return normalised
