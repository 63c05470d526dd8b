"""Writes the files of a prepared folder under temporary names, then moves them into place together."""

import contextlib
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asr.console import counted
from asr.data.entries import check_entry
from asr.data.manifest import cut_entries, write_entries
from asr.errors import UserError
from asr.files import write_bytes
from asr.preparation.problems import Problem, write_problems
from asr.preparation.summary import SplitSummary, TokenizerSummary
from asr.text.files import write_table
from asr.text.lexicon import Lexicon
from asr.text.prepared import parse_tokenizer_name, tokenizer_files
from asr.text.tokenizer import build_tokenizer

if TYPE_CHECKING:  # lhotse loads PyTorch, which takes seconds
    from lhotse import MonoCut

PROBLEMS = "problems.tsv"
UNFINISHED = ".unfinished"  # folder of journals and drafts


class Drafts:
    """Files of a folder, kept in its subfolder `.unfinished/outputs` until all of them are complete.

    As a context manager, it removes drafts that were not put in place.

    Args:
        folder: output folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._place = folder / UNFINISHED / "outputs"
        self.names: set[str] = set()
        self.discard()  # drafts of a killed run

    def __enter__(self) -> "Drafts":
        return self

    def __exit__(self, *error: object) -> None:
        self.discard()

    def path(self, name: str) -> Path:
        """Return the temporary path of the file `name`; its parent folder is created."""
        self.names.add(name)
        draft = self._place / name
        draft.parent.mkdir(parents=True, exist_ok=True)
        return draft

    def drop(self, name: str) -> None:
        """Remove the draft `name`."""
        self.names.discard(name)
        (self._place / name).unlink(missing_ok=True)

    def discard(self) -> None:
        """Remove all drafts."""
        self.names.clear()
        shutil.rmtree(self._place, ignore_errors=True)

    def put_in_place(self, instead_of: Iterable[str]) -> list[str]:
        """Remove the files `instead_of`, move all drafts into place, and return their names, sorted."""
        names = sorted(self.names)
        for name in set(instead_of) - self.names:
            path = self.folder / name
            path.unlink(missing_ok=True)
            if path.parent != self.folder:
                with contextlib.suppress(OSError):  # not empty
                    path.parent.rmdir()
        for name in names:
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            (self._place / name).replace(path)
        return names


def draft_manifests(
    drafts: Drafts,
    splits: "Mapping[str, Iterable[MonoCut]]",
    train: str,
    problem: Callable[[str, str], None],
) -> tuple[list[SplitSummary], list[str]]:
    """Check the cuts and draft <split>.cuts.jsonl.gz; return counts by split and the training transcripts.

    Args:
        drafts: drafts of the output folder.
        splits: cuts by split; iterated once.
        train: name of the training split.
        problem: called with message and kind for every bad cut and every empty split.
    """
    summaries: list[SplitSummary] = []
    transcripts: list[str] = []
    files: set[str] = set()
    for name, cuts in splits.items():
        summary = SplitSummary(name)
        summaries.append(summary)
        manifest = f"{name}.cuts.jsonl.gz"
        texts = transcripts if name == train else None
        checked = _checked(cuts, drafts.folder, summary, files, texts, problem)
        write_entries(checked, drafts.path(manifest))
        if not summary.utterances:
            problem(f"split {name}: expected utterances, found none", "missing_parts")
            drafts.drop(manifest)
    return summaries, transcripts


def _checked(
    cuts: "Iterable[MonoCut]",
    folder: Path,
    summary: SplitSummary,
    files: set[str],
    transcripts: list[str] | None,
    problem: Callable[[str, str], None],
) -> Iterator[dict[str, Any]]:
    """Yield the entries of valid cuts and count them; report the others as problems."""
    ids: set[str] = set()  # unique within a split only: splits may overlap, e.g. a 4,000-utterance subset
    for cut, entry in cut_entries(cuts, folder):
        where = f"split {summary.name}: utterance {cut.id!r}"
        if cut.id in ids:
            problem(f"{where}: expected ids to be distinct, found this one again", "duplicates")
            continue
        ids.add(cut.id)
        try:
            check_entry(entry, where, folder, files)
        except UserError as error:
            problem(str(error), error.kind or "damaged_text")
            continue
        summary.add(cut)
        if transcripts is not None:
            transcripts.append(cut.supervisions[0].text or "")
        yield entry


def draft_lists(
    drafts: Drafts,
    summaries: list[SplitSummary],
    excluded: list[tuple[str, str, str]],
    problems: list[Problem],
) -> None:
    """Draft excluded.tsv, and oov.tsv and problems.tsv if they have entries."""
    write_table(drafts.path("excluded.tsv"), ["utterance", "reason", "text"], sorted(excluded))
    unknown = sum((summary.unknown for summary in summaries), Counter[str]())
    if unknown:
        counts = sorted(unknown.items(), key=lambda word: (-word[1], word[0]))
        write_table(drafts.path("oov.tsv"), ["word", "count"], counts)
    if problems:
        write_problems(drafts.path(PROBLEMS), problems)


def draft_tokenizers(
    drafts: Drafts,
    names: Sequence[str],
    texts: Sequence[str],
    lexicon: Lexicon | None,
    say: Callable[[str], None],
) -> list[TokenizerSummary]:
    """Build and draft the named tokenizers; return a summary of each, with the reason if it can't be built.

    Args:
        drafts: drafts of the output folder.
        names: see `asr.text.prepared.tokenizer_name`.
        texts: training transcripts.
        lexicon: lexicon for the phone tokenizer.
        say: called with a line to print before slow work.
    """
    summaries = []
    for name in names:
        kind, pieces = parse_tokenizer_name(name)
        try:
            if kind == "phone" and lexicon is None:
                raise UserError("there is no lexicon")
            if kind != "phone" and not texts:
                raise UserError("there are no training transcripts")
            if kind != "phone":
                say(f"training the tokenizer {name} on {counted(len(texts), 'transcript')}")
            tokenizer = build_tokenizer(kind, texts, lexicon, pieces)
        except UserError as error:
            summaries.append(TokenizerSummary(name, reason=str(error)))
            continue
        for file, content in tokenizer_files(name, tokenizer, texts, lexicon).items():
            write_bytes(content, drafts.path(file))
        summaries.append(TokenizerSummary(name, len(tokenizer), tokenizer.digest))
    return summaries
