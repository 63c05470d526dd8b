"""Alignment of the transcripts of a split or of one audio file; finished utterances are skipped."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from asr.config import refuse, values_affecting
from asr.data.manifest import read_cuts
from asr.data.places import chosen_manifest, place_in_run, split_of
from asr.errors import UserError
from asr.files import check_writable, file_state
from asr.recognizer import Recognizer
from asr.records.job import Job, identity
from asr.records.options import parse_shard
from asr.records.results import Results
from asr.records.run_folder import ALIGNING, RunFolder
from asr.transcription.align import align, groups_to_align, transcribed_cuts, transcribed_file, write
from asr.transcription.batches import unfinished
from asr.transcription.options import AlignOptions
from asr.transcription.posteriors import identity_of
from asr.transcription.replacing import check_replaced, origin_of


class Alignment:
    """The work of `asr align`.

    Args:
        model: run folder, checkpoint or published model.
        audio: audio file to align; None: the split that the options name.
        options: options of the command.

    Attributes:
        folder: folder of the alignments.
        total: number of utterances, in the shard if `shard` is set.
        results: results by position of the utterance, including those of an earlier start.

    Raises:
        UserError: options contradict each other, the transcript or manifest is missing, or the model can't be
            loaded.
    """

    def __init__(self, model: Path, audio: Path | None, options: AlignOptions) -> None:
        self.options = options
        self.recognizer = Recognizer.load_as(model, options)
        run_folder = self.recognizer.run_folder
        assert run_folder is not None
        self.origin: dict[str, Any] = {}  # of a split's alignments
        inputs = identity_of(self.recognizer.model)
        if audio:
            refuse(options, ("split", "data", "shard"), f"to align {audio}")
            self.folder, self.name = Path(options.output or audio.parent), audio.stem
            inputs |= {"audio": file_state(audio), "text": file_state(audio.with_suffix(".txt"))}
            self.utterances = [transcribed_file(audio, options.text, self.recognizer.tokenizer)]
        else:
            if options.text:
                raise UserError(f"text={options.text!r}: expected an audio file to align it with, found none")
            manifest = chosen_manifest(options.data, options.split, run_folder)
            assert self.recognizer.file is not None
            self.utterances = transcribed_cuts(read_cuts(manifest))
            self.origin = origin_of(self.recognizer.model, self.recognizer.file, manifest, options)
            inputs["data"] = self.origin["data"]
            place = place_in_run(manifest, run_folder)
            self.folder = Path(options.output or RunFolder(run_folder).aligned(place))
            check_replaced(self.folder / ALIGNING, self.origin, chosen=bool(options.output))
            self.name = split_of(manifest)
        check_writable(self.folder / self.table)
        shard = parse_shard(options.shard)
        job = Job.in_folder(
            self.folder, identity("align", values_affecting(options, "result"), **inputs), shard
        )
        self.results = Results(job, [str(i) for i in range(len(self.utterances))])
        groups = unfinished(groups_to_align(self.recognizer.model, self.utterances, options), shard, ())
        self.total = sum(map(len, groups))
        self.groups = unfinished(groups, None, self.results.found)

    @property
    def table(self) -> str:
        """Name of the JSON lines file with an entry per utterance."""
        return f"{self.name}.jsonl"

    @property
    def left(self) -> int:
        """Number of utterances that `run` aligns."""
        return sum(map(len, self.groups))

    def run(self) -> Iterator[int]:
        """Align what is left and write the alignments; yield the position of each utterance."""
        model, tokenizer, options = self.recognizer.model, self.recognizer.tokenizer, self.options
        aligned = align(
            model,
            tokenizer,
            self.utterances,
            self.groups,
            options,
            min_fit=options.min_fit,
            name=self.name,
        )
        for position, result in aligned:
            if position not in self.results.found:  # else aligned again, because it shares a group
                self.results.add(position, result)
            yield position
        if not options.shard:
            write(self.results, self.folder, self.origin)
        self.results.job.finish(self.origin)

    def fits(self) -> list[tuple[float, str]]:
        """Return the fit of each aligned utterance, 0 … 1, and its name."""
        return [(entry["fit"], entry["id"]) for entry in self._entries()]

    def unknown(self) -> Counter[str]:
        """Return the words outside the model's vocabulary, whose times are unreliable."""
        oov = self.recognizer.tokenizer.oov
        texts = (" ".join(word["word"] for word in entry["words"]) for entry in self._entries())
        return Counter(word for text in texts for word in oov(text))

    def _entries(self) -> list[dict[str, Any]]:
        return [json.loads(x.files[self.table]) for x in self.results.found.values() if x.files]
