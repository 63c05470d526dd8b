"""Export manifests to other toolkits: Kaldi data directories, NeMo JSON lines, lhotse cuts."""

import json
import re
import shlex
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from asr.data.manifest import write_cuts
from asr.errors import UserError
from asr.files import atomic_text
from asr.text.files import CONTROL, write_lines

if TYPE_CHECKING:  # lhotse loads PyTorch, which takes seconds
    from lhotse import CutSet, Recording


def write_kaldi(cuts: "CutSet", folder: Path, split: str) -> Path:
    """Write the data directory `folder/split`: wav.scp, segments, text, utt2spk, spk2utt, ….

    Unless every utterance id starts with its speaker, as Kaldi's sorting requires, speakers are added as
    prefixes. In wav.scp, files other than one-channel wav become pipes through ffmpeg or sph2pipe. If a
    recording has several channels, each channel becomes a recording and a suffix of its utterances.

    Raises:
        UserError: an id or a speaker contains a space, two files share a recording id, or Kaldi would run a
            file's name.
    """
    recordings: dict[str, Recording] = {}
    for cut in cuts:
        known = recordings.setdefault(cut.recording.id, cut.recording)
        if known.sources != cut.recording.sources:
            raise UserError(
                f"utterance {cut.id}: expected one file for recording {known.id}, found "
                f"{cut.recording.sources[0].source} and {known.sources[0].source}"
            )
        for name in (cut.id, cut.supervisions[0].speaker or cut.id, cut.recording.id):
            if not name or re.search(r"\s", name) or CONTROL.search(name):
                raise UserError(f"utterance {cut.id}: Kaldi ids must not contain spaces, found {name!r}")
    prefixed = all(cut.id.startswith(cut.supervisions[0].speaker or cut.id) for cut in cuts)
    several = any(recording.num_channels > 1 for recording in recordings.values())
    tables: dict[str, dict[str, object]] = defaultdict(dict)
    for recording in recordings.values():
        for channel in recording.sources[0].channels:
            name = f"{recording.id}_{channel}" if several else recording.id
            tables["wav.scp"][name] = _kaldi_source(recording, channel)
            tables["reco2dur"][name] = recording.duration
    utterances = defaultdict(list)
    for cut in cuts:
        segment = cut.supervisions[0]
        speaker = segment.speaker or cut.id
        name = cut.id if prefixed else f"{speaker}-{cut.id}"
        source = cut.recording.id
        if several:
            name, source = f"{name}-{cut.channel}", f"{source}_{cut.channel}"
        utterances[speaker].append(name)
        tables["segments"][name] = f"{source} {cut.start} {round(cut.start + cut.duration, 8)}"
        tables["text"][name] = " ".join((segment.text or "").split())
        tables["utt2spk"][name] = speaker
        tables["utt2dur"][name] = cut.duration
        for optional, value in [("utt2lang", segment.language), ("utt2gender", segment.gender)]:
            if value is not None:
                tables[optional][name] = value
    tables["spk2utt"] = {speaker: " ".join(sorted(names)) for speaker, names in utterances.items()}
    for optional in ("utt2lang", "utt2gender"):  # Kaldi wants all utterances in a table
        if len(tables[optional]) < len(tables["text"]):
            del tables[optional]
    directory = folder / split
    for file, table in tables.items():
        write_lines(directory / file, (f"{key} {value}" for key, value in sorted(table.items())))
    return directory


def _kaldi_source(recording: "Recording", channel: int) -> str:
    """Return the value of wav.scp: a path, or a pipe that reads it, with the path quoted for the shell."""
    path = recording.sources[0].source
    if recording.num_channels == 1 and Path(path).suffix == ".wav":
        if path.endswith("|") or path != path.strip():
            raise UserError(f"{path}: expected a file name that Kaldi does not take for a pipe")
        return path
    rate, quoted = recording.sampling_rate, shlex.quote(path)
    if Path(path).suffix == ".sph":
        pipe = f"sph2pipe {quoted} -f wav -c {channel + 1} -p |"
        return f"{pipe} ffmpeg -threads 1 -i pipe:0 -ar {rate} -f wav -threads 1 pipe:1 |"
    mapped = f"-map_channel 0.0.{channel}"
    return f"ffmpeg -threads 1 -i {quoted} -ar {rate} {mapped} -f wav -threads 1 pipe:1 |"


def write_nemo(cuts: "CutSet", folder: Path, split: str) -> Path:
    """Write `folder/split.jsonl`, one object per utterance, with `offset` if it is only part of its file.

    Raises:
        UserError: a recording has several channels, which NeMo manifests can't express.
    """
    path = folder / f"{split}.jsonl"
    with atomic_text(path) as file:
        for cut in cuts:
            source = cut.recording.sources[0].source
            channels = cut.recording.num_channels
            if channels != 1:
                raise UserError(
                    f"utterance {cut.id}: NeMo manifests need one-channel audio, found {channels} channels "
                    f"in {source}"
                )
            entry = {"audio_filepath": source, "duration": cut.duration, "text": cut.supervisions[0].text}
            if cut.start > 0 or cut.duration < cut.recording.duration:
                entry["offset"] = cut.start
            entry |= {"speaker": cut.supervisions[0].speaker, "id": cut.id}
            file.write(json.dumps(entry, ensure_ascii=False) + "\n")
    return path


def write_lhotse(cuts: "CutSet", folder: Path, split: str) -> Path:
    """Write `folder/lhotse_cuts_<split>.jsonl.gz` with absolute audio paths."""
    path = folder / f"lhotse_cuts_{split}.jsonl.gz"
    write_cuts(cuts, path, base=None)
    return path


FORMATS: "dict[str, Callable[[CutSet, Path, str], Path]]" = {
    "kaldi": write_kaldi,
    "nemo": write_nemo,
    "lhotse": write_lhotse,
}
