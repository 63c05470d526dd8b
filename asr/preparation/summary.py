"""Reports on a preparation: the summary on the screen and the data card beside the manifests."""

import os
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from asr.config import as_overrides
from asr.console import Table, counted, hours
from asr.files import file_digest
from asr.preparation.options import KINDS
from asr.preparation.problems import Problem, count_kinds, describe_kinds
from asr.text.lexicon import Lexicon
from asr.text.tokenizer import NOISE_WORDS

if TYPE_CHECKING:  # lhotse loads PyTorch, which takes seconds
    from lhotse import MonoCut

CARD_TITLE = "# Data card: "
COLUMNS = ["split", "utterances", "audio", "speakers", "words", "OOV words"]


@dataclass
class SplitSummary:
    """Counts of a split, collected while its cuts are written."""

    name: str
    utterances: int = 0
    duration_s: float = 0.0
    words: Counter[str] = field(default_factory=Counter)
    speakers: set[str] = field(default_factory=set)
    unknown: Counter[str] = field(default_factory=Counter)  # words outside the lexicon

    def add(self, cut: "MonoCut") -> None:
        """Count an utterance, its duration, speaker and words."""
        supervision = cut.supervisions[0]
        self.utterances += 1
        self.duration_s += cut.duration
        self.words.update(supervision.text.split())
        if supervision.speaker not in (None, supervision.id):  # of own data: unknown
            self.speakers.add(supervision.speaker)

    def count_unknown(self, lexicon: Lexicon) -> None:
        """Count the words outside the lexicon."""
        unknown = self.words.keys() - lexicon.pronunciations.keys() - NOISE_WORDS
        self.unknown = Counter({word: self.words[word] for word in unknown})


@dataclass(frozen=True)
class TokenizerSummary:
    """A requested tokenizer.

    Attributes:
        name: see `asr.text.prepared.tokenizer_name`.
        symbols: number of symbols including the blank; 0 if it could not be built.
        digest: hash of the tokenizer, as in a run's environment.json.
        reason: reason why it could not be built; empty if it was.
    """

    name: str
    symbols: int = 0
    digest: str = ""
    reason: str = ""


def split_table(title: str, splits: list[SplitSummary], with_lexicon: bool) -> Table:
    """Return the table of all splits."""
    return Table.of(title, COLUMNS, _split_rows(splits, with_lexicon))


def screen_lines(
    folder: Path,
    splits: list[SplitSummary],
    lexicon: Lexicon | None,
    train: str,
    tokenizers: list[TokenizerSummary],
    excluded: list[tuple[str, str, str]],
    problems: list[Problem],
) -> Iterator[str]:
    """Yield the lines printed below the table; arguments as in `data_card`."""
    if built := [f"{t.name} ({t.symbols:,} symbols)" for t in tokenizers if t.symbols]:
        yield f"tokenizers: {', '.join(built)}"
    for tokenizer in tokenizers:
        if not tokenizer.symbols:
            yield f"no tokenizer {tokenizer.name}: {tokenizer.reason}"
    if excluded:
        reasons = ", ".join(f"{count:,} × {reason}" for reason, count in _by_reason(excluded))
        yield f"{len(excluded):,} left out, listed in {folder / 'excluded.tsv'}: {reasons}"
    elif not problems:
        yield "nothing left out"
    if any(split.unknown for split in splits):
        listed = folder / "oov.tsv"
        yield f"words outside the lexicon (models of phones can't recognise them) are listed in {listed}"
    yield from _closed(splits, lexicon, train)
    if problems:
        listed = folder / "problems.tsv"
        accepted = describe_kinds(count_kinds(problems))
        yield f"accepted {accepted}, listed in {listed}, the first: {problems[0].message}"


def data_card(
    recipe: str,
    options: dict[str, object],
    splits: list[SplitSummary],
    lexicon: Lexicon | None,
    train: str,
    tokenizers: list[TokenizerSummary],
    excluded: list[tuple[str, str, str]],
    problems: list[Problem],
    outputs: list[tuple[str, Path]],
    sources: list[Path],
    notes: Mapping[str, str],
) -> str:
    """Return the data card in Markdown, without date or host name, so that equal input gives equal text.

    Args:
        recipe: recipe name.
        options: options of the preparation.
        splits: counts of each split.
        lexicon: lexicon that OOV words are counted against.
        train: name of the training split.
        tokenizers: requested tokenizers.
        excluded: (utterance, reason, text) of every utterance left out by the recipe's rules.
        problems: accepted problems.
        outputs: (name, path) of every file beside the card; listed with 12 digits of its SHA-256.
        sources: files (listed with their hash) and folders (with their number of files) of the corpus.
        notes: additional sections by heading, e.g. the licence.
    """
    lines = [f"{CARD_TITLE}{recipe}", "", f"Made by `{_command(recipe, options, problems)}`.", ""]
    lines += [split_table("", splits, lexicon is not None).markdown()]
    if lexicon is not None:
        sizes = f"{counted(len(lexicon), 'word')}, {counted(len(lexicon.phones), 'phone')}"
        lines += ["", f"Lexicon: {sizes}, `{lexicon.digest}`."]
        if any(split.unknown for split in splits):
            lines += ["OOV words (outside the lexicon) are listed with their counts in oov.tsv."]
        lines += [f"{line[0].upper()}{line[1:]}." for line in _closed(splits, lexicon, train)]
    if tokenizers:
        lines += ["", "## Tokenizers", ""]
        body = [
            [t.name, f"{t.symbols:,}", f"`{t.digest}`"] if t.symbols else [t.name, "none", t.reason]
            for t in tokenizers
        ]
        lines += [Table.of("", ["tokenizer", "symbols", "digest"], body).markdown()]
    lines += ["", "## Left out", ""]
    lines += [f"* {count:,} × {reason}" for reason, count in _by_reason(excluded)] or ["Nothing."]
    if excluded:
        lines += ["", "The utterances are listed in excluded.tsv."]
    if problems:
        lines += ["", "## Problems", "", "Accepted by `allow_partial` and listed in problems.tsv:", ""]
        lines += [f"* {count:,} × {kind}: {KINDS[kind]}" for kind, count in count_kinds(problems).items()]
    for heading, text in notes.items():
        lines += ["", f"## {heading}", "", text.strip()]
    lines += ["", "## Files", ""]
    files = [[name, f"{path.stat().st_size:,}", f"`{file_digest(path)}`"] for name, path in outputs]
    lines += [Table.of("", ["file", "bytes", "SHA-256"], files).markdown()]
    if sources:
        lines += ["", "## Sources", ""]
        contents = [[str(path), _content(path)] for path in sources]
        lines += [Table.of("", ["source", "content"], contents).markdown()]
    return "\n".join(lines) + "\n"


def _closed(splits: list[SplitSummary], lexicon: Lexicon | None, train: str) -> Iterator[str]:
    """Yield a line about splits, other than train and its parts, whose words are all in the lexicon."""
    seen = next((x.words for x in splits if x.name == train), Counter[str]())
    closed = [x.name for x in splits if x.words and not x.unknown and not x.words <= seen]
    if lexicon is not None and closed:
        yield f"closed vocabulary: the lexicon has every word of {', '.join(closed)}"


def _split_rows(splits: list[SplitSummary], with_lexicon: bool) -> Iterator[list[str]]:
    for split in splits:
        running = sum(split.unknown.values())
        unknown = f"{running:,} ({len(split.unknown):,} distinct)" if with_lexicon else "–"
        yield [
            split.name,
            f"{split.utterances:,}",
            hours(split.duration_s),
            f"{len(split.speakers):,}" if split.speakers else "–",
            f"{split.words.total():,}",
            unknown,
        ]


def _by_reason(excluded: list[tuple[str, str, str]]) -> list[tuple[str, int]]:
    """Count utterances by reason without quoted details, most frequent first."""
    kinds = Counter(reason.split(" '")[0] for _, reason, _ in excluded)
    return sorted(kinds.items(), key=lambda kind: (-kind[1], kind[0]))


def _command(recipe: str, options: dict[str, object], problems: list[Problem]) -> str:
    accepted = {"allow_partial": list(count_kinds(problems))} if problems else {}
    return shlex.join(["asr", "prepare", recipe, *as_overrides(options | accepted)])


def _content(source: Path) -> str:
    if source.is_file():
        return f"`{file_digest(source)}`"
    count = sum(len(names) for _, _, names in os.walk(source, followlinks=True))
    return counted(count, "file")
