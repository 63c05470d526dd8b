"""Recipe `folder`: your own audio, with transcripts in tables or in one text file per recording."""

import os
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from asr.errors import UserError
from asr.preparation.own_data import prepare_rows
from asr.preparation.rows import Row, channel_field, number_field
from asr.preparation.run import Preparation
from asr.preparation.splits import SPLIT_NAMES
from asr.text.files import read_text

from .options import Options
from .tables import SUFFIXES, Entry, parse_columns, read_table

AUDIO_SUFFIXES = (
    *(".wav", ".flac", ".ogg", ".opus", ".mp3", ".aiff", ".aif", ".au"),
    *(".sph", ".wv1", ".wv2"),
)
FFMPEG_SUFFIXES = (".aac", ".amr", ".m4a", ".mkv", ".mov", ".mp4", ".webm", ".wma")  # not read by libsndfile
SPLITS = {"train", "dev", "test", *SPLIT_NAMES}


def prepare(options: Options, folder: Path) -> None:
    """Write manifests, lexicon.txt and lm/train.txt below `folder`; the audio stays in place.

    Raises:
        UserError: the folder or table is missing or malformed, or parts are broken without `allow_partial`.
    """
    root = _root(options)
    transcripts = Path(options.transcripts) if options.transcripts else root

    def read(preparation: Preparation) -> list[Row]:
        files = AudioFiles(root)
        if tables := _tables(transcripts):
            rows = list(_rows_of_tables(tables, files, options, preparation))
        else:
            rows = list(_rows_of_texts(transcripts, files, preparation))
        rows = [_with_speaker(row, files, options, preparation) for row in _with_splits(rows, files)]
        _check_unlisted(rows, files, options, preparation)
        return rows

    prepare_rows("folder", options, folder, list(dict.fromkeys([root, transcripts])), read)


class AudioFiles:
    """The recordings below a folder, found by path or name, with or without suffix.

    Args:
        root: folder with the recordings.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        files = []
        for folder, folders, names in os.walk(root, followlinks=True):
            folders[:] = [name for name in folders if not name.startswith(".")]  # e.g. a trash
            files += [os.path.join(folder, name) for name in names if not name.startswith(".")]
        self.paths = sorted(path for path in files if path.lower().endswith(AUDIO_SUFFIXES))
        self._others = {_stem(self.inside(x)): x for x in files if x.lower().endswith(FFMPEG_SUFFIXES)}
        self._by_name: dict[str, list[str]] = defaultdict(list)
        for path in self.paths:
            inside = self.inside(path)
            for name in {inside, _stem(inside), os.path.basename(inside), _stem(os.path.basename(inside))}:
                self._by_name[name].append(path)

    def inside(self, path: str) -> str:
        """Return a path relative to the folder, with forward slashes."""
        return os.path.relpath(path, self.root).replace(os.sep, "/")

    def find(self, name: str, where: str) -> str:
        """Return the recording called `name` in a transcript.

        Args:
            name: absolute path, or path or name below the folder.
            where: file and line, for the error message.

        Raises:
            UserError: there is no such recording, or more than one.
        """
        if os.path.isabs(name) and os.path.isfile(name):
            return name
        written = name.replace("\\", "/").removeprefix("./")
        for candidate in (written, os.path.basename(written)):
            found = self._by_name.get(candidate, [])
            if len(found) == 1:
                return found[0]
            if found:
                raise UserError(
                    f"{where}: {name!r} could be {self.inside(found[0])} or {self.inside(found[1])}: "
                    "expected the path of exactly one recording"
                )
        self.refuse_format(_stem(written), where)
        raise UserError(
            f"{where}: expected the recording {name!r} below {self.root}, found none", "missing_audio"
        )

    def refuse_format(self, stem: str, where: str) -> None:
        """Raise a `UserError` if the recording with this path, without suffix, needs FFmpeg."""
        if other := self._others.get(stem):
            formats = " ".join(AUDIO_SUFFIXES)
            raise UserError(
                f"{where}: expected a recording ({formats}), found {other}: convert it, e.g. with ffmpeg",
                "damaged_audio",
            )


def _root(options: Options) -> Path:
    if not options.audio:
        raise UserError("audio= is needed: name the folder with the recordings")
    root = Path(options.audio)
    if root.is_file():
        raise UserError(f"audio={root}: expected a folder, found a file; use audio={root.parent}")
    if not root.is_dir():
        raise UserError(f"audio={root}: expected a folder with recordings, found none")
    return root


def _tables(transcripts: Path) -> list[tuple[str, Path]]:
    """Return (split, table) pairs; empty if there is a text file per recording."""
    if transcripts.is_dir():
        tables = sorted(path for path in transcripts.iterdir() if path.suffix.lower() in SUFFIXES)
        return [(path.stem, path) for path in tables if path.stem.lower() in SPLITS]
    if not transcripts.exists():
        raise UserError(f"transcripts={transcripts}: expected a table or a folder, found none")
    if transcripts.suffix.lower() not in SUFFIXES:
        raise UserError(f"transcripts={transcripts}: expected one of {', '.join(SUFFIXES)} or a folder")
    return [("", transcripts)]


def _rows_of_tables(
    tables: list[tuple[str, Path]], files: AudioFiles, options: Options, preparation: Preparation
) -> Iterator[Row]:
    columns = parse_columns(options.columns)
    for split, path in tables:
        entries: list[Entry] = []
        with preparation.reporting():
            entries = read_table(path, columns)
        for entry in entries:
            with preparation.reporting():
                yield _row(entry, split, files)


def _row(entry: Entry, split: str, files: AudioFiles) -> Row:
    fields = entry.fields
    audio = files.find(fields["audio"], entry.where)
    start_s, end_s, duration_s = (
        number_field(fields.get(name), name, entry.where) for name in ("start", "end", "duration")
    )
    if duration_s is None and end_s is not None:
        duration_s = end_s - (start_s or 0.0)
    name = fields.get("id") or _identifier(_stem(files.inside(audio)))
    if not fields.get("id") and start_s is not None:
        name += f"-{round(1000 * start_s):08d}"
    return Row(
        name,
        audio,
        fields["text"],
        entry.where,
        speaker=fields.get("speaker", ""),
        split=fields.get("split") or split,
        start_s=start_s or 0.0,
        duration_s=duration_s,
        stated=start_s is None and end_s is None,
        channel=channel_field(fields.get("channel"), entry.where),
    )


def _rows_of_texts(transcripts: Path, files: AudioFiles, preparation: Preparation) -> Iterator[Row]:
    used = set()
    for audio in files.paths:
        inside = _stem(files.inside(audio))
        path = transcripts / f"{inside}.txt"
        if not path.is_file():
            continue
        used.add(path)
        with preparation.reporting():
            yield Row(_identifier(inside), audio, " ".join(read_text(path).split()), str(path))
    ours = preparation.folder.resolve()  # may lie among the transcripts
    # Nothing is skipped silently: transcripts without recordings are problems, too.
    for path in sorted(transcripts.rglob("*.txt")):
        inside = path.relative_to(transcripts).as_posix()
        hidden = inside.startswith(".") or "/." in inside
        if hidden or path in used or path.resolve().is_relative_to(ours):
            continue
        with preparation.reporting():
            files.refuse_format(_stem(inside), str(path))
            message = f"{path}: expected a recording of the same name below {files.root}, found none"
            preparation.problem(message, "missing_audio")


def _with_speaker(row: Row, files: AudioFiles, options: Options, preparation: Preparation) -> Row:
    """Return the row with the speaker from its path and the channel from the options."""
    speaker = row.speaker
    if options.speaker and not speaker:
        inside = files.inside(row.audio)
        try:
            match = re.search(options.speaker, inside)
        except re.error as error:
            raise UserError(f"speaker={options.speaker}: not a regular expression ({error})") from None
        if match is None or not match.groups():
            preparation.problem(
                f"speaker={options.speaker}: expected a group that matches, found none in {inside}"
            )
        else:
            speaker = match[1]
    channel = options.channel if row.channel is None else row.channel
    return replace(row, speaker=speaker, channel=channel)


def _with_splits(rows: list[Row], files: AudioFiles) -> list[Row]:
    """Return the rows with their top-level folders as splits, if all of these are split names."""
    folders = [files.inside(row.audio).rpartition("/")[0].partition("/")[0] for row in rows]
    if any(row.split for row in rows) or not all(folder.lower() in SPLITS for folder in folders):
        return rows
    return [replace(row, split=folder) for row, folder in zip(rows, folders, strict=True)]


def _check_unlisted(rows: list[Row], files: AudioFiles, options: Options, preparation: Preparation) -> None:
    listed = {row.audio for row in rows}
    unlisted = [path for path in files.paths if path not in listed]
    if not files.paths:
        preparation.problem(
            f"audio={files.root}: expected recordings ({' '.join(AUDIO_SUFFIXES)}) below, found none",
            "missing_audio",
        )
    elif unlisted and not (options.unlisted or "missing_text" in preparation.accepted):
        if preparation.problems:  # transcripts that couldn't be read may name these
            return
        examples = ", ".join(files.inside(path) for path in unlisted[:3])
        preparation.problem(
            f"audio={files.root}: expected transcripts of all {len(files.paths):,} recordings, found none "
            f"for {len(unlisted):,}, e.g. {examples} (unlisted=true leaves them out and lists them)",
            "missing_text",
        )
    else:
        for path in unlisted:
            preparation.drop(_identifier(_stem(files.inside(path))), "no transcript")


def _stem(path: str) -> str:
    return os.path.splitext(path)[0]


def _identifier(inside: str) -> str:
    """Return an utterance id made from a path, without slashes and spaces."""
    return re.sub(r"\s+", "_", inside.replace("/", "-"))
