"""Prepares your own data: from rows of audio, text and speaker to splits, lexicon and manifests."""

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from asr.console import counted, duration
from asr.data.entries import TOLERANCE_S
from asr.data.facts import header_facts, speech_facts
from asr.data.options import MAX_DURATION_S
from asr.errors import UserError
from asr.files import file_state
from asr.preparation.cuts import recording, utterance_cut
from asr.preparation.lexicon import lexicon_packages, word_lexicon
from asr.preparation.options import TEXT_RULES, OwnDataOptions
from asr.preparation.rows import ROUNDING_S, Row, distinct_names, fitted, normalised_rows
from asr.preparation.run import Preparation
from asr.preparation.splits import split_rows, usual_split_name
from asr.text.files import write_table
from asr.text.normalise import is_removed
from asr.text.numbers import check_numbers, knows_numbers
from asr.text.tokenizer import NOISE_WORDS

if TYPE_CHECKING:  # lhotse loads PyTorch, which takes seconds
    from lhotse import MonoCut, Recording

WRITTEN = "written.tsv"  # transcripts with digits or sounds, as written and as used
SHORT_BYTES = 50_000  # 40 s at 10 kbit/s; smaller files aren't long, so their headers needn't be read


def prepare_rows(
    recipe: str,
    options: OwnDataOptions,
    folder: Path,
    sources: Sequence[str | Path],
    read: Callable[[Preparation], Iterable[Row]],
) -> None:
    """Check rows and their audio, normalise and split them, and write the output of `Preparation.finish`.

    Args:
        recipe: recipe name.
        options: the recipe's options.
        folder: output folder.
        sources: files and folders of the data, as for `Preparation.finish`.
        read: function that returns all utterances; not called if the folder is up to date.

    Raises:
        UserError: there are no usable rows, some are broken and `allow_partial` doesn't accept that, or
            numbers in the language can't be read.
    """
    rule = text_rule(options)
    english = options.language.lower().startswith("en")
    packages = lexicon_packages(options.lexicon) if english else []
    preparation = Preparation(recipe, folder, options, packages=packages)
    inputs = [*sources, *filter(None, [options.lexicon])]
    if preparation.is_done(inputs):
        return
    # Problems in texts don't stop the check of the audio: all problems are listed at once.
    spoken = list(normalised_rows(read(preparation), preparation, rule, options.language))
    _notice_long(spoken, preparation)
    paths = sorted({row.audio for row in spoken})
    preparation.watch(paths)
    read_facts = speech_facts if options.verify else header_facts
    headers = preparation.map(read_facts, paths, "reading audio", key=file_state)
    facts = {path: header for path, header in zip(paths, headers, strict=True) if header is not None}
    placed = []
    for row in spoken:
        if row.audio in facts:
            with preparation.reporting("damaged_audio"):
                placed.append(fitted(row, facts[row.audio]))
    preparation.check()
    if not placed:
        raise UserError(f"{', '.join(map(str, sources))}: expected utterances, found no usable ones")
    if options.split:
        how, splits = "All in one, as asked for (`split=`).", {usual_split_name(options.split): placed}
    else:
        how, splits = split_rows(placed, options.hold_out, options.dev_share, options.test_share)
    words = {word for row in placed for word in row.text.split()}
    dictionary = word_lexicon(words, options.lexicon, preparation) if english or options.lexicon else None
    recordings = _recordings(placed, facts)
    changes = f"{TEXT_RULES[rule]} (`text={rule}`)"
    notes = {"Splits": how, "Text": f"Unicode composed (NFC), one space between words, {changes}."}
    changed = [row for row in placed if row.written]
    if changed:
        notes["Text"] += (
            f" {len(changed):,} of {counted(len(placed), 'transcript')} had digits or sounds in brackets; "
            f"{WRITTEN} lists them as written and as used."
        )
    for line in _sounds(placed, rule):
        notes["Text"] += f" {line[0].upper()}{line[1:]}."
        preparation.say(line)
    ends = {row.name: row.start_s + row.duration_s for row in spoken if row.duration_s is not None}
    shortened = sum(ends.get(row.name, 0.0) > recordings[row.audio].duration + TOLERANCE_S for row in placed)
    if shortened:
        notes["Segments"] = f"{shortened:,} ended up to {ROUNDING_S} s after their recording; shortened."
    preparation.finish(
        {split: _cuts(members, recordings, options.language) for split, members in splits.items()},
        dictionary=dictionary,
        texts={"train": (row.text for row in splits["train"])} if "train" in splits else {},
        files={WRITTEN: partial(_list_written, changed)} if changed else {},
        sources=inputs,
        notes=notes,
    )


def text_rule(options: OwnDataOptions) -> str:
    """Return the key of the text rule; raise UserError if it has to read numbers in an unknown language."""
    if options.text == "spoken":
        check_numbers(options.language)
    if options.text == "auto":
        return "spoken" if knows_numbers(options.language) else "words"
    return options.text


def _sounds(rows: Iterable[Row], rule: str) -> Iterator[str]:
    """Yield a sentence about sounds and remarks that were left out, and one about those that became words."""
    counts = Counter(sound for row in rows for sound in row.sounds)
    removed = {x for x in counts if is_removed(x) and rule in ("words", "spoken")}
    for names, outcome in (
        (removed, f"left out ({WRITTEN} lists their transcripts)"),
        (counts.keys() - removed - NOISE_WORDS, "kept as words to train on (remove those that nobody says)"),
    ):
        if names:
            listed = sorted(names, key=lambda name: (-counts[name], name))
            shown = ", ".join(f"{name} {counts[name]}×" for name in listed[:5]) + (
                ", …" if listed[5:] else ""
            )
            yield f"sounds or remarks in brackets, {outcome}: {shown}"


def _list_written(rows: list[Row], path: Path) -> None:
    write_table(path, ["utterance", "written", "used"], ((row.name, row.written, row.text) for row in rows))


def _notice_long(rows: list[Row], preparation: Preparation) -> None:
    """Print, before hours of audio are decoded, that training will leave out long recordings."""
    long: list[tuple[str, float]] = []
    for path in sorted({row.audio for row in rows if row.duration_s is None}):
        if not os.path.isfile(path) or os.path.getsize(path) < SHORT_BYTES:
            continue
        with contextlib.suppress(UserError):  # errors are reported when the file is decoded
            samples, rate, _ = header_facts(path)
            if samples > MAX_DURATION_S * rate:
                long.append((path, samples / rate))
    if long:
        path, seconds = long[0]
        preparation.say(
            f"{counted(len(long), 'recording is', 'recordings are')} longer than data.max_duration_s="
            f"{MAX_DURATION_S:g}, e.g. {path} ({duration(seconds)}): training leaves out such audio. Divide "
            f"it with its text into utterances: asr segment <run> {path} {Path(path).with_suffix('.txt')}"
        )


def _recordings(rows: list[Row], facts: Mapping[str, Sequence[int]]) -> "dict[str, Recording]":
    """Return the recordings by path; their ids come from the data or the file names."""
    given = {row.audio: row.recording for row in rows}
    names = distinct_names(path for path, name in given.items() if not name)
    return {path: recording(name or names[path], path, *facts[path]) for path, name in given.items()}


def _cuts(rows: list[Row], recordings: "dict[str, Recording]", language: str) -> "Iterator[MonoCut]":
    for row in rows:
        yield utterance_cut(
            row.name,
            recordings[row.audio],
            row.text,
            row.speaker,
            start_s=row.start_s,
            duration_s=row.duration_s,
            channel=row.channel or 0,
            language=language,
        )
