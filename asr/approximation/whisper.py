"""OpenAI's Whisper as transformers saves it: encoder states, transcripts, and forced transcripts.

Radford et al., *Robust Speech Recognition via Large-Scale Weak Supervision* (2022).
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from asr.approximation.inputs import JoinedInput
from asr.approximation.options import FULL, rival_of
from asr.approximation.pretrained import TransformersModel, require_model
from asr.attention.transformers_adapter import quiet
from asr.config.schedule import layer_factors
from asr.data.audio_file import Samples
from asr.errors import UserError
from asr.files import read_json
from asr.model.pretrained_whisper import WhisperEncoder
from asr.text.numbers import spoken_numbers

PAUSE = re.compile(r"(?<=[.,:;!?]) ")
SPELT = re.compile(r"\b(?:[^\W\d_]\. ?){2,}")  # p. b. x., U.S.A.


class Whisper(TransformersModel):
    """A Whisper model; the attention of its encoder is exchanged, that of its decoder stays.

    Args:
        folder: see `TransformersModel`; the processor has a tokenizer and a feature extractor.
        device: device to compute on.
        language: code of the language, e.g. `de`; empty: English, if the model knows no other.

    Attributes:
        rate: sample rate in Hz.
        longest_s: duration of every input, with padding.
        positions: encoder positions of every input.
        layers: number of encoder layers.
        measures: see `asr.approximation.ctc_model.CTCModel`.

    Raises:
        UserError: see `TransformersModel`; another model than Whisper, or a language that it doesn't know.
    """

    def __init__(self, folder: Path, device: str, language: str) -> None:
        require_model(folder)
        kind = read_json(folder / "config.json", "the configuration of a transformers model").get(
            "model_type"
        )
        if kind != "whisper":
            raise UserError(f"model={folder}: expected a Whisper model for transcription, found {kind!r}")
        self.rival = "", ""
        super().__init__(folder, "WhisperForConditionalGeneration", "WhisperProcessor", device)
        self.extractor, self.tokenizer = self.processor.feature_extractor, self.processor.tokenizer
        stored = json.loads(self.tokenizer.backend_tokenizer.to_str())
        expected = f"model={folder}: expected a tokenizer that cuts texts as in training, found"
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
        config, frames = self.model.config, 2 * self.model.config.max_source_positions
        found = self.extractor.feature_size, self.extractor.nb_max_frames
        if found != (config.num_mel_bins, frames):
            raise UserError(
                f"model={folder}: expected features of {config.num_mel_bins} bins × {frames} frames, found "
                f"an extractor of {found[0]} × {found[1]}"
            )
        self.rate: int = self.extractor.sampling_rate
        self.longest_s: float = self.extractor.chunk_length
        self.positions: int = self.model.config.max_source_positions
        settings = self.model.generation_config
        for name in ("decoder_start_token_id", "no_timestamps_token_id", "eos_token_id"):
            if not isinstance(getattr(settings, name, None), int):
                raise UserError(f"model={folder}: expected {name} in generation_config.json, found none")
        _check_marks(self.tokenizer, settings, folder)
        self.settings = _settings(settings, folder, language)
        self.ours = WhisperEncoder(self.model.model.encoder, FULL, "auto").eval()
        self.normalise = _normaliser(self.tokenizer.english_spelling_normalizer, language or "en")

    measures: ClassVar = {
        "NLL": ("nll", "tokens"),
        "top-1": ("correct", "tokens"),
        "KL": ("divergence", "tokens"),
        "encoder": ("difference", ""),
    }

    @property
    def layers(self) -> int:
        """Number of encoder layers."""
        return int(self.model.config.encoder_layers)

    def length(self, duration_s: float) -> int:
        """Return the encoder positions of an input."""
        return self.positions

    def check(self, speech: JoinedInput) -> None:
        """Raise UserError for an input longer than the model's, or a transcript longer than the decoder."""
        most, longest = self.model.config.max_target_positions, speech.longest
        if longest.duration > self.longest_s:
            raise UserError(
                f"utterance {longest.id!r}: expected at most {self.longest_s:g} s, Whisper's longest "
                f"input, found {longest.duration:.2f} s"
            )
        tokens, known = self.tokens(speech.text), self.model.config.vocab_size
        if (found := len(tokens)) > most:
            raise UserError(
                f"utterance {speech.id!r}: expected a transcript of at most {most} tokens, found {found}"
            )
        read = self.tokenizer.decode(tokens[len(self.prompt) : -1], clean_up_tokenization_spaces=False)
        if self.normalise(read) != self.normalise(speech.text) or max(tokens) >= known:
            raise UserError(
                f"utterance {speech.id!r}: expected {speech.text[:100]!r} in the model's {known:,} tokens, "
                f"found {read[:100]!r}: the tokenizer is another model's"
            )

    def reference(self, states_BNM: Tensor, texts: list[str]) -> list[tuple[Tensor, Tensor]]:
        """Return encoder states [N, M] and log-probabilities [U, V] of each input under full attention."""
        forced = self.forced(states_BNM, texts)
        return [(states, log_UV) for states, (_, log_UV) in zip(states_BNM, forced, strict=True)]

    def judged(self, states_BNM: Tensor, texts: list[str], reference: Any) -> list[dict[str, Any]]:
        """Return the transcript of each input, and sums over its forced tokens.

        `nll` (nats), `correct` (most probable tokens that are right) and `divergence` (Kullback–Leibler, from
        full attention's distribution to this one's, nats) are sums over `tokens`; `difference` is the norm of
        the encoder states' difference to full attention's, divided by that of the latter.
        """
        kept = []
        for text, states, (labels_U, log_UV), (full, full_UV) in zip(
            self.transcripts(states_BNM), states_BNM, self.forced(states_BNM, texts), reference, strict=True
        ):
            divergence_U = (full_UV.exp() * (full_UV - log_UV)).sum(-1)
            kept.append(
                {
                    "text": text,
                    "tokens": len(labels_U),
                    "nll": -float(log_UV.gather(-1, labels_U[:, None]).double().sum()),
                    "correct": int((log_UV.argmax(-1) == labels_U).sum()),
                    "divergence": float(divergence_U.double().sum()),
                    "difference": float((states - full).norm() / full.norm()),
                }
            )
        return kept

    def batch(self, inputs: Sequence[JoinedInput]) -> dict[str, Tensor]:
        """Return the log-mel features of a batch, [B, mel bins, frames]."""
        return self.features([speech.samples(self.rate) for speech in inputs])

    def features(self, audio: list[Samples]) -> dict[str, Tensor]:
        """Return log-mel features of samples at `rate`, extended or cut to an input's length, and `heard_B`.

        The latter are the encoder positions of the samples alone.
        """
        found = self.extractor(audio, sampling_rate=self.rate, return_tensors="pt")
        shift = 2 * self.extractor.hop_length
        heard_B = torch.tensor([-(-len(samples) // shift) for samples in audio], device=self.device)
        return {"input_features": found.input_features.to(self.device), "heard_B": heard_B}

    def use(self, attention: str, backend: str) -> None:
        """Exchange the attention, or make the encoder cheaper and keep full attention."""
        self.rival = kind, value = rival_of(attention)
        super().use(FULL if kind else attention, backend)
        if kind == "layers" and int(value) > self.layers:
            raise UserError(f"{attention}: expected at most {self.layers}, the layers of {self.folder}")
        if kind == "frames":
            merged = re.fullmatch(r"pad-([1-9]\d{0,3})", value)
            self.silence = int(merged[1]) if merged else 1
            self.ours.factors = layer_factors("1" if merged else value, self.layers)

    @torch.inference_mode()
    def run(self, inputs: dict[str, Tensor], attention: str) -> Any:
        """Return the states of the encoder, [B, N, M]; errors as in `TransformersModel`."""
        kind, _ = rival_of(attention)
        return self.forward(inputs) if kind == "frames" else super().run(inputs, FULL if kind else attention)

    def forward(self, inputs: dict[str, Tensor]) -> Any:
        """Return the states of the encoder, [B, N, M]."""
        features, (kind, value) = inputs["input_features"], self.rival
        if kind != "frames":
            encoder = self.model.model.encoder
            with _with_layers(encoder, int(value)) if kind else nullcontext():
                return encoder(features).last_hidden_state
        lengths = features.new_full(features.shape[:1], features.shape[2], dtype=torch.int64)
        silence = (inputs["heard_B"], self.silence) if self.silence > 1 else None
        return self.ours(features.mT, lengths, silence=silence)[0]

    def tokens(self, text: str) -> list[int]:
        """Return the prompt, the tokens of a transcript and the end mark, as the model was trained."""
        found: list[int] = self.tokenizer(f" {text.strip()}", add_special_tokens=False)["input_ids"]
        return [*self.prompt, *found, self.model.generation_config.eos_token_id]

    @property
    def prompt(self) -> list[int]:
        """Tokens before a transcript: start, language and task if there are several, no time stamps."""
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
            For each row, the labels [U], which are the tokens of the transcript and the end mark, and the
            log-probabilities [U, V].
        """
        rows = [self.tokens(text) for text in texts]
        width, first = max(map(len, rows)) - 1, len(self.prompt) - 1
        padded = [row[:-1] + [row[-1]] * (width + 1 - len(row)) for row in rows]
        logits = self.model(
            encoder_outputs=(states_BNM,), decoder_input_ids=torch.tensor(padded, device=self.device)
        ).logits
        return [
            (torch.tensor(row[first + 1 :], device=self.device), found[first : len(row) - 1].log_softmax(-1))
            for row, found in zip(rows, logits, strict=True)
        ]

    @torch.inference_mode()
    def transcripts(self, states_BNM: Tensor) -> list[str]:
        """Return the texts that greedy search finds.

        They have at most half as many tokens as the decoder has positions, as in OpenAI's program.
        """
        from transformers.modeling_outputs import BaseModelOutput

        with quiet():  # it warns of settings that it sets itself
            found = self.model.generate(
                encoder_outputs=BaseModelOutput(last_hidden_state=states_BNM),
                do_sample=False,
                num_beams=1,
                max_new_tokens=self.model.config.max_target_positions // 2,
                **self.settings,
            )
        texts: list[str] = self.tokenizer.batch_decode(found, skip_special_tokens=True)
        return [text.strip() for text in texts]


def tokens_without_merge(tokenizer: dict[str, Any]) -> list[str]:
    """Return the tokens of a `tokenizer.json` that no text becomes, because its merges don't make them.

    Programs that took the first merge, `Ġ t`, for a header lost it. The model never saw what ` the` becomes
    without it.
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
    """Return the tokens of a `tokenizer.json` whose merge comes after that of a later token.

    Byte-pair encoding numbers its tokens as it finds their merges, so merges or numbers of another vocabulary
    show in their order.
    """
    vocabulary, merges = tokenizer["model"]["vocab"], tokenizer["model"].get("merges", [])
    made = ["".join(x) if isinstance(x, list) else x.replace(" ", "") for x in merges]
    known = [token for token in made if token in vocabulary]
    return [token for before, token in pairwise(known) if vocabulary[before] > vocabulary[token]]


def _check_marks(tokenizer: Any, settings: Any, folder: Path) -> None:
    """Raise UserError unless a tokenizer has Whisper's marks at the model's numbers of them."""
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


@contextmanager
def _with_layers(encoder: Any, count: int) -> Iterator[None]:
    """Leave out all but some layers of an encoder, evenly spread: the first, third, … with half of them."""
    layers = encoder.layers
    encoder.layers = type(layers)(layers[index * len(layers) // count] for index in range(count))
    try:
        yield
    finally:
        encoder.layers = layers


def _settings(config: Any, folder: Path, language: str) -> dict[str, str]:
    """Return the settings of `generate` that choose a language; empty for a model that knows one only."""
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


def _normaliser(spelling: dict[str, str] | None, language: str) -> Callable[[str], str]:
    """Return Whisper's text normalisation (appendix C of the paper), after joining letters with full stops.

    English: numbers as digits, contractions written out, American spelling by a table that a folder may have;
    other languages: numbers as words, if they are known, in lower case without signs.
    """
    from transformers.models.whisper.english_normalizer import BasicTextNormalizer, EnglishTextNormalizer

    english = language == "en"
    normalise: Any = EnglishTextNormalizer(spelling or {}) if english else BasicTextNormalizer()

    def normalised(text: str) -> str:
        text = SPELT.sub(lambda found: re.sub(r"[. ]", "", found[0]) + " ", text)
        text = text if english else spoken_numbers(text, language)
        # Part by part: English numerals on both sides of a pause would become one number.
        return " ".join(" ".join(map(normalise, PAUSE.split(text))).split())

    return normalised
