"""Transcription with Whisper as a task: inputs from manifests, and measures against full attention."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from asr.approximation.options import Options
from asr.approximation.tasks import Indices, Scored, pooled
from asr.approximation.whisper import Whisper
from asr.data.audio import load_cut
from asr.data.audio_file import Samples
from asr.data.concatenate import join, packed
from asr.data.manifest import manifest_digest, read_cuts
from asr.data.places import manifest_path
from asr.errors import UserError
from asr.scoring.error_rates import ErrorCounts

if TYPE_CHECKING:  # lhotse loads PyTorch, which takes seconds
    from lhotse import MonoCut

PAUSE_S = 0.5  # between utterances that are one input
Reference = list[tuple[Tensor, Tensor]]  # encoder states [N, M] and log-probabilities [U, V] of each input


@dataclass(frozen=True)
class JoinedInput:
    """Utterances that are one input of the model, joined with pauses.

    Attributes:
        number: position among the inputs, which decides on the pauses.
        cuts: utterances.
        length: encoder positions.
    """

    number: int
    cuts: "Sequence[MonoCut]"
    length: int

    @property
    def id(self) -> str:
        """Id of the first utterance."""
        return str(self.cuts[0].id)

    @property
    def text(self) -> str:
        """Transcripts, with spaces between them."""
        return " ".join(cut.supervisions[0].text for cut in self.cuts)

    def samples(self, rate: int) -> Samples:
        """Return the samples at a rate in Hz."""
        parts = [load_cut(cut, rate) for cut in self.cuts]
        return join(parts, rate, seed=0, epoch=0, group=(self.number,), pause_s=(PAUSE_S, PAUSE_S))


class TranscriptionTask:
    """Transcripts of recordings by Whisper, and the transcripts of the manifest forced on it.

    Args:
        name: name of the task.
        options: options of the command: `data`, `splits`, `join_s`, `language`, `examples`.

    Attributes:
        groups: inputs that are resampled together: each alone.

    Raises:
        UserError: a missing or broken manifest.
    """

    timed = "encoder"

    def __init__(self, name: str, options: Options) -> None:
        self.name, self.options = name, options
        places = [manifest_path(str(options.data_of(name)), split) for split in options.splits]
        self.paths = list(dict.fromkeys(places))
        cuts = [cut for path in self.paths for cut in read_cuts(path)]
        # Without a limit, no utterance has room for another.
        groups = packed([cut.duration for cut in cuts], options.join_s, PAUSE_S)
        self.examples = [[cuts[index] for index in group] for group in groups][: options.examples or None]
        self.groups: list[Indices] = [np.array([index]) for index in range(len(self.examples))]

    def digest(self) -> list[str]:
        """Return hashes of the manifests."""
        return [manifest_digest(path) for path in self.paths]

    def load(self, folder: Path, device: str) -> Whisper:
        """Return the model in a folder."""
        self.model = Whisper(folder, device, self.options.language)
        return self.model

    def windows(self) -> list[JoinedInput]:
        """Return the inputs.

        Raises:
            UserError: an input is longer than the model's, or its transcript longer than the decoder.
        """
        model = self.model
        found = [JoinedInput(i, cuts, model.positions) for i, cuts in enumerate(self.examples)]
        most = model.model.config.max_target_positions
        for speech in found:
            longest = max(speech.cuts, key=lambda cut: cut.duration)
            if longest.duration > model.longest_s:
                raise UserError(
                    f"utterance {longest.id!r}: expected at most {model.longest_s:g} s, Whisper's longest "
                    f"input, found {longest.duration:.2f} s"
                )
            if (tokens := len(model.tokens(speech.text))) > most:
                raise UserError(
                    f"utterance {speech.id!r}: expected a transcript of at most {most} tokens, found {tokens}"
                )
        return found

    def reference(self, states_BNM: Tensor, windows: list[JoinedInput]) -> Reference:
        """Return what `keep` compares with: states and distributions under full attention."""
        forced = self.model.forced(states_BNM, [speech.text for speech in windows])
        return [(states, log_UV) for states, (_, log_UV) in zip(states_BNM, forced, strict=True)]

    def keep(self, states_BNM: Tensor, windows: list[JoinedInput], reference: Any) -> list[dict[str, Any]]:
        """Return the transcript of each input, and sums over its forced tokens.

        `nll` (nats), `correct` (most probable tokens that are right) and `divergence` (Kullback–Leibler, from
        full attention's distribution to this one's, nats) are sums over `tokens`; `difference` is the norm of
        the encoder states' difference to full attention's, divided by that of the latter.
        """
        texts = self.model.transcripts(states_BNM)
        forced = self.model.forced(states_BNM, [speech.text for speech in windows])
        kept = []
        for text, states, (labels_U, log_UV), (full, full_UV) in zip(
            texts, states_BNM, forced, reference, strict=True
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

    def score(self, kept: list[dict[str, Any]]) -> Scored:
        """Return predictions and scores; `kept` is in the order of `windows`."""
        normalise = self.model.normalise
        references = [  # utterance by utterance: two numerals that meet are not one number
            " ".join(normalise(cut.supervisions[0].text) for cut in cuts).split() for cuts in self.examples
        ]
        heard = [normalise(item["text"]).split() for item in kept]
        counts = [ErrorCounts.between([one], [other]) for one, other in zip(references, heard, strict=True)]
        words = [count.length for count in counts]
        if not sum(words):
            raise UserError(f"data={self.options.data}: expected words to score against, found none")
        sums = {
            name: [item[name] for item in kept] for name in ("nll", "correct", "divergence", "difference")
        }
        tokens = [item["tokens"] for item in kept]
        metrics = {
            "WER": pooled([count.errors for count in counts], words),
            "NLL": pooled(sums["nll"], tokens),
            "top-1": pooled(sums["correct"], tokens),
            "KL": pooled(sums["divergence"], tokens),
            "encoder": pooled(sums["difference"], [1] * len(kept)),
        }
        predictions = [
            {
                "utterances": [cut.id for cut in cuts],
                "reference": " ".join(reference),
                "normalised": " ".join(words),
                "errors": count.errors,
                **item,
            }
            for cuts, reference, words, count, item in zip(
                self.examples, references, heard, counts, kept, strict=True
            )
        ]
        return Scored(metrics, {"predictions": predictions})
