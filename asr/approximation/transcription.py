"""Transcription as a task: inputs from manifests, and measures against full attention."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from asr.approximation.ctc_model import CTCModel, Open
from asr.approximation.inputs import PAUSE_S, JoinedInput
from asr.approximation.options import Options
from asr.approximation.tasks import Indices, Scored, pooled
from asr.approximation.whisper import Whisper
from asr.config import refuse
from asr.data.concatenate import packed
from asr.data.manifest import manifest_digest, read_cuts
from asr.data.places import manifest_path
from asr.errors import UserError
from asr.files import read_json
from asr.model.hub import local_folder
from asr.scoring.error_rates import ErrorCounts

if TYPE_CHECKING:  # lhotse loads PyTorch, which takes seconds
    pass


class TranscriptionTask:
    """Transcripts of recordings by Whisper or a CTC model, and the transcripts of the manifest forced on it.

    Args:
        name: name of the task.
        open_model: function that opens a CTC model.
        options: options of the command: `data`, `splits`, `join_s`, `language`, `examples`.

    Attributes:
        groups: inputs that are resampled together: each alone.

    Raises:
        UserError: a missing or broken manifest.
    """

    timed = "encoder"

    def __init__(self, name: str, options: Options, open_model: Open | None) -> None:
        self.name, self.options, self.open_model = name, options, open_model
        places = [manifest_path(str(options.data_of(name)), split) for split in options.splits]
        self.paths = list(dict.fromkeys(places))
        if self.paths == [options.data_of(name)]:
            refuse(options, ["splits"], f"with data={options.data}, only with a prepared folder")
        cuts = [cut for path in self.paths for cut in read_cuts(path)]
        # Without a limit, no utterance has room for another.
        groups = packed([cut.duration for cut in cuts], options.join_s, PAUSE_S)
        self.examples = [[cuts[index] for index in group] for group in groups][: options.examples or None]
        self.groups: list[Indices] = [np.array([index]) for index in range(len(self.examples))]

    def digest(self) -> list[str]:
        """Return hashes of the manifests."""
        return [manifest_digest(path) for path in self.paths]

    def load(self, folder: Path, device: str) -> Whisper | CTCModel:
        """Return the model in a folder, or in a repository of the Hub."""
        self.model: Whisper | CTCModel
        folder = local_folder(folder)
        if is_whisper(folder):
            self.model = Whisper(folder, device, self.options.language)
            if self.options.join_s > 30:
                raise UserError(f"join_s={self.options.join_s:g}: expected at most 30 for Whisper")
        else:
            layers = ",".join(map(str, self.options.layers))
            for name, value in (("language", self.options.language), ("layers", layers)):
                if value:
                    raise UserError(f"{name}={value}: has no effect with a CTC model")
            assert self.open_model is not None
            self.model = CTCModel(*self.open_model(folder, device), folder)
        return self.model

    def windows(self) -> list[JoinedInput]:
        """Return the inputs.

        Raises:
            UserError: an input is longer than the model's, or its transcript longer than the decoder.
        """
        found = []
        for i, cuts in enumerate(self.examples):
            duration_s = sum(cut.duration for cut in cuts) + PAUSE_S * (len(cuts) - 1)
            found.append(JoinedInput(i, cuts, self.model.length(duration_s)))
            self.model.check(found[-1])
        return found

    def reference(self, output: Any, windows: list[JoinedInput]) -> Any:
        """Return what `keep` compares with: the output under full attention, and what follows from it."""
        return self.model.reference(output, [speech.text for speech in windows])

    def keep(self, output: Any, windows: list[JoinedInput], reference: Any) -> list[dict[str, Any]]:
        """Return the transcript of each input, and sums for the model's measures."""
        return self.model.judged(output, [speech.text for speech in windows], reference)

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
        metrics = {"WER": pooled([count.errors for count in counts], words)}
        for name, (amount, over) in self.model.measures.items():
            sizes = [item[over] if over else 1 for item in kept]
            metrics[name] = pooled([item[amount] for item in kept], sizes)
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


def is_whisper(folder: Path) -> bool:
    """Return whether a folder's configuration is Whisper's."""
    file = folder / "config.json"
    return file.is_file() and read_json(file, "a configuration").get("model_type") == "whisper"
