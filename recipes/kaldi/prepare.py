"""Recipe `kaldi`: converts Kaldi data directories (wav.scp, segments, text, utt2spk) to manifests."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from asr.errors import UserError
from asr.preparation.own_data import prepare_rows
from asr.preparation.rows import Row
from asr.preparation.run import Preparation
from asr.text.files import read_lines

from .options import Options

READ = ("wav.scp", "segments", "text", "utt2spk")
# Writes wav/<recording>.wav for each pipe.
RUN_PIPES = r"mkdir -p wav; sed -En 's#^([^ ]+) +(.*)[|] *$#\2 > wav/\1.wav#p' {scp} | sh"


def prepare(options: Options, folder: Path) -> None:
    """Write manifests, lexicon.txt and lm/train.txt below `folder`; the audio stays in place.

    Raises:
        UserError: `source` isn't a data directory, or a file is broken without `allow_partial`.
    """
    directories = data_directories(options.source)

    def read(preparation: Preparation) -> Iterator[Row]:
        for split, path in directories.items():
            yield from read_directory(path, split, Path(options.root), preparation)

    sources = [path / name for path in directories.values() for name in READ if (path / name).exists()]
    prepare_rows("kaldi", options, folder, sources, read)


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
    directories = {child.name: child for child in sorted(path.iterdir()) if (child / "wav.scp").is_file()}
    if not directories:
        raise UserError(f"source={source}: expected wav.scp in it or in its subfolders, found none")
    return directories


def read_directory(path: Path, split: str, root: Path, preparation: Preparation) -> Iterator[Row]:
    """Yield the utterances of a data directory; inconsistencies become problems of `preparation`.

    Args:
        path: data directory.
        split: split of all its utterances.
        root: base of relative audio paths.
        preparation: preparation that collects the problems.
    """
    tables: dict[str, Table] = {name: {} for name in READ}
    for name in READ:
        if name in ("wav.scp", "text") or (path / name).exists():
            with preparation.reporting():
                tables[name] = read_mapping(path / name)
    recordings, listed, texts, speakers = (tables[name] for name in READ)
    audio = {}
    for name, (line, source) in recordings.items():
        with preparation.reporting():
            audio[name] = str(root / _audio_file(f"{path / 'wav.scp'}:{line}", name, source))
    segments = listed or {name: (line, f"{name} 0 -1") for name, (line, _) in recordings.items()}
    has_speakers = (path / "utt2spk").exists()
    file = path / ("segments" if listed else "wav.scp")
    for name, (line, fields) in segments.items():
        where = f"{file}:{line}"
        with preparation.reporting():
            if name not in texts:
                raise UserError(
                    f"{where}: expected the transcript of {name} in {path / 'text'}, found none",
                    "missing_text",
                )
            speaker = speakers.get(name, (0, ""))[1]
            if has_speakers and not speaker:
                raise UserError(f"{path / 'utt2spk'}: expected the speaker of {name}, found none")
            try:
                recording, start, end = fields.split()
                start_s, end_s = float(start), float(end)
            except ValueError:
                raise UserError(
                    f"{where}: expected `utterance recording start end`, found {fields!r}"
                ) from None
            if recording not in recordings:
                raise UserError(
                    f"{where}: expected the recording {recording} in {path / 'wav.scp'}, found none",
                    "missing_audio",
                )
            if recording in audio:
                yield Row(
                    name,
                    audio[recording],
                    texts[name][1],
                    f"{path / 'text'}:{texts[name][0]}",
                    speaker=speaker,
                    split=split,
                    start_s=start_s,
                    duration_s=None if end_s == -1 else end_s - start_s,  # -1: the end of the recording
                    times=where,
                    recording=recording,
                )
    for name, (line, _) in texts.items():
        if segments and name not in segments:
            message = f"{path / 'text'}:{line}: expected {name} in {file}, found none"
            preparation.problem(message, "missing_audio")


# Line number and value by key.
Table = dict[str, tuple[int, str]]


def read_mapping(path: Path) -> Table:
    """Return a file of `key value` lines as {key: (line number, value)}.

    Raises:
        UserError: a key is repeated, or the file is missing or isn't UTF-8.
    """
    table: Table = {}
    for number, line in read_lines(path):
        key, *rest = line.split(maxsplit=1)
        if key in table:
            raise UserError(
                f"{path}:{number}: expected distinct keys, found {key} again ({table[key][0]})", "duplicates"
            )
        table[key] = (number, rest[0].strip() if rest else "")
    return table


def _audio_file(where: str, name: str, source: str) -> str:
    """Return the value of wav.scp unless it is a pipe or an archive, which training can't read."""
    expected = f"{where}: expected the audio file of {name}, found"
    # Commands in data are never run, and training needs random access to audio.
    if source.endswith("|"):
        raise UserError(
            f"{expected} the pipe `{source[:60]}`: commands in data are not run; run them once, "
            f"`{RUN_PIPES.format(scp=where.rpartition(':')[0])}`, then list wav/{name}.wav instead"
        )
    if re.search(r":\d+$", source):
        raise UserError(
            f"{expected} the archive offset {source}: write the audio to files first (wav-copy scp:wav.scp …)"
        )
    if not source:
        raise UserError(f"{expected} none")
    return os.path.expanduser(source)
