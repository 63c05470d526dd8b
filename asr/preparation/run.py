"""A run of `asr prepare <recipe>`: reads in parallel, collects problems, writes everything at the end."""

import contextlib
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rich.console import Console

from asr.console import counted, open_console, progress
from asr.data.places import LEXICON, REFERENCES
from asr.errors import UserError
from asr.files import file_digest, write_record, write_text
from asr.parallel import attempts, available_cores
from asr.preparation.options import KINDS, PreparationOptions
from asr.preparation.outputs import (
    PROBLEMS,
    UNFINISHED,
    Drafts,
    draft_lists,
    draft_manifests,
    draft_tokenizers,
)
from asr.preparation.problems import Problem, count_kinds, describe_kinds, write_problems
from asr.preparation.record import (
    RECORD,
    Prepared,
    difference,
    effective_options,
    fingerprint,
    read_prepared,
    recipe_identity,
    recorded_outputs,
    states_of,
    whole_job,
)
from asr.preparation.summary import CARD_TITLE, data_card, screen_lines, split_table
from asr.records.job import Job
from asr.records.options import parse_shard
from asr.text.files import write_lines
from asr.text.lexicon import Lexicon
from asr.text.prepared import parse_tokenizer_name

if TYPE_CHECKING:  # lhotse loads PyTorch, which takes seconds
    from lhotse import MonoCut

Item = TypeVar("Item")
Result = TypeVar("Result")

SHOWN_PROBLEMS = 10


class ShardDone(Exception):
    """Ends the recipe, because the results of its shard are stored."""


class Preparation:
    """The steps of a recipe's `prepare(options, folder)`.

    A recipe calls `is_done`, reads its corpus with `map`, names files outside it with `watch`, reports bad
    input with `problem`, leaves out utterances with `drop`, and passes the cuts to `finish`. With `shard=`,
    `map` does part of the work, and the next `check` stores it and ends the recipe.

    Args:
        recipe: recipe name.
        folder: output folder, usually data/<recipe>.
        options: the recipe's options.
        console: console to print to; defaults to stdout.
        packages: installed packages whose versions affect the output.
    """

    def __init__(
        self,
        recipe: str,
        folder: Path,
        options: PreparationOptions,
        *,
        console: Console | None = None,
        packages: Sequence[str] = (),
    ) -> None:
        self.recipe = recipe
        self.folder = Path(folder)
        self.options = options
        self.packages = packages
        self.accepted = frozenset(options.allow_partial)
        self.shard = parse_shard(options.shard)
        self.items = 0  # number of items in all calls of `map` so far, over all shards
        self._job: Job | None = None
        self.workers = options.workers or available_cores()
        if self.workers < 1:
            raise UserError(f"workers={self.workers}: expected 0 or more")
        for name in options.tokenizers:
            parse_tokenizer_name(name)
        self.console = console or open_console()
        card = self.folder / "README.md"
        if card.exists() and not card.read_text(encoding="utf-8", errors="replace").startswith(CARD_TITLE):
            raise UserError(
                f"{card}: expected a data card or no file, found some other text: "
                "choose another output folder with folder=…"
            )
        self.problems: list[Problem] = []
        self.excluded: list[tuple[str, str, str]] = []
        self._states: dict[str, str] = {}
        self._sources: tuple[Path, ...] = ()
        self._first: dict[str, Any] = {}  # identity before the corpus is read

    def _check_replaced(self, names: Iterable[str]) -> None:
        """Raise UserError for a file that no preparation has written, in a folder without a data card."""
        others = sorted(name for name in names if (self.folder / name).exists())
        if others and not (self.folder / "README.md").exists():
            raise UserError(
                f"{self.folder / others[0]}: expected no file, or one of an earlier preparation, found "
                "another: choose another output folder with folder=…"
            )

    def is_done(self, sources: Iterable[str | Path] = ()) -> bool:
        """Return whether the folder is up to date, and print a line if it is.

        Args:
            sources: files and folders of the corpus, the same as for `finish`.

        Raises:
            UserError: a source is the output folder: writing would change the corpus.
        """
        sources = list(sources)
        for source in map(Path, sources):
            if source.is_dir() and source.resolve() == self.folder.resolve():
                raise UserError(
                    f"folder={self.folder}: expected an output folder apart from the corpus, "
                    f"found the corpus {source}"
                )
        digest = fingerprint(self._identity(sources))
        record = read_prepared(self.folder)
        if not record:
            return False
        if reason := difference(self.folder, record, self.recipe, self.options, digest):
            self.say(f"{self.folder}: {reason}: preparing it again")
            return False
        if not self.accepted.issuperset(record.problems):
            return False
        shutil.rmtree(self.folder / UNFINISHED, ignore_errors=True)
        self.say(f"nothing to do: {self.folder} was prepared from the same files with the same options")
        if record.problems:
            accepted = describe_kinds(record.problems)
            self.say(f"accepted {accepted}, listed in {self.folder / PROBLEMS}")
        return True

    def map(
        self,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        label: str,
        *,
        key: Callable[[Item], str] | None = None,
        threads: bool = False,
        kind: str = "damaged_audio",
    ) -> list[Result | None]:
        """Apply a function to every item in parallel, with a progress bar; return the results in order.

        A `UserError` raised for an item becomes a problem, and the item's result is None.

        Args:
            function: module-level function (worker processes import it by name).
            items: arguments, one per call.
            label: text of the progress bar.
            key: maps an item to a string that identifies it and its content. Results are then kept on disk
                until `finish`, so that an interrupted run can resume; they must be JSON data. Work without
                keys can't be divided into shards.
            threads: whether to use threads, for functions that wait for a subprocess or the network.
            kind: kind of problem for errors that state none.
        """
        if not key:
            self.refuse_shard(f"recipe {self.recipe}")
        keys: list[str] = []
        if key:  # without keys, the function may be a `partial`, which has no name
            name = f"{function.__module__}.{function.__qualname__} {label}"
            keys = [f"{name} {key(item)}" for item in items]
        indices: Sequence[int] = range(len(items))
        if self.shard:
            first, part = self.items, self.shard
            indices = [i for i in indices if (first + i) % part.count == part.index - 1]
            self.items += len(items)
        job = self._opened_job() if key else None
        stored = job.positions(keys) if job else {}
        results: list[Result | None] = [stored.get(i) for i in range(len(items))]
        missing = [i for i in indices if i not in stored]
        if done := len(indices) - len(missing):
            self.say(f"{label}: reusing {done} of {counted(len(indices), 'result')} from an interrupted run")
        with contextlib.ExitStack() as stack:
            bars = stack.enter_context(progress(console=self.console, transient=False))
            task = bars.add_task(label, total=len(indices), completed=done)
            if job:
                stack.callback(job.close)
            fresh = attempts(function, [items[i] for i in missing], workers=self.workers, threads=threads)
            stack.callback(fresh.close)
            for i, result in zip(missing, fresh, strict=True):
                if isinstance(result, UserError):
                    self.problem(str(result), result.kind or kind)
                else:
                    results[i] = job.add(keys[i], result) if job else result
                bars.advance(task)
        return results

    def _opened_job(self) -> Job:
        if self._job is None:
            now = self._first or self._fresh_identity()
            self._job = (
                Job.in_folder(self.folder, now, self.shard) if self.shard else whole_job(self.folder, now)
            )
        return self._job

    def drop(self, utterance: str, reason: str, text: str = "") -> None:
        """Leave out an utterance because of a rule; it is counted and listed in excluded.tsv."""
        self.excluded.append((utterance, reason, text))

    def watch(self, paths: Iterable[str]) -> None:
        """Note files outside `sources`, before they are read: once one changes, `is_done` is false."""
        self._states |= states_of(paths)

    def problem(self, message: str, kind: str = "damaged_text") -> None:
        """Record bad input; the message names file or utterance, what was expected and what was found."""
        assert kind in KINDS, kind
        self.problems.append(Problem(kind, " ".join(message.split())))

    @contextlib.contextmanager
    def reporting(self, kind: str = "damaged_text") -> Iterator[None]:
        """Record a `UserError` raised in the block as a problem; `kind`: its kind if the error has none."""
        try:
            yield
        except UserError as error:
            self.problem(str(error), error.kind or kind)

    def expect(self, what: str, expected: int, found: int) -> None:
        """Record a problem unless a count equals the corpus's official one."""
        if expected != found:
            self.problem(f"{what}: expected {expected}, found {found}", "counts")

    def check(self) -> None:
        """Raise a `UserError` with the problems so far that `allow_partial` doesn't accept.

        A shard whose work is done is marked as done instead; `asr merge` reports its problems.

        Raises:
            ShardDone: a shard is done.
        """
        if self.shard and self.items:
            self._opened_job().finish({})
            raise ShardDone
        problems = [problem for problem in self.problems if problem.kind not in self.accepted]
        if not problems:
            return
        first, count = problems[0].message, len(problems)
        counts = count_kinds(problems)
        kinds = ",".join(kind for kind in KINDS if kind in self.accepted | counts.keys())
        hint = f"allow_partial={kinds} leaves such parts out"
        given = set(map(str, vars(self.options).values()))  # the user's own files, perhaps in the same folder
        fetched = [
            str(source)
            for source in self._sources
            if source.is_relative_to(self.folder) and given.isdisjoint(map(str, (source, *source.parents)))
        ]
        if damaged := [source for source in fetched if source in first]:
            hint += f"; delete {damaged[0]} to fetch it again"
        if count == 1:
            raise UserError(f"{first} ({hint})")
        self.folder.mkdir(parents=True, exist_ok=True)
        listed = self.folder / PROBLEMS
        write_problems(listed, problems)
        for kind in counts:  # by kind: otherwise many problems of one kind would hide the others
            same = [problem.message for problem in problems if problem.kind == kind]
            shown = same[: max(1, SHOWN_PROBLEMS // len(counts))]
            for message in shown:
                self.say(f"* {message}")
            if len(same) > len(shown):
                self.say(f"  … and {len(same) - len(shown):,} more × {kind}")
        raise UserError(
            f"{count} problems ({describe_kinds(counts)}), the first: {first} (all are listed in {listed}; "
            f"{hint})"
        )

    def finish(
        self,
        splits: "Mapping[str, Iterable[MonoCut]]",
        *,
        lexicon: Lexicon | None = None,
        dictionary: Lexicon | None = None,
        texts: Mapping[str, Iterable[str]] | None = None,
        files: Mapping[str, Callable[[Path], object]] | None = None,
        sources: Iterable[str | Path] = (),
        notes: Mapping[str, str] | None = None,
        train: str = "train",
        audio: Mapping[str, str] | None = None,
    ) -> None:
        """Write manifests, lexicon, texts, tokenizers, lists and the data card; print a summary.

        Existing files are replaced only after everything has been checked and written.

        Args:
            splits: cuts by split; each iterable is consumed once, so generators are fine.
            lexicon: words that a phone model is trained on and recognises, written to lexicon.txt; words
                outside it are counted in oov.tsv. It must not be made from the words of dev or test; if it
                contains all of them, the data card says so. None: the words of train in `dictionary`.
            dictionary: pronunciations for any split. Those of words outside the lexicon are written to
                references.txt, which is used for phone references only.
            texts: sentences for language models, written to lm/<name>.txt.
            files: functions that write further files, by file name relative to the folder.
            sources: files and folders of the corpus, for `is_done` and the data card.
            notes: additional sections of the data card by heading, e.g. the licence.
            train: split whose transcripts the tokenizers are trained on.
            audio: hashes of audio files that the recipe has made, by name; `is_done` checks them.

        Raises:
            UserError: `allow_partial` doesn't accept all problems, whether recorded before or noticed here (a
                duplicate id, an empty transcript, a cut outside its recording, a missing audio file, an empty
                split).
        """
        self.refuse_shard(f"recipe {self.recipe}")
        digest = fingerprint(self._identity(sources))
        self.folder.mkdir(parents=True, exist_ok=True)
        with Drafts(self.folder) as drafts:
            summaries, transcripts = draft_manifests(drafts, splits, train, self.problem)
            self.check()
            if lexicon is None and dictionary is not None and transcripts:
                known = dictionary.of(word for text in transcripts for word in text.split())
                lexicon = known if len(known) else None
            held_out = {
                word for summary in summaries for word in summary.words if word not in (lexicon or ())
            }
            references = dictionary.of(held_out) if dictionary is not None else Lexicon({})
            if lexicon is not None:
                for summary in summaries:
                    summary.count_unknown(lexicon)
            tokenizers = draft_tokenizers(drafts, self.options.tokenizers, transcripts, lexicon, self.say)
            for name, sentences in (texts or {}).items():
                write_lines(drafts.path(f"lm/{name}.txt"), sentences)
            for name, write in (files or {}).items():
                write(drafts.path(name))
            self.check()  # again: writing the texts reads them, which may record problems
            draft_lists(drafts, summaries, self.excluded, self.problems)
            if lexicon is not None:
                lexicon.save(drafts.path(LEXICON))
            if len(references):
                references.save(drafts.path(REFERENCES))
            if digest != fingerprint(self._fresh_identity()):
                raise UserError(
                    f"{', '.join(map(str, self._sources))}: files changed while they were read: "
                    "run the command again"
                )
            former = recorded_outputs(self.folder)
            self._check_replaced(drafts.names - {*former, PROBLEMS})
            # If the run is killed from here on, this record tells the next one which files to remove.
            both = dict.fromkeys([*former, *drafts.names], "")
            record = Prepared(self.recipe, effective_options(self.options), "", {}, both, {})
            write_record(asdict(record), self.folder / RECORD)
            outputs = drafts.put_in_place(instead_of=[*former, PROBLEMS])
        card = data_card(
            self.recipe,
            effective_options(self.options),
            summaries,
            lexicon,
            train,
            tokenizers,
            self.excluded,
            self.problems,
            [(name, self.folder / name) for name in outputs],
            [Path(source) for source in sources],
            notes or {},
        )
        write_text(card, self.folder / "README.md")
        hashes = {name: file_digest(self.folder / name) for name in [*outputs, "README.md"]}
        problems = count_kinds(self.problems)
        complete = replace(
            record,
            fingerprint=digest,
            problems=problems,
            outputs=hashes,
            audio=dict(audio or {}),
            states=self._states,
        )
        write_record(asdict(complete), self.folder / RECORD)
        shutil.rmtree(self.folder / UNFINISHED, ignore_errors=True)
        words = f", lexicon of {counted(len(lexicon), 'word')}" if lexicon is not None else ""
        self.console.print(split_table(self.recipe + words, summaries, lexicon is not None))
        for line in screen_lines(
            self.folder, summaries, lexicon, train, tokenizers, self.excluded, self.problems
        ):
            self.say(line)

    def refuse_shard(self, work: str) -> None:
        """Raise a `UserError` if `shard=` is set, before work that a single process has to do."""
        if self.shard:
            raise UserError(f"shard={self.options.shard}: {work} can't be divided: do it without shard=")

    def say(self, line: str) -> None:
        """Print a line without markup, highlighting or wrapping."""
        self.console.print(line, soft_wrap=True, markup=False, highlight=False)

    def _identity(self, sources: Iterable[str | Path]) -> dict[str, Any]:
        # Computed before the corpus is read, so that changes during reading are noticed.
        paths = tuple(Path(source) for source in sources)
        if not self._first or self._sources != paths:
            self._sources = paths
            self._first = self._fresh_identity()
        return self._first

    def _fresh_identity(self) -> dict[str, Any]:
        return recipe_identity(self.recipe, self.options, self._sources, self.folder, self.packages)
