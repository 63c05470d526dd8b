"""Selects the utterances of the splits that have audio and text, and reports inconsistencies."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from asr.console import counted
from asr.errors import UserError
from asr.preparation.run import Preparation
from asr.text.files import read_lines

from .layout import Distribution
from .scoring import SCORING
from .splits import LEFT_OUT_REASON, SPLITS, Index, IndexEntry, Split, parse_entry
from .transcripts import UNUSABLE, WrittenTranscript, normalise, parse_dot_line


@dataclass
class Selection:
    """The utterances listed in the indices and present in the copy.

    Attributes:
        splits: utterance ids of each split, in the order of its indices.
        audio: audio file of each utterance.
        texts: normalised text of each transcribed utterance.
    """

    splits: dict[str, list[str]] = field(default_factory=dict)
    audio: dict[str, str] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)


def select(distribution: Distribution, preparation: Preparation) -> Selection:
    """Read indices and transcripts; report problems and excluded utterances to `preparation`."""
    selection = Selection()
    indices = {
        index: _entries(index, distribution, preparation)
        for index in dict.fromkeys(index for split in SPLITS for index in split.indices)
    }
    for split in SPLITS:
        names = _utterances(split, indices, selection, preparation)
        if names is not None:
            selection.splits[split.name] = names
    selection.texts = _texts(distribution, selection, preparation)
    for split in SPLITS:
        if split.words and split.name in selection.splits:
            texts = (selection.texts.get(name, "") for name in selection.splits[split.name])
            words = sum(len(SCORING(text.split())) for text in texts)
            preparation.expect(f"split {split.name}, scored words", split.words, words)
    return selection


def _entries(
    index: Index, distribution: Distribution, preparation: Preparation
) -> list[tuple[IndexEntry, str]] | None:
    """Return the entries of an index that have audio, with its path; None if the index is missing."""
    path = distribution.find(index.disc, index.path)
    if path is None:
        disc = f"{index.disc}/" if distribution.discs else ""
        preparation.problem(
            f"{distribution.root}: expected the index {disc}{index.path}, found none", "missing_parts"
        )
        return None
    lines = None
    with preparation.reporting():
        lines = read_lines(path)
    if lines is None:
        return None
    entries, on_missing_disc = [], Counter[str]()
    for number, line in lines:
        if line.lstrip().startswith(";"):
            continue
        with preparation.reporting():
            entry = parse_entry(line, index, f"{path}:{number}")
            if entry.left_out:
                preparation.drop(entry.utterance, LEFT_OUT_REASON)
            elif audio := distribution.find(entry.disc, entry.path):
                entries.append((entry, audio))
            elif distribution.discs and entry.disc not in distribution.discs:
                on_missing_disc[entry.disc] += 1
            else:
                raise UserError(f"{entry.line}: expected the audio {entry.path}, found none", "missing_audio")
    for disc, count in sorted(on_missing_disc.items()):
        entries_are = counted(count, "entry is", "entries are")
        preparation.problem(f"{path}: disc {disc} is missing: {entries_are} on it", "missing_parts")
    return entries


def _utterances(
    split: Split,
    indices: dict[Index, list[tuple[IndexEntry, str]] | None],
    selection: Selection,
    preparation: Preparation,
) -> list[str] | None:
    """Return the utterance ids of a split; None if one of its indices is missing."""
    lines: dict[str, str] = {}
    for index in split.indices:
        entries = indices[index]
        if entries is None:
            return None
        for entry, audio in entries:
            if entry.utterance in lines:
                preparation.problem(
                    f"{entry.line}: utterance {entry.utterance} is already in {lines[entry.utterance]}",
                    "duplicates",
                )
                continue
            lines[entry.utterance] = entry.line
            selection.audio[entry.utterance] = audio
    if split.utterances:
        preparation.expect(f"split {split.name}, utterances", split.utterances, len(lines))
    return list(lines)


def _texts(distribution: Distribution, selection: Selection, preparation: Preparation) -> dict[str, str]:
    transcripts = _transcripts(distribution, {_session(name) for name in selection.audio}, preparation)
    has_audio = {name.rpartition("/")[2].partition(".")[0] for name, _ in distribution.ending(".wv1")}
    for name, transcript in transcripts.items():
        if name not in has_audio:
            preparation.problem(
                f"{transcript.line}: expected the audio of {name}, found none", "missing_audio"
            )
    texts = {}
    for name in sorted(selection.audio):
        with preparation.reporting():
            if name not in transcripts:
                raise UserError(
                    f"{selection.audio[name]}: expected the transcript of {name} in {_session(name)}, "
                    "found none",
                    "missing_text",
                )
            written, line = transcripts[name].written, transcripts[name].line
            if not written:
                raise UserError(
                    f"{line}: expected the transcript of {name}, found an empty one", "missing_text"
                )
            # Other public recipes leave these two utterances out as well; Kaldi's counts them.
            if written == UNUSABLE:
                preparation.drop(name, f"marked {UNUSABLE} as unusable", written)
                continue
            try:
                text = normalise(written)
            except UserError as error:
                raise UserError(f"{line}: utterance {name}: {error}") from None
            if text:
                texts[name] = text
            else:
                preparation.drop(name, "no word in the transcript", written)
    return texts


def _session(utterance: str) -> str:
    """Return the name of the file with an utterance's transcript."""
    return f"{utterance[:6]}00.dot"


def _transcripts(
    distribution: Distribution, sessions: set[str], preparation: Preparation
) -> dict[str, WrittenTranscript]:
    """Return transcripts by utterance id from all files with these names."""
    files = defaultdict(list)
    for name, path in distribution.ending(".dot"):
        files[name.rpartition("/")[2]].append(path)
    transcripts: dict[str, WrittenTranscript] = {}
    for path in sorted(path for session in sessions for path in files[session]):
        lines: list[tuple[int, str]] = []
        with preparation.reporting():
            lines = read_lines(path, "latin-1")
        for number, line in lines:
            with preparation.reporting():
                if not line.isascii():
                    raise UserError(f"{path}:{number}: expected ASCII text, found {line.strip()[:60]!r}")
                transcript = parse_dot_line(line, f"{path}:{number}")
                # Some copies of the corpus contain a file twice, which is harmless if the contents agree.
                name = transcript.utterance
                other = transcripts.setdefault(name, transcript)
                if other.written != transcript.written:
                    raise UserError(
                        f"{transcript.line}: {name} has a different transcript in {other.line}", "duplicates"
                    )
    return transcripts
