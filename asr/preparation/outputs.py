"""The files of a prepared folder: drafted under temporary names, then moved into place together."""

import csv
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lhotse import MonoCut

from asr.data.manifest import check_cut, save_cuts
from asr.errors import UserError
from asr.preparation.summary import SplitSummary, TokenizerSummary
from asr.text.lexicon import Lexicon
from asr.text.prepared import parse_name, tokenizer_files
from asr.text.tokenizer import build_tokenizer

PROBLEMS = "problems.tsv"


class Drafts:
    """Files of a folder, written under temporary names until all of them are complete.

    Args:
        folder: output folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._drafts: dict[str, Path] = {}

    def path(self, name: str) -> Path:
        """Return the temporary path of the file `name`; its parent folder is created."""
        final = self.folder / name
        final.parent.mkdir(parents=True, exist_ok=True)
        self._drafts[name] = final.with_name(final.name + ".new")
        return self._drafts[name]

    def discard(self, *names: str) -> None:
        """Remove the named drafts, or all of them."""
        for name in names or list(self._drafts):
            self._drafts.pop(name).unlink(missing_ok=True)

    def put_in_place(self, instead_of: Iterable[str]) -> list[str]:
        """Remove the files `instead_of`, give all drafts their final names and return these, sorted."""
        for name in instead_of:
            (self.folder / name).unlink(missing_ok=True)
        for name, draft in self._drafts.items():
            draft.replace(self.folder / name)
        return sorted(self._drafts)


def draft_manifests(
    drafts: Drafts,
    splits: Mapping[str, Iterable[MonoCut]],
    lexicon: Lexicon | None,
    train: str,
    problem: Callable[[str], None],
) -> tuple[list[SplitSummary], list[str]]:
    """Check the cuts and draft <split>.cuts.jsonl.gz; return counts by split and the training transcripts.

    Args:
        drafts: the output folder's drafts.
        splits: cuts by split, consumed once.
        lexicon: lexicon for counting OOV words.
        train: name of the training split.
        problem: called with a message for every bad cut and every empty split.
    """
    summaries: list[SplitSummary] = []
    transcripts: list[str] = []
    files: set[str] = set()
    for name, cuts in splits.items():
        summary = SplitSummary(name)
        summaries.append(summary)
        manifest = f"{name}.cuts.jsonl.gz"
        texts = transcripts if name == train else None
        save_cuts(_checked(cuts, summary, lexicon, files, texts, problem), drafts.path(manifest))
        if not summary.utterances:
            problem(f"split {name}: expected utterances, found none")
            drafts.discard(manifest)
    return summaries, transcripts


def _checked(
    cuts: Iterable[MonoCut],
    summary: SplitSummary,
    lexicon: Lexicon | None,
    files: set[str],
    transcripts: list[str] | None,
    problem: Callable[[str], None],
) -> Iterator[MonoCut]:
    ids: set[str] = set()  # unique within a split only: splits may overlap, e.g. a 4,000-utterance subset
    for cut in cuts:
        where = f"split {summary.name}: utterance {cut.id!r}"
        if cut.id in ids:
            problem(f"{where}: expected ids to be distinct, found this one again")
            continue
        ids.add(cut.id)
        try:
            check_cut(cut, where, files)
        except UserError as error:
            problem(str(error))
            continue
        summary.add(cut, lexicon)
        if transcripts is not None:
            transcripts.append(cut.supervisions[0].text or "")
        yield cut


def draft_lists(
    drafts: Drafts, summaries: list[SplitSummary], excluded: list[tuple[str, str, str]], problems: list[str]
) -> None:
    """Draft excluded.tsv and, if they have entries, oov.tsv and problems.tsv."""
    _write_table(drafts.path("excluded.tsv"), ["utterance", "reason", "text"], sorted(excluded))
    unknown = sum((summary.unknown for summary in summaries), Counter[str]())
    if unknown:
        counts = sorted(unknown.items(), key=lambda word: (-word[1], word[0]))
        _write_table(drafts.path("oov.tsv"), ["word", "count"], counts)
    if problems:
        write_problems(drafts.path(PROBLEMS), problems)


def write_problems(path: Path, problems: list[str]) -> None:
    """Write one problem per line, with a header."""
    _write_table(path, ["problem"], [[problem] for problem in problems])


def _write_table(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter="\t", lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def draft_tokenizers(
    drafts: Drafts,
    names: Sequence[str],
    texts: Sequence[str],
    lexicon: Lexicon | None,
    say: Callable[[str], None],
) -> list[TokenizerSummary]:
    """Build and draft the named tokenizers; return one summary each, with the reason if one can't be built.

    Args:
        drafts: the output folder's drafts.
        names: see `asr.text.prepared.tokenizer_name`.
        texts: training transcripts.
        lexicon: lexicon for the phone tokenizer.
        say: prints a line before slow work.
    """
    summaries = []
    for name in names:
        kind, pieces = parse_name(name)
        try:
            if kind == "phone" and lexicon is None:
                raise UserError("there is no lexicon")
            if kind != "phone" and not texts:
                raise UserError("there are no training transcripts")
            if kind != "phone":
                say(f"training the tokenizer {name} on {len(texts):,} transcripts")
            tokenizer = build_tokenizer(kind, texts, lexicon, pieces)
        except UserError as error:
            summaries.append(TokenizerSummary(name, reason=str(error)))
            continue
        for file, content in tokenizer_files(name, tokenizer, texts, lexicon).items():
            drafts.path(file).write_bytes(content)
        summaries.append(TokenizerSummary(name, len(tokenizer), tokenizer.digest))
    return summaries
