"""Recognisers with a CTC head as the evaluation of exchanged attention sees them."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from asr.approximation.inputs import JoinedInput
from asr.approximation.options import FULL, rival_of
from asr.errors import UserError
from asr.losses.ctc import BLANK
from asr.model.acoustic_model import AcousticModel
from asr.search.greedy import greedy_search
from asr.text.normalise import normalise
from asr.text.tokenizer import Tokenizer

Opened = tuple[AcousticModel, Tokenizer]
Open = Callable[[Path, str], Opened]  # a run, or a published model, on a device


class CTCModel:
    """A model with a CTC head; greedy search.

    Args:
        model, tokenizer: what `Recognizer.load` gives.
        source: where they come from, for messages.

    Attributes:
        measures: names of measures, each with the amount that `judged` returns and what it is a sum over.
        layers: number of attention layers.

    Raises:
        UserError: another topology than CTC, or a tokenizer of phones.
    """

    measures: ClassVar = {
        "NLL": ("nll", "tokens"),
        "KL": ("divergence", "frames"),
        "changed": ("changed", "frames"),
    }

    def __init__(self, model: AcousticModel, tokenizer: Tokenizer, source: Path) -> None:
        if model.config.topology != "ctc" or tokenizer.unit == "phone":
            raise UserError(
                f"model={source}: expected a CTC model of characters or pieces, found another one"
            )
        self.model, self.tokenizer = model.eval(), tokenizer
        self.rate, self.layers = model.sample_rate, len(model.attention_layers())
        self.frames, self.device = model.config.model.frames, str(model.device)

    def digest(self) -> list[str]:
        """Return hashes of weights and vocabulary."""
        return [self.model.digest(), self.tokenizer.digest]

    def normalise(self, text: str) -> str:
        """Return the words in lower case without punctuation, as they are compared.

        Example:
            >>> CTCModel.normalise(None, "It's 10, Mr. X!")
            "it's 10 mr x"
        """
        words = normalise(text.casefold(), "words")
        return " ".join(re.sub("[-<>_]", " ", words).split())  # also of tags and hyphenated words

    def length(self, duration_s: float) -> int:
        """Return the encoder frames of an input."""
        return max(1, self.model.encoder_frames(duration_s))

    def check(self, speech: JoinedInput) -> None:
        """Do nothing: inputs have any length."""

    def use(self, attention: str, backend: str) -> None:
        """Exchange the attention, or the schedule of frames, with full attention."""
        _, frames = rival_of(attention)
        self.model.set_attention(FULL if frames else attention, backend)
        self.model.set_frames(frames or self.frames)

    @torch.inference_mode()
    def batch(self, inputs: Sequence[JoinedInput]) -> dict[str, Tensor]:
        """Return features [B, T, F] and valid frames [B] of a batch."""
        audio = [torch.as_tensor(speech.samples(self.rate)).float() for speech in inputs]
        samples_BS = torch.nn.utils.rnn.pad_sequence(audio, batch_first=True)
        lengths_B = torch.tensor([len(own) for own in audio])
        features, frames = self.model.input(samples_BS.to(self.device), lengths_B.to(self.device))
        return {"features": features, "lengths": frames}

    @torch.inference_mode()
    def run(self, inputs: dict[str, Tensor], attention: str) -> list[Tensor]:
        """Return the log-probabilities of each input, [T, V]."""
        log_probs, frames_B = self.model.emit(**inputs)
        return [own[:frames] for own, frames in zip(log_probs[-1], frames_B.tolist(), strict=True)]

    def reference(self, output: list[Tensor], texts: list[str]) -> list[Tensor]:
        """Return the log-probabilities under full attention."""
        return output

    def judged(self, output: list[Tensor], texts: list[str], reference: list[Tensor]) -> list[dict[str, Any]]:
        """Return the transcript of each input, and sums over its labels or frames.

        `nll`: negative log-likelihood of the transcript in nats, over `tokens`; over `frames`, `divergence`
        is the Kullback–Leibler divergence from full attention's distribution to this one's in nats, and
        `changed` counts frames with another best output than under full attention.

        Raises:
            UserError: a transcript that is longer than its frames, or that the vocabulary can't write.
        """
        kept = []
        for log_TV, full_TV, text in zip(output, reference, texts, strict=True):
            labels, frames = self.tokenizer.encode(text), torch.tensor([len(log_TV)])
            sizes = frames, torch.tensor([len(labels)])
            targets = torch.tensor([labels])
            nll = F.ctc_loss(log_TV.cpu()[:, None], targets, *sizes, blank=BLANK, reduction="sum")
            if not labels or not bool(nll.isfinite()):
                raise UserError(
                    f"transcript {text[:40]!r}: expected labels for {len(log_TV)} frames, found {len(labels)}"
                )
            (path,) = greedy_search(log_TV.cpu()[None], frames)
            divergence_T = (full_TV.exp() * (full_TV - log_TV)).nan_to_num().sum(-1)
            kept.append(
                {
                    "text": self.tokenizer.text(path.ids),
                    "tokens": len(labels),
                    "frames": len(log_TV),
                    "nll": float(nll),
                    "divergence": float(divergence_T.double().sum()),
                    "changed": int((log_TV.argmax(-1) != full_TV.argmax(-1)).sum()),
                }
            )
        return kept
