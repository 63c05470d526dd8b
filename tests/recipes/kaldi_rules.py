"""The checks of Kaldi's utils/validate_data_dir.sh, for a directory without features."""

import re
from pathlib import Path

PER_UTTERANCE = ("text", "segments", "utt2dur", "utt2lang")
PER_RECORDING = ("reco2dur", "reco2file_and_channel")


def kaldi_faults(directory: Path) -> list[str]:
    """Return what Kaldi would refuse."""
    faults = []
    tables = {path.name: path.read_bytes().split(b"\n") for path in directory.iterdir()}
    for name, lines in tables.items():
        if lines.pop() != b"" or not lines:
            faults.append(f"{name}: no newline at the end, or empty")
        keys = [line.split(b" ")[0] for line in lines]
        if keys != sorted(set(keys)):  # bytes: the C locale
            faults.append(f"{name}: not sorted, or duplicates")
    fields = {name: [line.decode().split(" ") for line in lines] for name, lines in tables.items()}
    keys = {name: [row[0] for row in rows] for name, rows in fields.items()}
    speakers = fields["utt2spk"]
    by_speaker = sorted(tables["utt2spk"], key=lambda line: (line.partition(b" ")[2], line))
    if any(len(row) != 2 for row in speakers) or tables["utt2spk"] != by_speaker:
        faults.append("utt2spk: bad line, or not sorted by speaker")
    if [[name, speaker] for speaker, *names in fields["spk2utt"] for name in names] != speakers:
        faults.append("spk2utt: other than utt2spk")
    faults += [
        f"{name}: other utterances than utt2spk"
        for name in PER_UTTERANCE
        if name in keys and keys[name] != keys["utt2spk"]
    ]
    for line in tables["text"]:
        text = line.decode()
        if re.search(r"[^\S ]", text) or re.search(r"(?<!\w)(</?s>|#0)(?!\w)", text):
            faults.append(f"text: {text!r}")
    if any(len(row) != 4 or float(row[3]) <= float(row[2]) for row in fields["segments"]):
        faults.append("segments: bad line")
    recordings = sorted({row[1] for row in fields["segments"]}, key=str.encode)
    if recordings != keys["wav.scp"] or any(row[1].startswith("~") for row in fields["wav.scp"]):
        faults.append("wav.scp: other recordings than segments, or a tilde")
    faults += [
        f"{name}: other recordings than segments"
        for name in PER_RECORDING
        if name in keys and keys[name] != recordings
    ]
    if any(len(row) != 3 or row[2] not in "AB" for row in fields.get("reco2file_and_channel", [])):
        faults.append("reco2file_and_channel: bad line")
    for name in ("utt2dur", "reco2dur"):
        if any(len(row) != 2 or float(row[1]) <= 0 for row in fields[name]):
            faults.append(f"{name}: bad line")
    return faults
