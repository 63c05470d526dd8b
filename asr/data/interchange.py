"""Export manifests to other toolkits: Kaldi data directories, NeMo JSON lines, lhotse cuts."""

import json
import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from lhotse import CutSet, MonoCut, RecordingSet, SupervisionSet
from lhotse.kaldi import export_to_kaldi
from lhotse.utils import fastcopy

from asr.errors import UserError
from asr.files import atomic_text, write_text


def write_kaldi(cuts: CutSet, folder: Path, split: str) -> Path:
    """Write the data directory `folder/split`: wav.scp, segments, text, utt2spk, spk2utt, ….

    Unless every utterance id starts with its speaker, as Kaldi's sorting requires, speakers are added as
    prefixes. In wav.scp, files other than one-channel wav become pipes through ffmpeg or sph2pipe. Each
    channel of a multi-channel recording becomes a recording, and utterances get the channel as a suffix.

    Raises:
        UserError: an id or a speaker contains a space, or two files share a recording id.
    """
    directory = folder / split
    recordings: dict[str, MonoCut] = {}
    supervisions = []
    for cut in cuts:
        known = recordings.setdefault(cut.recording.id, cut).recording
        if known.sources != cut.recording.sources:
            raise UserError(
                f"utterance {cut.id}: expected one file for recording {known.id}, found "
                f"{cut.recording.sources[0].source} and {known.sources[0].source}"
            )
        speaker = cut.supervisions[0].speaker or cut.id
        for name in (cut.id, speaker, cut.recording.id):
            if re.search(r"\s", name):
                raise UserError(f"utterance {cut.id}: Kaldi ids must not contain spaces, found {name!r}")
        supervisions.append(
            fastcopy(
                cut.supervisions[0],
                id=cut.id,
                start=cut.start,
                duration=cut.duration,
                channel=cut.channel,
                speaker=speaker,
            )
        )
    if not all(segment.id.startswith(segment.speaker) for segment in supervisions):
        supervisions = [fastcopy(segment, id=f"{segment.speaker}-{segment.id}") for segment in supervisions]
    export_to_kaldi(
        RecordingSet.from_recordings(cut.recording for cut in recordings.values()),
        SupervisionSet.from_segments(supervisions),
        directory,
    )
    utterances = defaultdict(list)
    for line in (directory / "utt2spk").read_text(encoding="utf-8").splitlines():
        utterance, speaker = line.split()
        utterances[speaker].append(utterance)
    lines = [f"{speaker} {' '.join(names)}\n" for speaker, names in sorted(utterances.items())]
    write_text("".join(lines), directory / "spk2utt")
    return directory


def write_nemo(cuts: CutSet, folder: Path, split: str) -> Path:
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


def write_lhotse(cuts: CutSet, folder: Path, split: str) -> Path:
    """Write `folder/lhotse_cuts_<split>.jsonl.gz` with absolute audio paths."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"lhotse_cuts_{split}.jsonl.gz"
    cuts.to_file(path)
    return path


FORMATS: dict[str, Callable[[CutSet, Path, str], Path]] = {
    "kaldi": write_kaldi,
    "nemo": write_nemo,
    "lhotse": write_lhotse,
}
