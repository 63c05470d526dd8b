"""Speech models for the workload of transcription: Whisper, and models with a CTC head.

Each runs in any `Variant`, and is compared with its own output under full attention.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from asr.data.audio_file import Samples
from asr.environment import Precision
from asr.errors import UserError
from asr.experiment.engines import ENGINE, Encode, build_encoder
from asr.experiment.variant import Variant
from asr.lengths import frames_needed
from asr.losses.ctc import BLANK
from asr.model.acoustic_model import AcousticModel
from asr.model.whisper import Whisper
from asr.scoring.score import scored_phones
from asr.search.greedy import greedy_search
from asr.text.normalise import normalise
from asr.text.tokenizer import Tokenizer

# By name of a measure: the amount of `judged`, and what it is divided by; empty: number of inputs.
Measures = dict[str, tuple[str, str]]


class WhisperTranscriber:
    """Whisper, whose encoder is exchanged and timed.

    Args:
        model: the model.

    Attributes:
        rates: error rates, the main one first: `wer`; `cer` and `wer`; or `per` for phone models.
        measures: measures in addition to the error rate.
        device: device of the weights.
        rate: sample rate in Hz.
        layers: number of layers whose attention is exchanged.
        frames: schedule of frame rates in training.
    """

    measures: ClassVar[Measures] = {
        "nll": ("nll", "tokens"),
        "top-1": ("correct", "tokens"),
        "kl": ("divergence", "tokens"),
        "encoder": ("difference", ""),
    }

    rates: ClassVar[list[str]] = ["wer"]

    def __init__(self, model: Whisper) -> None:
        self.model, self.device, self.rate = model, model.device, model.rate
        self.layers, self.frames = model.layers, "1"
        self.digest, self.batch = model.digest, model.features
        self._peer, self._peers = "", dict[str, Encode]()

    def spoken(self, texts: list[str]) -> list[str]:
        """Return the words, utterance by utterance, so that adjacent numerals don't become one number."""
        return [word for text in texts for word in self.heard(text)]

    def heard(self, text: str) -> list[str]:
        """Return the words by Whisper's rules."""
        return self.model.normalise(text).split()

    def length(self, duration_s: float) -> int:
        """Return the number of encoder positions, the same for every input."""
        return self.model.positions

    def check(self, ident: str, longest_s: float, text: str) -> None:
        """Raise UserError if an utterance exceeds an input, or a transcript the decoder's positions."""
        if longest_s > self.model.longest_s:
            raise UserError(
                f"utterance {ident!r}: expected at most {self.model.longest_s:g} s, Whisper's longest input, "
                f"found {longest_s:.2f} s"
            )
        if text:
            self.model.check_text(text, ident)

    def use(self, variant: Variant, precision: str, backend: str) -> None:
        """Run in a variant from now on, in the variant's precision if it has one, else in `precision`."""
        self._peer = variant.attention.removeprefix(ENGINE) if variant.attention.startswith(ENGINE) else ""
        if self._peer:
            return
        own = variant.precision or precision
        self.model.set_encoder(variant.attention, variant.frames, variant.layers, own, backend)

    def run(self, inputs: dict[str, Tensor]) -> Tensor:
        """Return the states of the encoder, [B, N, M]."""
        if self._peer:
            if self._peer not in self._peers:  # in a first run, which isn't timed
                self._peers[self._peer] = build_encoder(self._peer, self.model.folder)
            with torch.inference_mode():
                return self._peers[self._peer](inputs["features"])
        return self.model.encode(**inputs)

    def own_texts(self, output: Tensor) -> list[str]:
        """Return the transcripts found by greedy search."""
        return self.model.transcripts(output)

    def reference(self, output: Tensor, texts: list[str]) -> tuple[list[str], list[tuple[Tensor, Tensor]]]:
        """Return the transcripts, and encoder states [N, M] and log-probabilities [U, V] of each.

        Raises:
            UserError: the tokenizer isn't the model's.
        """
        self.model.check_own_texts(output)
        forced = self.model.forced(output, texts)
        return texts, [(states, log_UV) for states, (_, log_UV) in zip(output, forced, strict=True)]

    def judged(
        self, output: Tensor, texts: list[str] | None, reference: Any, idents: list[str]
    ) -> list[dict[str, Any]]:
        """Return the transcript of each input, and sums over its forced tokens.

        Without `texts`, return only what compares with full attention. `idents` name the inputs in messages.

        `nll` (nats), `correct` (number of tokens that are the most probable) and `divergence`
        (Kullback–Leibler, from full attention's distribution to this one's, nats) are sums over `tokens`;
        `difference` is the norm of the difference from full attention's encoder states, relative to theirs.
        """
        followed, of_full = reference
        kept: list[dict[str, Any]] = []
        for states, (labels_U, log_UV), (full, full_UV) in zip(
            output, self.model.forced(output, followed), of_full, strict=True
        ):
            divergence_U = (full_UV.exp() * (full_UV - log_UV)).sum(-1)
            found = {
                "tokens": len(labels_U),
                "divergence": float(divergence_U.double().sum()),
                "difference": float((states - full).norm() / full.norm()),
            }
            if texts is not None:
                found["nll"] = -float(log_UV.gather(-1, labels_U[:, None]).double().sum())
                found["correct"] = int((log_UV.argmax(-1) == labels_U).sum())
            kept.append(found)
        if texts is None:
            return kept
        return [{"text": x, **found} for x, found in zip(self.model.transcripts(output), kept, strict=True)]


class CTCTranscriber:
    """A model with a CTC head, which is timed, too; searched greedily.

    It has the attributes and methods of `WhisperTranscriber`.

    Args:
        model, tokenizer: model and tokenizer, from `Recognizer.load`.
        source: their source, for messages.
        phones: maps a transcript to its phones, for a phone model.

    Raises:
        UserError: the topology isn't CTC.
    """

    measures: ClassVar[Measures] = {
        "nll": ("nll", "tokens"),
        "kl": ("divergence", "frames"),
        "changed": ("changed", "frames"),
    }

    def __init__(
        self,
        model: AcousticModel,
        tokenizer: Tokenizer,
        source: str | Path,
        phones: Callable[[str], list[str]] | None = None,
    ) -> None:
        if model.config.topology != "ctc":
            raise UserError(f"model={source}: expected a model with the topology ctc, found another one")
        self.model, self.tokenizer, self.phones = model.eval(), tokenizer, phones
        self.rates = ["per"] if phones else ["cer", "wer"] if tokenizer.unit == "character" else ["wer"]
        self.rate, self.layers = model.sample_rate, len(model.attention_layers())
        self.frames, self.device = model.config.model.frames, str(model.device)

    def digest(self) -> list[str]:
        """Return hashes of weights and vocabulary."""
        return [self.model.digest(), self.tokenizer.digest]

    def spoken(self, texts: list[str]) -> list[str]:
        """Return phones without noises and unknown words, or `plain_words`."""
        if self.phones:
            return [phone for text in texts for phone in scored_phones(self.phones(text))]
        return [word for text in texts for word in plain_words(text)]

    def heard(self, text: str) -> list[str]:
        """Return the same for a recognised text."""
        return scored_phones(text.split()) if self.phones else plain_words(text)

    def length(self, duration_s: float) -> int:
        """Return the number of encoder frames of an input."""
        return max(1, self.model.encoder_frames(duration_s))

    def check(self, ident: str, longest_s: float, text: str) -> None:
        """Do nothing, because inputs may have any length."""

    def use(self, variant: Variant, precision: str, backend: str) -> None:
        """Run in a variant; raise UserError for a number of layers or another program, for Whisper only."""
        if variant.attention.startswith(ENGINE):
            raise UserError(f"peers={variant.attention.removeprefix(ENGINE)}: expected a Whisper folder")
        if variant.layers:
            raise UserError(f"layers={variant.layers}: has no effect with a CTC model")
        self.model.set_attention(variant.attention, backend)
        self.model.set_frames(variant.frames or self.frames)
        self.model.precision = Precision(variant.precision or precision)

    @torch.inference_mode()
    def batch(self, audio: list[Samples]) -> dict[str, Tensor]:
        """Return features [B, T, F] and valid frames [B]."""
        found = [torch.as_tensor(samples).float() for samples in audio]
        samples_BS = torch.nn.utils.rnn.pad_sequence(found, batch_first=True)
        lengths_B = torch.tensor([len(own) for own in found])
        features, frames = self.model.input(samples_BS.to(self.device), lengths_B.to(self.device))
        return {"features": features, "lengths": frames}

    @torch.inference_mode()
    def run(self, inputs: dict[str, Tensor]) -> list[Tensor]:
        """Return the log-probabilities of each input, [T, V]."""
        log_probs, frames_B = self.model.emit(**inputs)
        return [own[:frames] for own, frames in zip(log_probs[-1], frames_B.tolist(), strict=True)]

    def own_texts(self, output: list[Tensor]) -> list[str]:
        """Return empty transcripts, because frames are compared, which don't depend on transcripts."""
        return [""] * len(output)

    def reference(self, output: list[Tensor], texts: list[str]) -> list[Tensor]:
        """Return the log-probabilities under full attention."""
        return output

    def judged(
        self, output: list[Tensor], texts: list[str] | None, reference: list[Tensor], idents: list[str]
    ) -> list[dict[str, Any]]:
        """Return the transcript of each input, and sums over its labels or frames.

        `nll`: negative log-likelihood of the transcript in nats, over `tokens`; over `frames`, `divergence`
        is the Kullback–Leibler divergence from full attention's distribution to this one's in nats, and
        `changed` counts frames with another best output than under full attention.

        Raises:
            UserError: a transcript needs more frames, or can't be written with the vocabulary.
        """
        kept = []
        for index, (log_TV, full_TV) in enumerate(zip(output, reference, strict=True)):
            divergence_T = (full_TV.exp() * (full_TV - log_TV)).nan_to_num().sum(-1)
            found = {
                "frames": len(log_TV),
                "divergence": float(divergence_T.double().sum()),
                "changed": int((log_TV.argmax(-1) != full_TV.argmax(-1)).sum()),
            }
            if texts is not None:
                found = self._recognised(log_TV.cpu(), texts[index], idents[index]) | found
            kept.append(found)
        return kept

    def _recognised(self, log_TV: Tensor, text: str, ident: str) -> dict[str, Any]:
        """Return the recognised transcript, and the likelihood of the true one."""
        labels, frames = self.tokenizer.encode(text), torch.tensor([len(log_TV)])
        sizes = frames, torch.tensor([len(labels)])
        targets = torch.tensor([labels])
        nll = F.ctc_loss(log_TV[:, None], targets, *sizes, blank=BLANK, reduction="sum")
        if not labels or not bool(nll.isfinite()):
            raise UserError(
                f"utterance {ident[:60]!r}: expected a transcript for {len(log_TV)} encoder frames, found "
                f"{len(labels)} labels, which need {frames_needed(labels, 'ctc')}"
            )
        (path,) = greedy_search(log_TV[None], frames)
        tokens = self.tokenizer.tokens
        found = " ".join(tokens(path.ids)) if self.phones else self.tokenizer.text(path.ids)
        return {"text": found, "tokens": len(labels), "nll": float(nll)}


Transcriber = WhisperTranscriber | CTCTranscriber


def plain_words(text: str) -> list[str]:
    """Return the words of a text in lower case without punctuation; hyphens and tags separate words.

    Example:
        >>> plain_words("It's 10, Mr. X-Y!")
        ["it's", '10', 'mr', 'x', 'y']
    """
    return re.sub("[-<>_]", " ", normalise(text.casefold(), "words")).split()
