"""Transcription as the workload of an exchange: utterances of manifests, single or joined."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from asr.config import refuse
from asr.data.audio import load_cut
from asr.data.audio_file import Samples
from asr.data.concatenate import join, packed
from asr.data.facts import audio_facts, recordings_among
from asr.data.manifest import cut_entries, manifest_digest, read_cuts, write_entries
from asr.data.places import is_manifest, manifest_path, split_of
from asr.errors import UserError
from asr.experiment.options import GREEDY, CompareConfig
from asr.experiment.speech import split_data
from asr.experiment.transcribers import CTCTranscriber, Transcriber, WhisperTranscriber
from asr.experiment.variant import Variant
from asr.experiment.workload import Scored
from asr.model.hub import local_folder
from asr.model.whisper import Whisper, is_whisper
from asr.preparation.cuts import recording, utterance_cut
from asr.recognizer import Recognizer
from asr.scoring.error_rates import ErrorCounts
from asr.scoring.statistics import Statistic, pooled
from asr.text.pronunciation import ReferencePhones
from asr.text.tokenizer import PhoneTokenizer

if TYPE_CHECKING:  # lhotse loads PyTorch, which takes seconds
    from lhotse import MonoCut

PAUSE_S = 0.5  # between utterances that are joined to an input
FRAME_MS = 10.0  # unit of the lengths in the results
LONGEST_S = 30.0  # longest input of Whisper


@dataclass(frozen=True)
class JoinedInput:
    """Utterances joined with pauses to one input of the model.

    Attributes:
        number: position among the inputs; determines the pauses.
        cuts: utterances.
        length: number of encoder positions.
    """

    number: int
    cuts: "Sequence[MonoCut]"
    length: int

    @property
    def text(self) -> str:
        """Transcripts, with spaces between them."""
        return " ".join(cut.supervisions[0].text for cut in self.cuts)

    def samples(self, rate: int) -> Samples:
        """Return the samples at a rate in Hz."""
        parts = [load_cut(cut, rate) for cut in self.cuts]
        return join(parts, rate, seed=0, epoch=0, group=(self.number,), pause_s=(PAUSE_S, PAUSE_S))


class Transcription:
    """Transcription of recordings by Whisper or a CTC model; also scores the manifest's transcripts.

    A greedy search doesn't use the manifest's transcripts: it compares variants only with full attention, on
    the model's own transcripts. See `asr.experiment.workload.Exchanged`.

    Args:
        options: options of the comparison.

    Raises:
        UserError: a manifest is missing or broken, the model is of another kind, or an input is too long.
    """

    timed, decoder = "encoder", "greedy"

    def __init__(self, options: CompareConfig) -> None:
        self.options, self.labelled = options, options.sweep != GREEDY
        places = [manifest_path(options.data, split) for split in options.splits]
        self.paths = list(dict.fromkeys(places))
        alone = self.paths == [Path(options.data)]
        if alone:
            refuse(options, ["splits"], f"with data={options.data}, only with a prepared folder")
        self.name = split_of(options.data) if alone else "+".join(dict.fromkeys(options.splits))
        read = {path: read_cuts(path, require_text=self.labelled) for path in self.paths}
        self.data = {
            split_of(str(path)): split_data(path, manifest_digest(path), cuts.durations_s, FRAME_MS)
            for path, cuts in read.items()
        }
        cuts = [cut for part in read.values() for cut in part]
        # Without join_s, no utterance has room for another.
        groups = packed([cut.duration for cut in cuts], options.join_s, PAUSE_S)
        joined = [[cuts[index] for index in group] for group in groups][: options.examples or None]
        self.model, self.source = opened(options, self.paths[0].parent, cuts), options.model
        self.device, self.layers, self.frames = self.model.device, self.model.layers, self.model.frames
        self.items: Sequence[JoinedInput] = [self._input(*numbered) for numbered in enumerate(joined)]
        self.examples = self.units = len(self.items)
        self._own_texts: dict[tuple[int, ...], list[str]] = {}  # key: numbers of the inputs in a batch

    def _input(self, number: int, cuts: "list[MonoCut]") -> JoinedInput:
        duration_s = sum(cut.duration for cut in cuts) + PAUSE_S * (len(cuts) - 1)
        item = JoinedInput(number, cuts, self.model.length(duration_s))
        longest = max(cuts, key=lambda cut: cut.duration)
        self.model.check(longest.id, longest.duration, item.text if self.labelled else "")
        return item

    def settings(self) -> dict[str, Any]:
        """Return all that the outputs depend on, besides the variant."""
        names = ("join_s", "language", "examples", "precision")
        given = {name: getattr(self.options, name) for name in names}
        return {
            "options": given,
            "labelled": None if self.labelled else False,  # as if it weren't there in other journals
            "model": self.model.digest(),
            "data": [split.hash for split in self.data.values()],
        }

    def use(self, variant: Variant) -> None:
        """See `Exchanged`."""
        self.model.use(variant, self.options.precision, self.options.backend)

    def batch(self, items: list[JoinedInput]) -> dict[str, Tensor]:
        """See `Exchanged`."""
        return self.model.batch([speech.samples(self.model.rate) for speech in items])

    def run(self, inputs: dict[str, Tensor]) -> Any:
        """See `Exchanged`."""
        return self.model.run(inputs)

    def reference(self, output: Any, items: list[JoinedInput]) -> Any:
        """See `Exchanged`."""
        texts = self._texts(items)
        if texts is None:
            numbers = tuple(speech.number for speech in items)
            # Computed once, because a search goes over each batch many times.
            texts = self._own_texts.get(numbers) or self.model.own_texts(output)
            self._own_texts[numbers] = texts
        return self.model.reference(output, texts)

    def keep(self, output: Any, items: list[JoinedInput], reference: Any) -> list[dict[str, Any]]:
        """Return the transcript of each input, and sums for the model's measures."""
        idents = [", ".join(cut.id for cut in speech.cuts) for speech in items]
        return self.model.judged(output, self._texts(items), reference, idents)

    def _texts(self, items: list[JoinedInput]) -> list[str] | None:
        return [speech.text for speech in items] if self.labelled else None

    def score(self, kept: list[dict[str, Any]]) -> Scored:
        """Return measures and predictions; `kept` is in the order of `items`."""
        entries = [{"utterances": [cut.id for cut in speech.cuts]} for speech in self.items]
        measures = self._errors(kept, entries) if self.labelled else {}
        for name, (amount, over) in self.model.measures.items():
            if amount in kept[0]:
                sizes = [item[over] if over else 1 for item in kept]
                measures[name] = pooled([item[amount] for item in kept], sizes)
        predictions = [one | item for one, item in zip(entries, kept, strict=True)]
        return Scored(measures, {"predictions": predictions})

    def _errors(self, kept: list[dict[str, Any]], entries: list[dict[str, Any]]) -> dict[str, Statistic]:
        """Return the error rates; add reference, words and errors of the main rate to `entries`."""
        references = [
            self.model.spoken([cut.supervisions[0].text for cut in speech.cuts]) for speech in self.items
        ]
        hypotheses = [self.model.heard(item["text"]) for item in kept]
        if not any(references):
            raise UserError(f"data={self.options.data}: expected words to score against, found none")
        pairs = list(zip(references, hypotheses, strict=True))
        counts = {
            rate: [ErrorCounts.between([_tokens(one, rate)], [_tokens(other, rate)]) for one, other in pairs]
            for rate in self.model.rates
        }
        for entry, (reference, words), count in zip(entries, pairs, counts[self.model.rates[0]], strict=True):
            entry |= {
                "reference": " ".join(reference),
                "normalised": " ".join(words),
                "errors": count.errors,
            }
        return {
            rate: pooled([count.errors for count in found], [count.length for count in found])
            for rate, found in counts.items()
        }


def _tokens(words: list[str], rate: str) -> list[str]:
    return list(" ".join(words)) if rate == "cer" else words


def with_manifest(data: str, folder: Path) -> str:
    """Return a manifest of the recordings in a folder without manifests, written to `folder`; else `data`.

    Raises:
        UserError: a recording is damaged, or has several channels.
    """
    place = Path(data)
    if not place.is_dir() or any(map(is_manifest, place.rglob("*cuts.*"))):
        return data
    cuts = []
    for file in recordings_among(sorted(map(str, place.rglob("*")))):
        samples, rate, channels = audio_facts(file)
        if channels > 1:
            raise UserError(f"{file}: expected one channel, found {channels}")
        name = str(Path(file).relative_to(place))
        cuts.append(utterance_cut(name, recording(name, file, samples, rate), "", ""))
    if not cuts:
        return data
    manifest = folder / "recordings.cuts.jsonl.gz"
    write_entries((entry for _, entry in cut_entries(cuts, None)), manifest)
    return str(manifest)


def opened(options: CompareConfig, data: Path, cuts: "Sequence[MonoCut]") -> Transcriber:
    """Return the model of a run, a folder or the Hub.

    Args:
        options: options of the comparison.
        data: folder of the manifests, for pronunciations.
        cuts: utterances.

    Raises:
        UserError: the model can't transcribe, or an option has no effect with it.
    """
    folder = local_folder(options.model)
    if is_whisper(folder):
        if options.join_s > LONGEST_S:
            raise UserError(f"join_s={options.join_s:g}: expected at most {LONGEST_S:g} for Whisper")
        return WhisperTranscriber(Whisper(folder, options.device, options.language))
    if options.language:
        raise UserError(f"language={options.language}: has no effect with a CTC model")
    recognizer = Recognizer.load(folder, device=options.device, attention="full")
    phones = None
    if isinstance(recognizer.tokenizer, PhoneTokenizer):
        languages = (cut.supervisions[0].language for cut in cuts)
        phones = ReferencePhones.of_data(recognizer.tokenizer, data, languages, g2p=True)
    return CTCTranscriber(recognizer.model, recognizer.tokenizer, options.model, phones)
