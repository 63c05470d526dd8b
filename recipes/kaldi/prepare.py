"""Recipe `kaldi`: convert Kaldi data directories (wav.scp, segments, text, utt2spk) to manifests."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from asr.config import option
from asr.errors import UserError
from asr.preparation import Preparation, read_lines
from asr.preparation.own_data import OwnDataOptions, check_options, finish_rows
from asr.preparation.rows import Row

READ = ("wav.scp", "segments", "text", "utt2spk")


@dataclass
class Options(OwnDataOptions):
    """Location of the data directories."""

    source: str = option("", help="a data directory, or a folder with one per split (train, dev, test)")
    root: str = option("", help="base of relative paths in wav.scp; empty: the current folder")


def prepare(options: Options, folder: Path) -> None:
    """Write manifests, lexicon.txt and lm/train.txt below `folder`; the audio stays in place.

    Raises:
        UserError: `source` is no data directory, or a file is broken without `allow_partial`.
    """
    check_options(options)
    directories = data_directories(options.source)
    sources = [path / name for path in directories.values() for name in READ if (path / name).exists()]
    preparation = Preparation("kaldi", folder, options)
    if preparation.is_done(sources):
        return
    rows = [
        row
        for split, path in directories.items()
        for row in read_directory(path, split, Path(options.root), preparation)
    ]
    finish_rows(rows, preparation, options, sources)


def data_directories(source: str) -> dict[str, Path]:
    """Return the data directories by split; a single one has the split "" (not yet split).

    Raises:
        UserError: there are none.
    """
    if not source:
        raise UserError("source= is needed: name a Kaldi data directory, or a folder of them")
    path = Path(source)
    if (path / "wav.scp").is_file():
        return {"": path}
    if not path.is_dir():
        raise UserError(f"source={source}: expected a Kaldi data directory, found no such folder")
    found = {child.name: child for child in sorted(path.iterdir()) if (child / "wav.scp").is_file()}
    if not found:
        raise UserError(f"source={source}: expected wav.scp in it or in its subfolders, found none")
    return found


def read_directory(path: Path, split: str, root: Path, preparation: Preparation) -> Iterator[Row]:
    """Yield the utterances of a data directory; inconsistencies become problems of `preparation`.

    Args:
        path: data directory.
        split: split of all its utterances.
        root: base of relative audio paths.
        preparation: collector of the problems.
    """
    tables: dict[str, Table] = {}
    for name in READ:
        try:
            tables[name] = read_mapping(path / name, required=name in ("wav.scp", "text"))
        except UserError as error:
            preparation.problem(str(error))
            tables[name] = {}
    audio = _audio(tables["wav.scp"], path, root, preparation)
    segments = tables["segments"] or {name: (line, name) for name, (line, _) in tables["wav.scp"].items()}
    file = path / ("segments" if tables["segments"] else "wav.scp")
    for name, (line, fields) in segments.items():
        where = f"{file}:{line}"
        if name not in tables["text"]:
            preparation.problem(f"{where}: expected the transcript of {name} in {path / 'text'}, found none")
            continue
        try:
            recording, start_s, duration_s = _segment(where, name, fields, bool(tables["segments"]))
        except UserError as error:
            preparation.problem(str(error))
            continue
        if recording not in tables["wav.scp"]:
            preparation.problem(
                f"{where}: expected the recording {recording} in {path / 'wav.scp'}, found none"
            )
        if recording not in audio:
            continue
        text_line, text = tables["text"][name]
        speaker = tables["utt2spk"].get(name, (0, ""))[1]
        yield Row(
            name,
            audio[recording],
            text,
            f"{path / 'text'}:{text_line}",
            speaker=speaker,
            split=split,
            start_s=start_s,
            duration_s=duration_s,
            recording=recording,
        )
    for name, (line, _) in tables["text"].items():
        if segments and name not in segments:
            preparation.problem(f"{path / 'text'}:{line}: expected {name} in {file}, found none")


# Line number and value by key.
Table = dict[str, tuple[int, str]]


def read_mapping(path: Path, required: bool) -> Table:
    """Return a file of `key value` lines as {key: (line number, value)}.

    Raises:
        UserError: a key is repeated, the file isn't UTF-8, or a required file is missing.
    """
    if not required and not path.exists():
        return {}
    table: Table = {}
    for number, line in read_lines(path):
        key, *rest = line.split(maxsplit=1)
        if key in table:
            raise UserError(f"{path}:{number}: expected distinct keys, found {key} again ({table[key][0]})")
        table[key] = (number, rest[0].strip() if rest else "")
    return table


def _audio(table: Table, path: Path, root: Path, preparation: Preparation) -> dict[str, str]:
    """Return audio files by recording; pipes and archives become problems, as training can't read them."""
    audio = {}
    for name, (line, source) in table.items():
        where = f"{path / 'wav.scp'}:{line}"
        if source.endswith("|"):
            preparation.problem(
                f"{where}: expected the audio file of {name}, found the pipe `{source[:60]}`: pipes are not "
                "run; write the audio to files first (wav-copy scp:wav.scp …, or sph2pipe) and list those"
            )
        elif re.search(r":\d+$", source):
            preparation.problem(
                f"{where}: expected the audio file of {name}, found the archive offset {source}: write the "
                "audio to files first (wav-copy scp:wav.scp …)"
            )
        elif not source:
            preparation.problem(f"{where}: expected the audio file of {name}, found none")
        else:
            audio[name] = str(root / source)
    return audio


def _segment(where: str, name: str, fields: str, segmented: bool) -> tuple[str, float, float | None]:
    """Return recording, start and duration; an end of −1 is the end of the recording."""
    if not segmented:
        return name, 0.0, None
    try:
        recording, start, end = fields.split()
        start_s, end_s = float(start), float(end)
    except ValueError:
        raise UserError(f"{where}: expected `utterance recording start end`, found {fields!r}") from None
    return recording, start_s, None if end_s == -1 else end_s - start_s
