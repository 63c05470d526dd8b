import gzip
import json
import os

import pytest
from lhotse import AudioSource, MonoCut, Recording, SupervisionSegment
from tone_corpora import save_cuts

from asr.data.manifest import read_cuts
from asr.errors import UserError


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "wav").mkdir()
    (tmp_path / "wav" / "a.wav").write_bytes(b"RIFF, not read here")
    return tmp_path


def make_cut(folder, name="u1"):
    recording = Recording(name, [AudioSource("file", [0], str(folder / "wav" / "a.wav"))], 16000, 32000, 2.0)
    supervision = SupervisionSegment(name, name, 0.0, 1.5, text="go on", speaker="ann", language="en")
    return MonoCut(name, 0.25, 1.5, 0, supervisions=[supervision], recording=recording)


def write(folder, *changes):
    """Save one cut per entry of `changes`: a function that damages the cut's dictionary, or None."""
    entries = []
    for number, change in enumerate(changes, start=1):
        entry = make_cut(folder, f"u{number}").to_dict()
        if change:
            change(entry)
        entries.append(json.dumps(entry))
    path = folder / "x.cuts.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(entries).encode()))
    return path


def test_round_trip_in_a_moved_folder(folder, tmp_path):
    save_cuts([make_cut(folder, "u1"), make_cut(folder, "u2")], folder / "x.cuts.jsonl.gz")
    line = gzip.decompress((folder / "x.cuts.jsonl.gz").read_bytes()).decode().splitlines()[0]
    assert json.loads(line)["recording"]["sources"][0]["source"] == "wav/a.wav"
    moved = folder.rename(folder.with_name("moved"))
    loaded = read_cuts(moved / "x.cuts.jsonl.gz")
    assert [cut.id for cut in loaded] == ["u1", "u2"]
    expected = make_cut(moved, "u1")
    assert loaded[0] == expected


def test_audio_elsewhere_stays_absolute(folder):
    save_cuts([make_cut(folder)], folder / "manifests" / "x.cuts.jsonl.gz")
    assert read_cuts(folder / "manifests" / "x.cuts.jsonl.gz")[0].recording.sources[0].source == str(
        folder / "wav" / "a.wav"
    )


def test_equal_cuts_give_equal_bytes(folder):
    for name in ["x.cuts.jsonl.gz", "y.cuts.jsonl.gz"]:
        save_cuts([make_cut(folder)], folder / name)
    assert (folder / "x.cuts.jsonl.gz").read_bytes() == (folder / "y.cuts.jsonl.gz").read_bytes()


def test_interrupted_writing_keeps_the_old_manifest(folder):
    def fail():
        yield make_cut(folder, "u2")
        raise KeyboardInterrupt

    save_cuts([make_cut(folder)], folder / "x.cuts.jsonl.gz")
    with pytest.raises(KeyboardInterrupt):
        save_cuts(fail(), folder / "x.cuts.jsonl.gz")
    assert [cut.id for cut in read_cuts(folder / "x.cuts.jsonl.gz")] == ["u1"]


def setter(*keys, value):
    def change(entry):
        for key in keys[:-1]:
            entry = entry[key]
        entry[keys[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (setter("id", value="u1"), "expected ids to be distinct"),
        (setter("start", value=-0.5), "expected a start of 0 s or later, found -0.5 s"),
        (setter("start", value=float("nan")), "expected a start of 0 s or later, found nan s"),
        (setter("duration", value=0.0), "expected a duration above 0 s, found 0.0 s"),
        (setter("duration", value=-1.0), "expected a duration above 0 s, found -1.0 s"),
        (setter("start", value=0.6), "within its recording of 2.0 s, found 0.6 s \\+ 1.5 s"),
        (
            setter("recording", "sources", 0, "source", value="wav/no.wav"),
            "/wav/no.wav: expected an audio file, found none",
        ),
        (setter("recording", "sources", 0, "source", value="wav/empty.wav"), "found an empty file"),
        (setter("supervisions", 0, "text", value=" "), "expected a transcript, found none"),
        (setter("supervisions", 0, "text", value=None), "expected a transcript, found none"),
        (setter("supervisions", value=[]), "exactly one supervision, found 0"),
        (lambda entry: entry["supervisions"].append(entry["supervisions"][0]), "one supervision, found 2"),
        (lambda entry: entry.pop("recording"), "expected a recording, found none"),
        (lambda entry: entry.pop("duration"), "not a lhotse cut"),
        (setter("type", value="MixedCut"), "expected a MonoCut"),
    ],
)
def test_errors_name_manifest_and_utterance(folder, change, message):
    (folder / "wav" / "empty.wav").touch()
    path = write(folder, None, change)
    with pytest.raises(UserError, match=message) as error:
        read_cuts(path)
    name = "u1" if "distinct" in message else "u2"
    assert str(path) in str(error.value)
    assert f"utterance {name!r}" in str(error.value)
    assert "\n" not in str(error.value)


def stored(**fields):
    return {
        "type": "hdf5",
        "num_frames": 1,
        "num_features": 1,
        "frame_shift": 0.01,
        "sampling_rate": 16000,
    } | fields


COMMAND = {"type": "command", "channels": [0], "source": "touch planted"}
RECORDING = {"id": "r", "sources": [COMMAND], "sampling_rate": 16000, "num_samples": 32000, "duration": 2.0}
FEATURES = stored(
    start=0.0, duration=2.0, storage_type="memory_raw", storage_path="", storage_key="gASV", channels=0
)
REVERB = {"name": "ReverbWithImpulseResponse", "kwargs": {"rir": RECORDING}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (setter("recording", "sources", 0, value=COMMAND), "expected audio in a file.*type 'command'"),
        (setter("recording", "sources", 0, "type", value="url"), "expected audio in a file.*type 'url'"),
        (setter("recording", "sources", 0, "type", value="memory"), "type 'memory'"),
        (setter("recording", "sources", 0, "type", value="shar"), "type 'shar'"),
        (setter("recording", "sources", 0, "type", value=["file"]), "type \\['file'\\]"),
        (setter("recording", "sources", 0, "source", value=3), "type 'file': '3'"),
        (setter("recording", "sources", value=[]), "expected a recording with its audio files"),
        (setter("recording", value="a.wav"), "expected a recording with its audio files"),
        (setter("recording", "sources", 0, "video", value={"fps": 1}), "unmodified audio.*found video"),
        (setter("recording", "transforms", value=[REVERB]), "unmodified audio.*found transforms"),
        (setter("features", value=FEATURES), "expected no features"),
        (setter("custom", value={"target": RECORDING}), "found stored data \\(sources\\)"),
        (setter("supervisions", 0, "custom", value={"a": {"b": [FEATURES]}}), "found stored data"),
        (setter("custom", value={"image": {"width": 1, "storage_type": "pillow"}}), "found stored data"),
    ],
)
def test_nothing_in_a_manifest_is_run_fetched_or_unpickled(folder, change, message, monkeypatch):
    """A source of type `command` is a shell command for lhotse, run by every command that loaded audio."""
    monkeypatch.chdir(folder)
    path = write(folder, None, change)
    with pytest.raises(UserError, match=message) as error:
        read_cuts(path)[1].load_audio()
    assert "utterance 'u2'" in str(error.value)
    assert not (folder / "planted").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (setter("supervisions", 0, "text", value=["go", "on"]), "expected text as transcript"),
        (setter("supervisions", 0, "text", value="go\nu9 on"), "no control characters in the transcript"),
        (setter("supervisions", 0, "text", value="go\x1b[2J"), "no control characters in the transcript"),
        (setter("supervisions", 0, "text", value="go \ud800"), "surrogates not allowed"),
        (setter("supervisions", 0, "speaker", value="a\tb"), "no control characters in the speaker"),
        (setter("supervisions", 0, "speaker", value=7), "expected text as speaker"),
        (setter("id", value="u2\nu9"), "no control characters in the id"),
        (setter("recording", "id", value="r\r"), "a recording's id of plain text"),
        (
            setter("recording", "sampling_rate", value=1),
            "expected a sample rate of 4000 to 384000 Hz, found 1",
        ),
        (setter("recording", "sampling_rate", value="16000"), "expected a sample rate"),
        (setter("recording", "num_samples", value=10**12), "as long as its samples"),
        (setter("recording", "duration", value="2.0"), "as long as its samples"),
        (setter("start", value="0"), "expected a start"),
        (setter("duration", value=[1]), "expected a duration"),
        (setter("channel", value="left"), "expected the number of a channel"),
        (setter("supervisions", value=5), "not a lhotse cut"),
        (setter("custom", value=json.loads("[" * 500 + "]" * 500)), "at most 20 levels"),
    ],
)
def test_fields_of_another_kind_are_refused(folder, change, message):
    """A list as transcript ended in a traceback; a line break in one forged lines of exported files."""
    path = write(folder, None, change)
    with pytest.raises(UserError, match=message) as error:
        read_cuts(path)
    assert len(str(error.value).splitlines()) == 1
    assert str(path) in str(error.value)


def test_custom_fields_of_text_and_numbers_are_kept(folder):
    path = write(folder, setter("custom", value={"source": "radio", "snr": 3.5, "tags": ["a"]}))
    assert read_cuts(path)[0].custom == {"source": "radio", "snr": 3.5, "tags": ["a"]}


def test_a_named_pipe_is_no_manifest_and_no_audio(folder):
    """Opening a named pipe waits for a writer, for ever."""
    os.mkfifo(folder / "pipe.cuts.jsonl.gz")
    with pytest.raises(UserError, match="expected a manifest, found a pipe"):
        read_cuts(folder / "pipe.cuts.jsonl.gz")
    with pytest.raises(UserError, match="expected an audio file, found a pipe"):
        read_cuts(write(folder, setter("recording", "sources", 0, "source", value="pipe.cuts.jsonl.gz")))


def test_transcripts_are_optional_without_require_text(folder):
    path = write(folder, setter("supervisions", 0, "text", value=None))
    assert len(read_cuts(path, require_text=False)) == 1


def test_errors_name_broken_files(folder):
    path = write(folder, *[None] * 50)
    whole = path.read_bytes()
    cases = {
        whole[: len(whole) // 2]: "expected a whole gzip file",
        b"not gzip": "expected a whole gzip file",
        gzip.compress(b""): "found an empty manifest",
        gzip.compress(b'{"id": "u1"'): ":1: expected a cut in JSON",
        gzip.compress(b'{"ID": 3}'): "expected a cut with an id",
        gzip.compress(b"\xff\xfe"): ":1: expected a manifest in UTF-8, found the bytes ff",
        gzip.compress(b"[" * 100_000): ":1: expected a cut in JSON, .*nested too deeply",
        gzip.compress(b"1" * 10_000): ":1: expected a cut in JSON",
    }
    for content, message in cases.items():
        path.write_bytes(content)
        with pytest.raises(UserError, match=message) as error:
            read_cuts(path)
        assert str(path) in str(error.value)
    with pytest.raises(UserError, match="found no such file"):
        read_cuts(folder / "no.cuts.jsonl.gz")
