"""Data that no recipe knows, as rows of audio, text and speaker: to splits, lexicon and manifests."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lhotse import MonoCut, Recording

from asr.config import option
from asr.data.manifest import TOLERANCE_S
from asr.errors import UserError, did_you_mean
from asr.preparation.cuts import audio_facts, recording, utterance_cut
from asr.preparation.fingerprint import file_state
from asr.preparation.lexicon import word_lexicon
from asr.preparation.options import TOKENIZERS_HELP, PreparationOptions
from asr.preparation.run import Preparation
from asr.preparation.shares import SPEAKERS_TO_HOLD_OUT, split_groups
from asr.preparation.transcripts import check_rule, normalise

# Segments are often rounded: one that ends this far behind its recording is shortened to it.
ROUNDING_S = 0.1
SPLIT_NAMES = {
    "training": "train",
    "valid": "dev",
    "validation": "dev",
    "development": "dev",
    "val": "dev",
    "eval": "test",
    "evaluation": "test",
    "testing": "test",
}
HOLD_OUT = ["auto", "speaker", "text"]


@dataclass
class OwnDataOptions(PreparationOptions):
    """What the recipes for your own data have in common."""

    text: str = option("lower", help="none: as it is | lower: lower-case | words: that and no punctuation")
    lexicon: str = option("", help="pronunciations, `word PH PH …`; empty: CMUdict for English, else none")
    language: str = option("en", help="of the transcripts, written into the manifests")
    dev_share: float = option(0.05, help="of what is held out for dev where the data has no split dev")
    test_share: float = option(0.05, help="likewise for test, where the data has no splits at all")
    hold_out: str = option(
        "auto", help="speaker: whole speakers | text: whole sentences | auto: speakers where there are 10"
    )
    tokenizers: list[str] = option(["character", "phone"], help=TOKENIZERS_HELP)


@dataclass(frozen=True)
class Row:
    """An utterance as the data names it.

    Attributes:
        name: id of the utterance.
        audio: path of its file.
        text: transcript as written.
        where: file and line that say so, for messages.
        speaker: empty: the utterance is a speaker of its own.
        split: empty: to be chosen.
        start_s: where it begins in the file.
        duration_s: None: to the end of the file.
        channel: None: the file must have one.
        recording: id of the file; empty: from its name.
    """

    name: str
    audio: str
    text: str
    where: str
    speaker: str = ""
    split: str = ""
    start_s: float = 0.0
    duration_s: float | None = None
    channel: int | None = None
    recording: str = ""


def check_options(options: OwnDataOptions) -> None:
    """Raise `UserError` for an option that is unknown or out of range."""
    check_rule(options.text)
    if options.hold_out not in HOLD_OUT:
        raise UserError(f"hold_out={options.hold_out}: unknown{did_you_mean(options.hold_out, HOLD_OUT)}")
    for name in ["dev_share", "test_share"]:
        if not 0 <= getattr(options, name) < 0.5:
            raise UserError(f"{name}={getattr(options, name)}: expected 0 or more, below 0.5")


def finish_rows(
    rows: Sequence[Row],
    preparation: Preparation,
    options: OwnDataOptions,
    sources: Sequence[str | Path],
    notes: Mapping[str, str] | None = None,
) -> None:
    """Check rows and their audio, normalise and split them, and write what `Preparation.finish` writes.

    Raises:
        UserError: there are none, or some are broken and not `allow_partial`.
    """
    spoken = list(_with_words(rows, preparation, options.text))
    preparation.check()
    facts = _audio_facts(spoken, preparation)
    preparation.check()
    placed = [fitted for row in spoken if (fitted := _fitted(row, facts, preparation)) is not None]
    if not placed:
        preparation.check()
        raise UserError(f"{', '.join(map(str, sources))}: expected utterances, found none that is usable")
    how, splits = _split(placed, options)
    words = {word for row in placed for word in row.text.split()}
    english = options.language.lower().startswith("en")
    lexicon = word_lexicon(words, options.lexicon, preparation) if english or options.lexicon else None
    recordings = _recordings(placed, facts)
    ends = {row.name: row.start_s + row.duration_s for row in spoken if row.duration_s is not None}
    lengths = {path: samples / rate for path, (samples, rate, _) in facts.items()}
    shortened = sum(ends.get(row.name, 0.0) > lengths[row.audio] + TOLERANCE_S for row in placed)
    preparation.finish(
        {split: _cuts(members, recordings, options.language) for split, members in splits.items()},
        lexicon=lexicon,
        texts={"train": (row.text for row in splits["train"])},
        sources=sources,
        notes={"Splits": how, "Text": _text_note(options.text), **(notes or {})} | _rounding_note(shortened),
    )


def read_audio_facts(path: str) -> list[int]:
    """Return [samples, sample rate, channels] of a file."""
    return list(audio_facts(path))


def _with_words(rows: Sequence[Row], preparation: Preparation, rule: str) -> Iterator[Row]:
    """Rows of distinct ids, normalised, with a speaker."""
    first: dict[str, str] = {}
    for row in rows:
        if row.name in first:
            preparation.problem(
                f"{row.where}: expected ids to be distinct, found {row.name} again (first: {first[row.name]})"
            )
            continue
        first[row.name] = row.where
        if not row.text.strip():
            preparation.problem(f"{row.where}: expected a transcript of {row.name}, found none")
            continue
        text = normalise(row.text, rule)
        if not text:
            preparation.drop(row.name, f"no word is left by text={rule}", row.text)
            continue
        yield replace(row, text=text, speaker=row.speaker or row.name)


def _audio_facts(rows: Sequence[Row], preparation: Preparation) -> dict[str, list[int]]:
    """[samples, sample rate, channels] by path; what can't be read is a problem and absent."""
    paths = sorted({row.audio for row in rows})
    found = preparation.map(read_audio_facts, paths, "reading audio headers", key=file_state)
    return {path: facts for path, facts in zip(paths, found, strict=True) if facts is not None}


def _fitted(row: Row, facts: dict[str, list[int]], preparation: Preparation) -> Row | None:
    """The row with a channel and a duration within its file; None, and a problem, where there is none."""
    if row.audio not in facts:
        return None
    samples, rate, channels = facts[row.audio]
    length_s = samples / rate
    if row.channel is None and channels > 1:
        preparation.problem(
            f"{row.where}: {row.audio} has {channels} channels: expected one, or the channel of {row.name}"
        )
        return None
    if row.channel is not None and not 0 <= row.channel < channels:
        preparation.problem(
            f"{row.where}: expected a channel from 0 to {channels - 1} of {row.audio}, found {row.channel}"
        )
        return None
    end_s = length_s if row.duration_s is None else row.start_s + row.duration_s
    if not 0 <= row.start_s < end_s or end_s > length_s + ROUNDING_S:
        preparation.problem(
            f"{row.where}: expected {row.name} to lie within the {length_s:.3f} s of {row.audio}, "
            f"found {row.start_s:.3f} s to {end_s:.3f} s"
        )
        return None
    whole = row.start_s == 0 and end_s >= length_s
    end_s = min(end_s, length_s)
    duration_s = length_s if whole else round(end_s - row.start_s, 9)
    return replace(row, duration_s=duration_s, channel=row.channel or 0)


def _split(rows: list[Row], options: OwnDataOptions) -> tuple[str, dict[str, list[Row]]]:
    """How the rows were split, and the rows by split."""
    named = Counter(_split_name(row.split) for row in rows)
    if named[""] not in (0, len(rows)):
        row = next(row for row in rows if not row.split)
        raise UserError(f"{row.where}: expected the split of {row.name}, as others have one, found none")
    pool = "train" if not named[""] else ""
    if pool and not named["train"]:
        raise UserError(f"{rows[0].where}: expected a split train, found {', '.join(sorted(named))}")
    splits: dict[str, list[Row]] = {"train": [], "dev": [], "test": []}
    for row in rows:
        splits.setdefault(_split_name(row.split), []).append(row)
    if pool and named["dev"]:
        return "As the data names them.", {name: members for name, members in splits.items() if members}
    test_share = 0.0 if pool else options.test_share
    candidates = splits.pop(pool)
    splits["train"] = []
    speakers = {row.speaker for row in candidates}
    by_speaker = options.hold_out == "speaker" or (
        options.hold_out == "auto" and SPEAKERS_TO_HOLD_OUT <= len(speakers) < len(candidates)
    )
    groups = [row.speaker if by_speaker else row.text for row in candidates]
    chosen = split_groups(groups, options.dev_share, test_share)
    for row, group in zip(candidates, groups, strict=True):
        splits[chosen[group]].append(row)
    kind = "speakers" if by_speaker else "sentences (equal ones together)"
    how = f"Held out by the hash of whole {kind}: {options.dev_share:g} for dev"
    how += ", the other splits as the data names them." if pool else f", {test_share:g} for test."
    first = ["train", "dev", "test"]
    order = first + [name for name in splits if name not in first]
    return how, {name: splits[name] for name in order if splits[name] or name == "train"}


def _split_name(written: str) -> str:
    return SPLIT_NAMES.get(written.strip().lower(), written.strip())


def _recordings(rows: list[Row], facts: dict[str, list[int]]) -> dict[str, Recording]:
    """A recording per file: its id from the data, or its name, with as many folders as make it unique."""
    given = {row.audio: row.recording for row in rows}
    unnamed = [path for path, name in given.items() if not name]
    for depth in range(1, 64):
        names = {path: "-".join(Path(path).with_suffix("").parts[-depth:]) for path in unnamed}
        if len(set(names.values())) == len(names):
            break
    return {path: recording(name or names[path], path, *facts[path]) for path, name in given.items()}


def _cuts(rows: list[Row], recordings: dict[str, Recording], language: str) -> Iterator[MonoCut]:
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


def _text_note(rule: str) -> str:
    changes = {
        "none": "nothing else is changed",
        "lower": "lower-cased",
        "words": "lower-cased, punctuation removed but apostrophes and hyphens within words",
    }
    return f"Unicode composed (NFC), one space between words, {changes[rule]} (`text={rule}`)."


def _rounding_note(shortened: int) -> dict[str, str]:
    if not shortened:
        return {}
    return {
        "Segments": f"{shortened:,} ended up to {ROUNDING_S} s behind their recording and were shortened."
    }
