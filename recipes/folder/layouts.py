"""Layouts of published corpora, recognised by the names of their files of transcripts."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from asr.errors import UserError
from asr.scoring.stm import plain_words, read_stm
from asr.text.files import read_lines, stream_lines

from .tables import Entry, read_table

CHANNELS = {"1": "0", "a": "0", "2": "1", "b": "1"}  # STM's names of channels
SOUND = re.compile(
    r"<unk>|\{[^{}/]*\}|\[[^\]]*\]|\(\d+\)"
)  # TED-LIUM's sounds, and numbers of pronunciations


@dataclass(frozen=True)
class Layout:
    """Layout of a published corpus.

    Attributes:
        name: name of the layout.
        patterns: name patterns of the transcript files below the corpus's folder.
        read: reads a file, given the options' columns, and returns its entries.
        sign: text in the first line of each file, because other corpora may use the same names.
        has_columns: whether the files are tables whose columns the options may name.
    """

    name: str
    patterns: tuple[str, ...]
    read: Callable[[Path, dict[str, str]], Iterable[Entry]]
    sign: str = ""
    has_columns: bool = False

    def files(self, folder: Path) -> list[Path]:
        """Return the layout's transcript files below a folder."""
        paths = sorted({path for pattern in self.patterns for path in folder.glob(pattern)})
        return [path for path in paths if self.sign in next(stream_lines(path), "")] if self.sign else paths


def read_mls(path: Path, columns: dict[str, str]) -> list[Entry]:
    """Return the entries of Multilingual LibriSpeech's transcripts.txt: `speaker_book_number<TAB>text`."""
    entries = []
    for number, line in read_lines(path):
        name, tab, text = line.partition("\t")
        if not tab:
            raise UserError(f"{path}:{number}: expected `speaker_book_number<TAB>text`, found {line[:60]!r}")
        speaker = name.partition("_")[0]
        entries.append(
            Entry(f"{path}:{number}", {"audio": name, "text": text, "id": name, "speaker": speaker})
        )
    return entries


def read_prompts(path: Path, columns: dict[str, str]) -> list[Entry]:
    """Return the entries of VoxForge's `speaker-date-code/etc/PROMPTS`: `speaker-date-code/mfc/name TEXT`.

    Speakers named `anonymous` may differ, so each of their archives counts as a speaker.
    """
    archive = path.parent.parent
    speaker = archive.name.partition("-")[0]
    speaker = archive.name if speaker.lower() == "anonymous" else speaker
    sounds = "flac" if (archive / "flac").is_dir() else "wav"
    entries = []
    for number, line in read_lines(path):
        name, *text = line.split(maxsplit=1)
        audio = f"../{sounds}/{name.rpartition('/')[2]}"
        fields = {"audio": audio, "text": text[0] if text else "", "speaker": speaker}
        entries.append(Entry(f"{path}:{number}", fields))
    return entries


def read_segments(path: Path, columns: dict[str, str]) -> list[Entry]:
    """Return the entries of an STM file, of which TED-LIUM has one for each talk.

    Text is treated as in Kaldi's recipe for TED-LIUM 3: sounds such as `<unk>` and `{NOISE}` are removed, and
    suffixes are joined with their words, `they 're` to `they're`.
    """
    entries = []
    for segment in read_stm(path).segments:
        text = " ".join(plain_words(SOUND.sub(" ", segment.text)))
        text = re.sub(r"' (\w)", r"'\1", re.sub(r"(\w) '(\w)", r"\1'\2", text))
        ignored = "not to be scored" if segment.ignored else "" if text else "no words"
        fields = {
            "audio": segment.file,
            "text": text,
            "speaker": segment.speaker,
            "start": str(segment.start_s),
            "end": str(segment.end_s),
            "channel": CHANNELS.get(segment.channel.lower(), ""),
        }
        entries.append(Entry(f"{path}: {segment.name}", fields, ignored))
    return entries


# The first layout that matches is used.
LAYOUTS = (
    Layout("Common Voice", ("validated.tsv",), read_table, has_columns=True),
    Layout(
        "Hugging Face audiofolder",
        tuple(f"{folder}metadata.{x}" for folder in ("", "*/", "*/*/") for x in ("csv", "jsonl")),
        read_table,
        sign="file_name",
        has_columns=True,
    ),
    Layout("MLS", ("transcripts.txt", "*/transcripts.txt"), read_mls),
    Layout("VoxForge", ("etc/PROMPTS", "*/etc/PROMPTS"), read_prompts),
    Layout("TED-LIUM", ("*.stm", "stm/*.stm", "*/stm/*.stm"), read_segments),
)
