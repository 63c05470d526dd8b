"""Recipe `folder`: your own audio or a published corpus, with tables or with one transcript per recording."""

import itertools
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from asr.data.facts import header_facts, player_times
from asr.errors import UserError
from asr.files import near_path, parse_json
from asr.preparation.own_data import prepare_rows
from asr.preparation.rows import Row, channel_field, number_field, text_field
from asr.preparation.run import Preparation
from asr.preparation.splits import SPLIT_NAMES, usual_split_name
from asr.text.files import read_text

from .audio import AudioFiles, identifier, stem
from .layouts import LAYOUTS
from .options import Options
from .parquet import read_parquet
from .tables import SUFFIXES, Entry, parse_columns, read_table

SPLITS = {"train", "dev", "test", *SPLIT_NAMES}
PART = re.compile(r"(.*?)(\d+)-of-(\d+)(\.\w+)")
EXTRACTED = "audio"  # folder in the output for audio that was embedded in tables


@dataclass(frozen=True)
class Table:
    """A file of transcripts, its split (empty: unknown) and the function that reads it."""

    path: Path
    split: str
    read: Callable[[Path, dict[str, str]], Iterable[Entry]]


def prepare(options: Options, folder: Path) -> None:
    """Write manifests, lexicon.txt and lm/train.txt below `folder`; the audio stays in place.

    Raises:
        UserError: the folder or table is missing or malformed, or parts are broken without `allow_partial`.
    """
    root = _root(options)
    transcripts = Path(options.transcripts) if options.transcripts else root

    def read(preparation: Preparation) -> list[Row]:
        files = AudioFiles(root, preparation.folder)
        columns = parse_columns(options.columns)
        if tables := _tables(transcripts, columns, preparation.folder):
            if transcripts.is_dir():
                _check_parts([table.path for table in tables], preparation)
            rows = list(_rows_of_tables(tables, columns, files, preparation))
        else:
            rows = list(_rows_of_texts(transcripts, files, preparation))
        rows = [_with_speaker(row, files, options, preparation) for row in _with_splits(rows, files)]
        _check_unlisted(rows, files, options, preparation)
        return rows

    prepare_rows("folder", options, folder, list(dict.fromkeys([root, transcripts])), read)


def _root(options: Options) -> Path:
    if not options.audio:
        raise UserError("audio= is needed: name the folder with the recordings")
    root = Path(options.audio)
    if root.is_file():
        raise UserError(f"audio={root}: expected a folder, found a file; use audio={root.parent}")
    if not root.is_dir():
        raise UserError(f"audio={root}: expected a folder with recordings, found none{near_path(root)}")
    return root


def _tables(transcripts: Path, columns: dict[str, str], output: Path) -> list[Table]:
    """Return the tables of a corpus; empty if there is a transcript per recording.

    Raises:
        UserError: there are no transcripts, or they have no columns although the options name some.
    """
    if not transcripts.exists():
        near = near_path(transcripts)
        raise UserError(f"transcripts={transcripts}: expected a table or a folder, found none{near}")
    if transcripts.is_dir():
        if named := _tables_per_split(transcripts):
            return named
        for layout in LAYOUTS:
            if paths := layout.files(transcripts):
                if columns and not layout.has_columns:
                    raise _without_columns(columns, f"{paths[0]} of {layout.name}")
                return [Table(path, "", layout.read) for path in paths]
        paths = sorted(transcripts.rglob("*.parquet"))
        if columns and not paths:
            raise _without_columns(columns, f"no table in {transcripts}")
        return _parquet_tables(paths, transcripts, output)
    if transcripts.suffix.lower() == ".parquet":
        return _parquet_tables([transcripts], transcripts.parent, output)
    if transcripts.suffix.lower() not in SUFFIXES:
        raise UserError(f"transcripts={transcripts}: expected {', '.join(SUFFIXES)}, .parquet or a folder")
    return [Table(transcripts, "", read_table)]


def _without_columns(columns: dict[str, str], found: str) -> UserError:
    written = ",".join(f"{name}:{column}" for name, column in columns.items())
    return UserError(f"columns={written}: expected a table with columns, found {found}")


def _tables_per_split(folder: Path) -> list[Table]:
    """Return tables such as train.tsv and dev.tsv; beside train.tsv also test-clean.tsv and so on."""
    tables = {
        path: _split_of(path.stem) for path in sorted(folder.iterdir()) if path.suffix.lower() in SUFFIXES
    }
    tables = {path: split for path, split in tables.items() if split}
    if not any(usual_split_name(split) == "train" for split in tables.values()):
        tables = {path: split for path, split in tables.items() if path.stem.lower() in SPLITS}
    several = {split for split in tables.values() if list(tables.values()).count(split) > 1}
    apart = several - {"train"}  # test-clean and test-other are separate splits
    return [Table(path, path.stem if split in apart else split, read_table) for path, split in tables.items()]


def _split_of(name: str) -> str:
    """Return the split that a name begins with, `dev` for `dev-clean` and `validation_1`; empty: none."""
    first = re.split(r"[-_.]", name)[0]
    return usual_split_name(first) if first.lower() in SPLITS else ""


def _parquet_tables(paths: list[Path], folder: Path, output: Path) -> list[Table]:
    tables = []
    for path in paths:
        inside = path.relative_to(folder)
        split = next(filter(None, map(_split_of, [path.stem, *reversed(inside.parts[:-1])])), "")
        read = partial(read_parquet, output=output / EXTRACTED, name=identifier(stem(inside.as_posix())))
        tables.append(Table(path, split, read))
    return tables


def _check_parts(paths: list[Path], preparation: Preparation) -> None:
    """Report parts of tables that are missing beside others, such as train-00001-of-00002.parquet."""
    parts: dict[tuple[str, ...], set[int]] = defaultdict(set)
    for path in paths:
        if match := PART.fullmatch(str(path)):
            parts[match[1], match[3], match[4]].add(int(match[2]))
    for (before, total, after), numbers in parts.items():
        if len(numbers) < int(total):
            first = int(int(total) in numbers)  # numbers may start from 1
            missing = next(i for i in itertools.count(first) if i not in numbers)
            part = f"{before}{missing:0{len(total)}d}-of-{total}{after}"
            preparation.problem(
                f"{part}: expected {int(total):,} parts of a table, found {len(numbers):,} without this",
                "missing_parts",
            )


def _rows_of_tables(
    tables: list[Table], columns: dict[str, str], files: AudioFiles, preparation: Preparation
) -> Iterator[Row]:
    for table in tables:
        beside = files.inside(table.path.parent)
        with preparation.reporting():
            for entry in table.read(table.path, columns):
                name = entry.fields["audio"]
                if os.path.isabs(name) and not os.path.exists(name):
                    preparation.watch([name])  # outside the corpus, perhaps
                with preparation.reporting():
                    row = _row(entry, table.split, files, beside)
                    if entry.ignored:
                        preparation.drop(row.name, entry.ignored, row.text)
                    else:
                        yield row


def _row(entry: Entry, split: str, files: AudioFiles, beside: str) -> Row:
    fields = entry.fields
    audio = files.find(fields["audio"], entry.where, beside)
    start_s, end_s, duration_s = (
        number_field(fields.get(name), name, entry.where) for name in ("start", "end", "duration")
    )
    if entry.samples:
        duration_s = None  # SpeechBrain's tables of VoxCeleb have that of the whole file
        length, rate, _ = header_facts(audio)
        # No end, or one equal to the start, is the end of the file.
        end_s = (length if end_s in (None, start_s or 0.0) else end_s) / rate
        start_s = (start_s or 0.0) / rate
    if duration_s is None and end_s is not None:
        duration_s = end_s - (start_s or 0.0)
    name = fields.get("id") or identifier(stem(files.inside(audio)))
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
        inside = stem(files.inside(audio))
        text, segments = transcripts / f"{inside}.txt", transcripts / f"{inside}.json"
        if _is_whisper(segments):
            used |= {segments, text}  # Whisper also writes the text
            with preparation.reporting():
                yield from _rows_of_whisper(segments, audio, files, preparation)
        elif text.is_file():
            used.add(text)
            with preparation.reporting():
                yield Row(identifier(inside), audio, " ".join(read_text(text).split()), str(text))
    ours = preparation.folder.resolve()  # may lie among the transcripts
    # Nothing is skipped silently: transcripts without recordings are problems, too.
    for path in sorted([*transcripts.rglob("*.txt"), *filter(_is_whisper, transcripts.rglob("*.json"))]):
        inside = path.relative_to(transcripts).as_posix()
        hidden = inside.startswith(".") or "/." in inside
        if not (hidden or path in used or path.resolve().is_relative_to(ours)):
            message = f"{path}: expected a recording of the same name below {files.root}, found none"
            preparation.problem(message, "missing_audio")


def _is_whisper(path: Path) -> bool:
    return path.is_file() and '"segments"' in path.read_text(encoding="utf-8", errors="replace")


def _rows_of_whisper(path: Path, audio: str, files: AudioFiles, preparation: Preparation) -> Iterator[Row]:
    """Yield the segments of Whisper's JSON, whose times count samples; segments without text are dropped."""
    content = parse_json(read_text(path), str(path), "Whisper's JSON")
    segments = content.get("segments") if isinstance(content, dict) else None
    if not isinstance(segments, list):
        raise UserError(f"{path}: expected Whisper's JSON with a list of segments, found another")
    in_player = player_times(audio)
    for number, segment in enumerate(segments):
        where = f"{path}: segment {number}"
        with preparation.reporting():
            if not isinstance(segment, dict) or not {"start", "end", "text"} <= segment.keys():
                raise UserError(f"{where}: expected start, end and text, found {str(segment)[:60]!r}")
            fields = {
                key: text_field(segment.get(key), key, where) for key in ("start", "end", "text", "speaker")
            }
            for key in ("start", "end"):
                if (time_s := number_field(fields[key], key, where)) is not None:
                    fields[key] = repr(in_player(time_s, key == "end"))
            row = _row(Entry(where, {"audio": files.inside(audio), **fields}), "", files, "")
            if row.text.strip():
                yield row
            else:
                preparation.drop(row.name, "no text", "")


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
    """Return the rows with folders as splits, if all lie in folders with such names, side by side."""
    if any(row.split for row in rows):
        return rows
    folders = [files.inside(row.audio).split("/")[:-1] for row in rows]
    for depth in range(min(map(len, folders), default=0)):
        names = [parts[depth] for parts in folders]
        if all(name.lower() in SPLITS for name in names):
            return [replace(row, split=name) for row, name in zip(rows, names, strict=True)]
        if len(set(names)) > 1:
            break
    return rows


def _check_unlisted(rows: list[Row], files: AudioFiles, options: Options, preparation: Preparation) -> None:
    for path, other in files.copies.items():
        preparation.drop(identifier(files.inside(path)), f"{files.inside(other)} is read instead")
    listed = {row.audio for row in rows}
    unlisted = [path for path in files.paths if path not in listed]
    if not (files.paths or rows or preparation.problems):
        preparation.problem(f"audio={files.root}: expected recordings below, found none", "missing_audio")
    elif unlisted and len(unlisted) == len(files.paths) and not (options.transcripts or preparation.problems):
        raise UserError(
            f"audio={files.root}: expected transcripts, found none: name a table with transcripts=, or put a "
            ".txt file beside each recording"
        )
    elif unlisted and not (options.unlisted or "missing_text" in preparation.accepted):
        if preparation.problems and not rows:  # the table as a whole can't be read
            return
        examples = ", ".join(files.inside(path) for path in unlisted[:3])
        preparation.problem(
            f"audio={files.root}: expected transcripts of all {len(files.paths):,} recordings, found none "
            f"for {len(unlisted):,}, e.g. {examples} (unlisted=true leaves them out and lists them)",
            "missing_text",
        )
    else:
        for path in unlisted:
            preparation.drop(identifier(stem(files.inside(path))), "no transcript")
