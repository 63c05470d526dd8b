"""One run of `asr prepare <recipe>`: work in processes, problems collected, everything written at the end."""

import contextlib
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from lhotse import MonoCut
from rich.console import Console

from asr.console import open_console
from asr.data.manifest import check_cut, save_cuts
from asr.errors import UserError
from asr.files import file_digest, write_text
from asr.parallel import Failed, Journal, attempts, available_cores, progress_bar
from asr.preparation.drafts import Drafts, write_table
from asr.preparation.fingerprint import (
    effective_options,
    fingerprint,
    matching_record,
    program_digest,
    write_record,
    written_before,
)
from asr.preparation.summary import CARD_TITLE, SplitSummary, data_card, screen_lines, screen_table
from asr.preparation.vocabularies import draft_vocabularies
from asr.text.lexicon import Lexicon
from asr.text.prepared import parse_name

Item = TypeVar("Item")
Result = TypeVar("Result")

SHOWN_PROBLEMS = 10
JOURNALS = ".unfinished"


class Preparation:
    """What a recipe's `prepare(options, folder)` goes through.

    A recipe asks `is_done`, reads its corpus with `map`, reports bad input with `problem` and what its
    own rules leave out with `drop`, and hands the cuts to `finish`.

    Args:
        recipe: name of the recipe.
        folder: where to, data/<recipe> as a rule.
        options: the recipe's options; `tokenizers`, and unless given `workers` and `allow_partial`, are
            taken from there.
        allow_partial: go on without what is missing or broken.
        workers: processes; 0: one per available core.
        console: where to print.
    """

    def __init__(
        self,
        recipe: str,
        folder: Path,
        options: Any,
        *,
        allow_partial: bool | None = None,
        workers: int = 0,
        console: Console | None = None,
    ) -> None:
        self.recipe = recipe
        self.folder = Path(folder)
        self.options = options
        given = getattr(options, "allow_partial", False) if allow_partial is None else allow_partial
        self.allow_partial = bool(given)
        self.workers = workers or getattr(options, "workers", 0) or available_cores()
        if self.workers < 1:
            raise UserError(f"workers={self.workers}: expected 0 or more")
        self.tokenizers: list[str] = list(getattr(options, "tokenizers", []))
        for name in self.tokenizers:
            parse_name(name)
        self.console = console or open_console()
        card = self.folder / "README.md"
        if card.exists() and not card.read_text(encoding="utf-8", errors="replace").startswith(CARD_TITLE):
            raise UserError(
                f"{card}: expected none, or the data card of an earlier preparation, found another text: "
                "name a folder of its own with folder=…"
            )
        self.problems: list[str] = []
        self.excluded: list[tuple[str, str, str]] = []
        self._fingerprint: tuple[tuple[Path, ...], str] | None = None

    def is_done(self, sources: Iterable[str | Path] = ()) -> bool:
        """Return whether the folder holds what this call would write; say so if it does.

        Args:
            sources: the same files and folders of the corpus that `finish` gets.
        """
        record = matching_record(self.folder, self._digest(sources))
        if record is None or (record["problems"] and not self.allow_partial):
            return False
        self.say(f"nothing to do: {self.folder} was prepared from the same files with the same options")
        if record["problems"]:
            self.say(f"{record['problems']} problems are listed in {self.folder / 'problems.tsv'}")
        return True

    def map(
        self,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        label: str,
        *,
        key: Callable[[Item], str] | None = None,
        threads: bool = False,
    ) -> list[Result | None]:
        """Return the function's result for every item, in order, with a progress bar.

        An item for which the function raises a `UserError` is a problem, and its result is None.

        Args:
            function: a function of a module (processes call it by name).
            items: what to call it with.
            label: what the progress bar says.
            key: makes it resumable: a text that names an item and changes with it. Results are then
                plain data (None, bool, numbers, str, list, dict), kept on disk until `finish`.
            threads: use threads, for functions that wait for a subprocess or the network.
        """
        journal = self._journal(function, label) if key else None
        keys = [key(item) for item in items] if key else []
        known = journal.known if journal else {}
        missing = [item for i, item in enumerate(items) if not (keys and keys[i] in known)]
        if journal and len(missing) < len(items):
            self.say(f"{label}: {len(items) - len(missing)} of {len(items)} are there from an earlier run")
        fresh = attempts(function, missing, workers=self.workers, threads=threads)
        results: list[Result | None] = []
        with contextlib.ExitStack() as stack:
            advance = stack.enter_context(progress_bar(label, len(items), self.console))
            stack.callback(fresh.close)  # type: ignore[attr-defined]
            if journal:
                stack.callback(journal.close)
            for i in range(len(items)):
                if keys and keys[i] in known:
                    results.append(known[keys[i]])
                else:
                    result = next(fresh)
                    if isinstance(result, Failed):
                        self.problem(str(result))
                        result = None
                    elif journal:
                        result = journal.add(keys[i], result)
                    results.append(result)
                advance()
        return results

    def drop(self, utterance: str, reason: str, text: str = "") -> None:
        """Leave an utterance out by a rule of the recipe: it is counted, and listed in excluded.tsv."""
        self.excluded.append((utterance, reason, text))

    def problem(self, message: str) -> None:
        """Note bad input; the message names file or utterance, what was expected and what was found."""
        self.problems.append(" ".join(message.split()))

    def expect(self, what: str, expected: int, found: int) -> None:
        """Note a problem unless a count is the corpus' official one."""
        if expected != found:
            self.problem(f"{what}: expected {expected}, found {found}")

    def check(self) -> None:
        """Raise a `UserError` that shows the problems so far, unless `allow_partial`."""
        if not self.problems or self.allow_partial:
            return
        count = len(self.problems)
        hint = "allow_partial=true goes on without what is missing or broken"
        if count == 1:
            raise UserError(f"{self.problems[0]} ({hint})")
        self._write_problems()
        for message in self.problems[:SHOWN_PROBLEMS]:
            self.say(f"* {message}")
        if count > SHOWN_PROBLEMS:
            self.say(f"  … and {count - SHOWN_PROBLEMS} more")
        listed = self.folder / "problems.tsv"
        raise UserError(
            f"{count} problems, the first: {self.problems[0]} (all are listed in {listed}; {hint})"
        )

    def finish(
        self,
        splits: Mapping[str, Iterable[MonoCut]],
        *,
        lexicon: Lexicon | None = None,
        texts: Mapping[str, Iterable[str]] | None = None,
        files: Mapping[str, Callable[[Path], object]] | None = None,
        sources: Iterable[str | Path] = (),
        notes: Mapping[str, str] | None = None,
        train: str = "train",
    ) -> None:
        """Write manifests, lexicon, texts, tokenizers, lists and the data card; print the summary.

        Nothing that was there is replaced until everything is checked and written.

        Args:
            splits: cuts by split, consumed once, so generators serve.
            lexicon: written as lexicon.txt; words outside it are counted and listed in oov.tsv.
            texts: sentences for language models by name, written as lm/<name>.txt.
            files: what writes each further file, by its name below the folder.
            sources: files and folders of the corpus, for `is_done` and the data card.
            notes: further sections of the data card by heading, e.g. the licence.
            train: the split whose transcripts the tokenizers are learnt from.

        Raises:
            UserError: problems were noted, or found here (a duplicate id, an empty transcript, a cut
                outside its recording, a missing audio file, an empty split), and not `allow_partial`.
        """
        digest = self._digest(sources)
        self.folder.mkdir(parents=True, exist_ok=True)
        drafts = Drafts(self.folder)
        try:
            transcripts: list[str] = []
            summaries = self._draft_splits(splits, lexicon, drafts, {train: transcripts})
            self.check()
            vocabularies = draft_vocabularies(self.tokenizers, transcripts, lexicon, drafts, self.say)
            self._draft_texts(texts or {}, drafts)
            for name, write in (files or {}).items():
                write(drafts.path(name))
            self._draft_lists(summaries, drafts)
            if lexicon is not None:
                lexicon.save(drafts.path("lexicon.txt"))
        except BaseException:
            drafts.discard()
            raise
        outputs = drafts.put_in_place(instead_of=[*written_before(self.folder), "problems.tsv"])
        card = data_card(
            self.recipe,
            effective_options(self.options),
            summaries,
            lexicon,
            vocabularies,
            self.excluded,
            self.problems,
            [
                (name, (self.folder / name).stat().st_size, file_digest(self.folder / name))
                for name in outputs
            ],
            [(Path(source), _content(Path(source))) for source in sources],
            notes or {},
        )
        write_text(card, self.folder / "README.md")
        write_record(self.folder, digest, [*outputs, "README.md"], len(self.problems))
        shutil.rmtree(self.folder / JOURNALS, ignore_errors=True)
        words = f", lexicon of {len(lexicon):,} words" if lexicon is not None else ""
        self.console.print(screen_table(self.recipe + words, summaries, lexicon is not None))
        for line in screen_lines(self.folder, summaries, vocabularies, self.excluded, self.problems):
            self.say(line)

    def say(self, line: str) -> None:
        """Print a line as it is."""
        self.console.print(line, soft_wrap=True, markup=False, highlight=False)

    def _digest(self, sources: Iterable[str | Path]) -> str:
        # Taken before the corpus is read: what changes meanwhile is read again by the next run.
        paths = tuple(Path(source) for source in sources)
        if self._fingerprint is None or self._fingerprint[0] != paths:
            self._fingerprint = paths, fingerprint(self.recipe, self.options, paths)
        return self._fingerprint[1]

    def _journal(self, function: Callable[..., Any], label: str) -> Journal:
        name = f"{function.__module__}.{function.__qualname__}"
        version = f"{name} {label} {program_digest(type(self.options))}"
        return Journal(self.folder / JOURNALS / f"{label.replace('/', '-')}.jsonl", version)

    def _draft_splits(
        self,
        splits: Mapping[str, Iterable[MonoCut]],
        lexicon: Lexicon | None,
        drafts: Drafts,
        transcripts: Mapping[str, list[str]],
    ) -> list[SplitSummary]:
        summaries = []
        # Splits may overlap (a 4,000-utterance subset): an id is unique within its split.
        files: set[str] = set()
        for name, cuts in splits.items():
            summary = SplitSummary(name)
            manifest = f"{name}.cuts.jsonl.gz"
            checked = self._checked(cuts, summary, lexicon, files, transcripts.get(name))
            save_cuts(checked, drafts.path(manifest))
            summaries.append(summary)
            if not summary.utterances:
                self.problem(f"split {name}: expected utterances, found none")
                drafts.discard(manifest)
        return summaries

    def _checked(
        self,
        cuts: Iterable[MonoCut],
        summary: SplitSummary,
        lexicon: Lexicon | None,
        files: set[str],
        transcripts: list[str] | None,
    ) -> Iterator[MonoCut]:
        ids: set[str] = set()
        for cut in cuts:
            where = f"split {summary.name}: utterance {cut.id!r}"
            if cut.id in ids:
                self.problem(f"{where}: expected ids to be distinct, found this one again")
                continue
            ids.add(cut.id)
            try:
                check_cut(cut, where, files)
            except UserError as error:
                self.problem(str(error))
                continue
            summary.add(cut, lexicon)
            if transcripts is not None:
                transcripts.append(cut.supervisions[0].text or "")
            yield cut

    def _draft_texts(self, texts: Mapping[str, Iterable[str]], drafts: Drafts) -> None:
        for name, sentences in texts.items():
            with open(drafts.path(f"lm/{name}.txt"), "w", encoding="utf-8") as file:
                file.writelines(sentence + "\n" for sentence in sentences)

    def _draft_lists(self, summaries: list[SplitSummary], drafts: Drafts) -> None:
        rows = sorted(self.excluded)
        write_table(drafts.path("excluded.tsv"), ["utterance", "reason", "text"], rows)
        unknown = sum((summary.unknown for summary in summaries), Counter[str]())
        if unknown:
            counts = sorted(unknown.items(), key=lambda word: (-word[1], word[0]))
            write_table(drafts.path("oov.tsv"), ["word", "count"], counts)
        if self.problems:
            write_table(drafts.path("problems.tsv"), ["problem"], [[p] for p in self.problems])

    def _write_problems(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        write_table(self.folder / "problems.tsv", ["problem"], [[p] for p in self.problems])


def _content(source: Path) -> str:
    if source.is_file():
        return f"`{file_digest(source)}`"
    count = sum(len(names) for _, _, names in os.walk(source, followlinks=True))
    return f"{count:,} files"
