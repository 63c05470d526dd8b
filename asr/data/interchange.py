"""Export manifests to other toolkits: Kaldi data directories, NeMo JSON lines, lhotse cuts, Lhotse Shar."""

import contextlib
import json
import re
import shlex
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from asr.data.audio import read_part
from asr.data.audio_file import Samples, open_audio
from asr.data.manifest import write_cuts
from asr.errors import UserError, in_words
from asr.files import FULL, atomic_text
from asr.text.files import CONTROL, write_lines

if TYPE_CHECKING:  # lhotse loads PyTorch, which takes seconds
    from lhotse import MonoCut, Recording
    from lhotse.audio.backend import AudioBackend
    from lhotse.shar import SharWriter


Tables = dict[str, dict[str, object]]  # values by key, by file name
Write = Callable[[], Path]
ILLEGAL = re.compile(r"(?<!\w)(?:</?s>|#0)(?!\w)")  # symbols of Kaldi's that a transcript must not contain
CHANNEL_NAMES = "AB"
SHARD_UTTERANCES = 1000  # lhotse's default
ROUNDING = 1e-9  # energy of rounding noise over the signal's: −90 dB


def kaldi_export(cuts: "Sequence[MonoCut]", folder: Path, split: str) -> Write:
    """Return a function that writes the data directory `folder/split`.

    Its files pass the checks of Kaldi's `utils/validate_data_dir.sh --no-feats`: wav.scp, segments, text,
    utt2spk, spk2utt, utt2dur, reco2dur, reco2file_and_channel, and utt2lang and utt2gender where all
    utterances have one.

    Kaldi wants utterances to be sorted by speaker, too; unless they are, speakers are added as prefixes. In
    wav.scp, files other than one-channel wav of 16-bit PCM become pipes through ffmpeg or sph2pipe. If a
    recording has several channels, each channel that has utterances becomes a recording and a suffix of its
    utterances.

    Raises:
        UserError: an id or a speaker contains a space, ids can't be sorted by speaker or aren't distinct, two
            files share a recording id, a recording lacks a channel, Kaldi would run a file's name, or a
            transcript contains a symbol of Kaldi's.
    """
    recordings = _kaldi_recordings(cuts)
    several = any(recording.num_channels > 1 for recording in recordings.values())
    names = _kaldi_names([(cut.id, cut.supervisions[0].speaker or cut.id) for cut in cuts])
    tables: Tables = defaultdict(dict)
    utterances = defaultdict(list)
    for cut in cuts:
        segment, recording = cut.supervisions[0], cut.recording
        name, source = names[cut.id], recording.id
        if several:
            name, source = f"{name}-{cut.channel}", f"{source}_{cut.channel}"
        tables["wav.scp"][source] = _kaldi_source(recording, cut.channel)
        tables["reco2dur"][source] = recording.duration
        if cut.channel < len(CHANNEL_NAMES):
            tables["reco2file_and_channel"][source] = f"{recording.id} {CHANNEL_NAMES[cut.channel]}"
        utterances[segment.speaker or cut.id].append(name)
        tables["segments"][name] = f"{source} {cut.start} {round(cut.start + cut.duration, 8)}"
        tables["text"][name] = _kaldi_text(cut)
        tables["utt2spk"][name] = segment.speaker or cut.id
        tables["utt2dur"][name] = cut.duration
        for optional, value in [("utt2lang", segment.language), ("utt2gender", segment.gender)]:
            if value is not None:
                tables[optional][name] = value
    tables["spk2utt"] = {speaker: " ".join(sorted(names)) for speaker, names in utterances.items()}
    count = len(cuts)
    if len(tables["utt2spk"]) < count or len(tables["wav.scp"]) < len(
        {(c.recording_id, c.channel) for c in cuts}
    ):
        raise UserError(
            f"split {split}: expected distinct ids after adding speakers and channels, found two alike"
        )
    for optional in ("utt2lang", "utt2gender"):  # Kaldi wants all utterances in a table
        if len(tables[optional]) < count:
            del tables[optional]
    if len(tables["reco2file_and_channel"]) < len(tables["wav.scp"]):
        del tables["reco2file_and_channel"]
    return partial(_write_tables, tables, folder / split)


def _write_tables(tables: Tables, directory: Path) -> Path:
    for file, table in tables.items():
        write_lines(directory / file, (f"{key} {value}" for key, value in sorted(table.items())))
    return directory


def _kaldi_recordings(cuts: "Sequence[MonoCut]") -> "dict[str, Recording]":
    """Return the recordings by id, after checking ids, speakers, files and channels."""
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
        source = cut.recording.sources[0]
        if cut.channel not in source.channels:
            raise UserError(
                f"utterance {cut.id}: expected a channel of {source.source} ({source.channels}), found "
                f"{cut.channel}"
            )
    return recordings


def _kaldi_names(utterances: list[tuple[str, str]]) -> dict[str, str]:
    """Return ids, with speakers as prefixes if needed, whose order is that of (speaker, id).

    `!` comes before all other characters, so it separates speakers of which one begins like another.
    """
    for separator in ("", "-", "!"):
        names = [f"{speaker}{separator}{name}" if separator else name for name, speaker in utterances]
        speakers = [speaker for _, speaker in utterances]
        prefixed = all(name.startswith(speaker) for name, speaker in zip(names, speakers, strict=True))
        by_name = sorted(zip(names, speakers, strict=True))
        if prefixed and by_name == sorted(by_name, key=lambda pair: (pair[1], pair[0])):
            return {name: exported for (name, _), exported in zip(utterances, names, strict=True)}
    raise UserError("expected ids and speakers that sort alike, as Kaldi needs, found some with `!`")


def _kaldi_text(cut: "MonoCut") -> str:
    text = " ".join((cut.supervisions[0].text or "").split())
    if found := ILLEGAL.search(text):
        raise UserError(f"utterance {cut.id}: Kaldi transcripts must not contain {found[0]}")
    return text


def _kaldi_source(recording: "Recording", channel: int) -> str:
    """Return the value of wav.scp: a path, or a pipe that reads it, with the path quoted for the shell."""
    path = recording.sources[0].source
    if recording.num_channels == 1 and Path(path).suffix == ".wav" and _read_by_kaldi(path):
        if path.endswith("|") or path != path.strip():
            raise UserError(f"{path}: expected a file name that Kaldi does not take for a pipe")
        return path
    rate, quoted = recording.sampling_rate, shlex.quote(path)
    if Path(path).suffix == ".sph":
        pipe = f"sph2pipe {quoted} -f wav -c {channel + 1} -p |"
        return f"{pipe} ffmpeg -threads 1 -i pipe:0 -ar {rate} -f wav -threads 1 pipe:1 |"
    mono = f"-af channelmap={channel}:mono"
    return f"ffmpeg -threads 1 -i {quoted} {mono} -ar {rate} -f wav -threads 1 pipe:1 |"


def _read_by_kaldi(path: str) -> bool:
    """Return whether a wav file has the only encoding that Kaldi reads, 16-bit PCM."""
    import soundfile

    try:
        return bool(soundfile.info(path).subtype == "PCM_16")
    except (OSError, soundfile.LibsndfileError):  # a file that is elsewhere now, or broken: Kaldi says so
        return True


def nemo_export(cuts: "Sequence[MonoCut]", folder: Path, split: str) -> Write:
    """Return a function that writes `folder/split.jsonl`.

    It has one object per utterance, with `offset` if it is only part of its file.

    Raises:
        UserError: a recording has several channels, which NeMo manifests can't express.
    """
    entries = []
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
        entries.append(entry | {"speaker": cut.supervisions[0].speaker, "id": cut.id})

    def write() -> Path:
        path = folder / f"{split}.jsonl"
        with atomic_text(path) as file:
            file.writelines(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries)
        return path

    return write


def lhotse_export(cuts: "Sequence[MonoCut]", folder: Path, split: str) -> Write:
    """Return a function that writes `folder/lhotse_cuts_<split>.jsonl.gz` with absolute audio paths."""

    def write() -> Path:
        path = folder / f"lhotse_cuts_{split}.jsonl.gz"
        write_cuts(cuts, path, base=None)
        return path

    return write


def shar_export(cuts: "Sequence[MonoCut]", folder: Path, split: str) -> Write:
    """Return a function that writes the folder `folder/split` in Lhotse Shar format.

    Audio becomes FLAC of 16 or 24 bits, or wav of floats where these would change it.

    Raises:
        UserError: the folder exists; from the function: audio that can't be read, or a full disk.
    """
    target = folder / split
    if target.exists():
        raise UserError(f"{target}: expected no such folder, found one (choose another out=)")

    def write() -> Path:
        from lhotse.audio.backend import get_current_audio_backend, set_current_audio_backend
        from lhotse.shar import SharWriter

        folder.mkdir(parents=True, exist_ok=True)
        before = get_current_audio_backend()
        set_current_audio_backend(_our_reader())
        try:
            with tempfile.TemporaryDirectory(dir=folder, prefix=f".{split}-") as unfinished:
                shards = Path(unfinished, split)
                shards.mkdir()
                writer = SharWriter(shards, {"recording": "flac"}, shard_size=SHARD_UTTERANCES)
                writer.writers["recording"] = _our_writer(shards)
                with contextlib.ExitStack() as open_files:
                    # Each by itself: SharWriter would close none after one that can't be closed.
                    for part in writer.writers.values():
                        open_files.enter_context(part)
                    for cut in cuts:
                        _write_shar(writer, cut)
                shards.rename(target)
        except OSError as error:
            if error.errno in FULL and error.filename is None:
                error.filename = str(target)
            raise
        finally:
            set_current_audio_backend(before)
        return target

    return write


def _write_shar(writer: "SharWriter", cut: "MonoCut") -> None:
    try:
        writer.write(cut)
    except Exception as error:  # lhotse raises exceptions of many kinds
        if isinstance(error, OSError) and error.errno in FULL:
            raise
        source = cut.recording.sources[0].source
        raise UserError(f"utterance {cut.id}: cannot read {source}: {in_words(error)}") from error


def _encoded(samples: Samples) -> tuple[Any, str, str]:
    """Return samples (full scale 1) for libsndfile, and the format and subtype that keep them as they are.

    FLAC has 16 or 24 bits. More precise samples are rounded if that adds noise at −90 dB of them; what lies
    above full scale, or is too quiet for 24 bits, stays in floating point.
    """
    for bits in (16, 24):
        scaled = samples.astype(np.float64) * 2.0 ** (bits - 1)
        rounded = np.clip(np.rint(scaled), -(2.0 ** (bits - 1)), 2.0 ** (bits - 1) - 1)
        noise = float(((scaled - rounded) ** 2).sum())
        if noise <= (ROUNDING * float((scaled**2).sum()) if bits == 24 else 0.0):
            # Integers, because libsndfile multiplies floats by 2^15 − 1, but divides by 2^15.
            return rounded.astype(np.int32) << (32 - bits), "flac", f"PCM_{bits}"
    return samples, "wav", "FLOAT"


def _our_writer(folder: Path) -> Any:
    """Return lhotse's writer of audio to a folder of shards, with a format for each utterance."""
    from lhotse.shar.writers import AudioTarWriter

    class OurWriter(AudioTarWriter):
        def write(self, key: str, value: Samples, *others: Any, **named: Any) -> None:
            _, self.format, _ = _encoded(value)  # also the suffix of the file
            super().write(key, value, *others, **named)

    return OurWriter(f"{folder}/recording.%06d.tar", SHARD_UTTERANCES)


def _our_reader() -> "AudioBackend":
    """Return our reader as one of lhotse's, which run sph2pipe in a shell with the file's name unquoted."""
    from lhotse.audio.backend import LibsndfileBackend

    class OurReader(LibsndfileBackend):  # which writes FLAC
        def read_audio(
            self, path_or_fd: str, offset: float = 0.0, duration: float | None = None, **others: Any
        ) -> tuple[Samples, int]:
            with open_audio(path_or_fd) as audio:
                return read_part(audio, offset, duration).T, audio.rate

        def save_audio(self, dest: Any, src: Any, sampling_rate: int, *_: Any, **others: Any) -> None:
            values, format, encoding = _encoded(src)
            super().save_audio(dest, values, sampling_rate, format, encoding)

    return OurReader()


# Each checks a split completely before anything is written.
FORMATS: "dict[str, Callable[[Sequence[MonoCut], Path, str], Write]]" = {
    "kaldi": kaldi_export,
    "nemo": nemo_export,
    "lhotse": lhotse_export,
    "shar": shar_export,
}
