"""What was prepared, for the eye: the table on the screen and the data card beside the manifests."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lhotse import MonoCut
from rich.table import Table

from asr.preparation.vocabularies import Vocabulary
from asr.text.lexicon import Lexicon
from asr.text.tokenizer import NOISE_WORD


@dataclass
class SplitSummary:
    """Counts of a split, gathered while its cuts are written."""

    name: str
    utterances: int = 0
    duration_s: float = 0.0
    words: int = 0
    speakers: set[str] = field(default_factory=set)
    unknown: Counter[str] = field(default_factory=Counter)  # words outside the lexicon

    def add(self, cut: MonoCut, lexicon: Lexicon | None) -> None:
        """Count an utterance."""
        supervision = cut.supervisions[0]
        self.utterances += 1
        self.duration_s += cut.duration
        words = (supervision.text or "").split()
        self.words += len(words)
        if supervision.speaker is not None:
            self.speakers.add(supervision.speaker)
        if lexicon is not None:
            self.unknown.update(word for word in words if word not in lexicon and word != NOISE_WORD)


CARD_TITLE = "# Data card: "
COLUMNS = ["split", "utterances", "hours", "speakers", "words", "OOV words"]


def rows(splits: list[SplitSummary], with_lexicon: bool) -> Iterator[list[str]]:
    """Yield a line of the table per split, as text."""
    for split in splits:
        running = sum(split.unknown.values())
        unknown = f"{running:,} ({len(split.unknown):,} distinct)" if with_lexicon else "–"
        yield [
            split.name,
            f"{split.utterances:,}",
            f"{split.duration_s / 3600:.2f}",
            f"{len(split.speakers):,}",
            f"{split.words:,}",
            unknown,
        ]


def screen_table(title: str, splits: list[SplitSummary], with_lexicon: bool) -> Table:
    """Return the table of all splits."""
    table = Table(title=title)
    for name in COLUMNS:
        table.add_column(name, justify="left" if name == "split" else "right")
    for row in rows(splits, with_lexicon):
        table.add_row(*row)
    return table


def screen_lines(
    folder: Path,
    splits: list[SplitSummary],
    vocabularies: list[Vocabulary],
    excluded: list[tuple[str, str, str]],
    problems: list[str],
) -> Iterator[str]:
    """Yield what is said below the table; arguments as in `data_card`."""
    if made := [f"{v.name} ({v.symbols:,} symbols)" for v in vocabularies if v.symbols]:
        yield f"tokenizers: {', '.join(made)}"
    for vocabulary in vocabularies:
        if not vocabulary.symbols:
            yield f"no tokenizer {vocabulary.name}: {vocabulary.reason}"
    if excluded:
        reasons = ", ".join(f"{count:,} × {reason}" for reason, count in by_reason(excluded))
        yield f"{len(excluded):,} dropped, listed in {folder / 'excluded.tsv'}: {reasons}"
    else:
        yield "nothing dropped"
    if any(split.unknown for split in splits):
        yield f"words outside the lexicon, trained as SPN: {folder / 'oov.tsv'}"
    if problems:
        listed = folder / "problems.tsv"
        yield f"{len(problems):,} problems, listed in {listed}, the first: {problems[0]}"


def by_reason(excluded: list[tuple[str, str, str]]) -> list[tuple[str, int]]:
    """Count (utterance, reason, text) by reason, most frequent first; what a reason quotes is left out."""
    kinds = Counter(reason.split(" '")[0] for _, reason, _ in excluded)
    return sorted(kinds.items(), key=lambda kind: (-kind[1], kind[0]))


def data_card(
    recipe: str,
    options: dict[str, object],
    splits: list[SplitSummary],
    lexicon: Lexicon | None,
    vocabularies: list[Vocabulary],
    excluded: list[tuple[str, str, str]],
    problems: list[str],
    outputs: list[tuple[str, int, str]],
    sources: list[tuple[Path, str]],
    notes: Mapping[str, str],
) -> str:
    """Return the data card in Markdown: the same text for the same input, so no date and no machine.

    Args:
        recipe: its name.
        options: what it was prepared with.
        splits: their counts.
        lexicon: the one that OOV words are counted against.
        vocabularies: the tokenizers that were asked for.
        excluded: (utterance, reason, text) of what the recipe's rules leave out.
        problems: what was missing or broken.
        outputs: (name, bytes, first 12 digits of SHA-256) of each file beside the card.
        sources: files and folders of the corpus, with hash (files) or number of files (folders).
        notes: further sections by heading, e.g. the licence.
    """
    lines = [f"{CARD_TITLE}{recipe}", "", f"Made by `{_command(recipe, options)}`.", ""]
    lines += _table(COLUMNS, list(rows(splits, lexicon is not None)))
    if lexicon is not None:
        lines += ["", f"Lexicon: {len(lexicon):,} words, {len(lexicon.phones)} phones, `{lexicon.digest}`."]
        if any(split.unknown for split in splits):
            lines += ["OOV words (outside the lexicon) are listed with their counts in oov.tsv."]
    if vocabularies:
        lines += ["", "## Tokenizers", ""]
        body = [
            [v.name, f"{v.symbols:,}", f"`{v.digest}`"] if v.symbols else [v.name, "none", v.reason]
            for v in vocabularies
        ]
        lines += _table(["tokenizer", "symbols", "digest"], body)
    lines += ["", "## Left out", ""]
    lines += [f"* {count:,} × {reason}" for reason, count in by_reason(excluded)] or ["Nothing."]
    if excluded:
        lines += ["", "Each is listed in excluded.tsv."]
    if problems:
        lines += ["", "## Problems", "", f"{len(problems):,} parts of the corpus were missing or broken and"]
        lines += ["`allow_partial=true` went on without them; each is listed in problems.tsv."]
    for heading, text in notes.items():
        lines += ["", f"## {heading}", "", text.strip()]
    lines += ["", "## Files", ""]
    lines += _table(
        ["file", "bytes", "SHA-256"], [[name, f"{size:,}", f"`{digest}`"] for name, size, digest in outputs]
    )
    if sources:
        lines += ["", "## Sources", ""]
        lines += _table(["source", "content"], [[str(path), content] for path, content in sources])
    return "\n".join(lines) + "\n"


def _command(recipe: str, options: dict[str, object]) -> str:
    values = {
        key: f"[{','.join(map(str, value))}]" if isinstance(value, list) else value
        for key, value in options.items()
    }
    return " ".join(["asr prepare", recipe, *(f"{key}={value}" for key, value in values.items())])


def _table(header: list[str], body: list[list[str]]) -> list[str]:
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in [header, *body]]
    lines = [f"| {' | '.join(row)} |" for row in escaped]
    return [lines[0], "|" + "---|" * len(header), *lines[1:]]
