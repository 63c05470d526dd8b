"""Recipe `nemo`: converts NVIDIA NeMo manifests (one JSON object per line) to lhotse manifests."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from asr.errors import UserError
from asr.files import parse_json
from asr.preparation.own_data import prepare_rows
from asr.preparation.rows import Row, channel_field, distinct_names, number_field, text_field
from asr.preparation.run import Preparation
from asr.preparation.splits import SPLIT_NAMES, usual_split_name
from asr.text.files import read_lines

from .options import Options

SUFFIXES = (".json", ".jsonl")
SPLITS = ["train", "dev", "test", *SPLIT_NAMES]


def prepare(options: Options, folder: Path) -> None:
    """Write manifests, lexicon.txt and lm/train.txt below `folder`; the audio stays in place.

    Raises:
        UserError: `source` contains no manifests, or lines are broken without `allow_partial`.
    """
    manifests = find_manifests(options.source)

    def read(preparation: Preparation) -> Iterator[Row]:
        rows = [row for split, path in manifests for row in read_manifest(path, split, preparation)]
        return with_ids(rows)

    prepare_rows("nemo", options, folder, [path for _, path in manifests], read)


def find_manifests(source: str) -> list[tuple[str, Path]]:
    """Return (split, manifest) pairs; a single file has the split "" (not yet split).

    Raises:
        UserError: there are none, or a file name in the folder does not begin with a split.
    """
    if not source:
        raise UserError("source= is needed: name a NeMo manifest, or a folder of manifests")
    path = Path(source)
    if path.is_file():
        return [("", path)]
    if not path.is_dir():
        raise UserError(f"source={source}: expected a NeMo manifest or a folder, found neither")
    files = sorted(child for child in path.iterdir() if child.suffix in SUFFIXES)
    if not files:
        raise UserError(f"source={source}: expected manifests ({', '.join(SUFFIXES)}), found none")
    manifests = []
    for file in files:
        name = file.stem.lower().removesuffix("manifest").rstrip("_-")
        splits = [split for split in SPLITS if name.startswith(split)]
        if not splits:
            raise UserError(f"{file}: expected a name that begins with train, dev or test")
        split = usual_split_name(max(splits, key=len))
        # Several files may contain the training data; test_clean and test_other are separate splits.
        manifests.append((split if split == "train" or name in SPLITS else name, file))
    return manifests


def read_manifest(path: Path, split: str, preparation: Preparation) -> Iterator[Row]:
    """Yield the utterances of a manifest; broken lines become problems of `preparation`.

    Audio paths are relative to the manifest, as in NeMo. The utterance id is `id` or `utt_id`, or else empty.
    """
    lines: list[tuple[int, str]] = []
    with preparation.reporting():
        lines = read_lines(path)
    for number, line in lines:
        with preparation.reporting():
            yield _row(f"{path}:{number}", line, path.parent, split)


def with_ids(rows: list[Row]) -> Iterator[Row]:
    """Yield the rows; rows without an id get one made from audio file and offset.

    Files with the same name in different folders get as many folders as needed before their names.
    """
    # The file name alone would make `ann/1.wav` and `ben/1.wav` the same utterance.
    names = distinct_names(row.audio for row in rows if not row.name)
    for row in rows:
        if not row.name:
            part = f"-{round(1000 * row.start_s):08d}" if row.start_s or not row.stated else ""
            row = replace(row, name=names[row.audio].replace(" ", "_") + part)
        yield row


def _row(where: str, line: str, folder: Path, split: str) -> Row:
    hint = " (one object per line)" if line.strip() in ("[", "{") else ""
    entry = parse_json(line, where, f"an object{hint}")
    if not isinstance(entry, dict) or "audio_filepath" not in entry:
        raise UserError(f"{where}: expected an object with audio_filepath, found {line[:60]!r}")
    if "text" not in entry and "text_filepath" in entry:
        raise UserError(f"{where}: expected the transcript as text, found text_filepath")
    audio = str(folder / os.path.expanduser(text_field(entry["audio_filepath"], "audio_filepath", where)))
    offset, duration_s = (number_field(entry.get(name), name, where) for name in ("offset", "duration"))
    start_s = offset or 0.0
    name = text_field(entry.get("id") or entry.get("utt_id"), "id", where)
    return Row(
        name.replace(" ", "_"),
        audio,
        text_field(entry.get("text"), "text", where),
        where,
        speaker=text_field(entry.get("speaker"), "speaker", where),
        split=split,
        start_s=start_s,
        duration_s=duration_s,
        stated=offset is None,
        channel=channel_field(entry.get("channel"), where),
    )
