"""`asr transcribe` to files, given again, takes recordings that are new, changed or unfinished."""

import io
import os
import shutil
from pathlib import Path

import pytest

from asr.cli import main
from asr.records.results import Result, Results


@pytest.fixture
def audio(tone_corpus: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "audio"
    folder.mkdir()
    for i in range(4):
        shutil.copy(tone_corpus / "wav" / f"test-{i}.wav", folder)
    return folder


def written(folder: Path) -> dict[str, int]:
    """Return the time at which each transcript was written."""
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("*.srt")}


@pytest.mark.parametrize("beside", [True, False])
def test_interrupted_transcription_goes_on(
    beside: bool,
    trained: Path,
    audio: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = audio if beside else tmp_path / "srt"
    arguments = [
        "transcribe",
        str(trained),
        str(audio),
        "format=srt",
        *([] if beside else [f"output={folder}"]),
    ]
    add = Results.add

    def stop(results: Results, position: int, result: Result) -> None:
        if position == 2:
            raise KeyboardInterrupt
        add(results, position, result)

    with monkeypatch.context() as patch:
        patch.setattr(Results, "add", stop)
        assert main(arguments) == 130
    (folder / "test-2.srt").unlink()
    before = written(folder)
    assert set(before) == {"test-0.srt", "test-1.srt"}
    assert main(arguments) == 0
    assert f"{folder}/.transcribed.jsonl: 2 of 4 items finished" in capsys.readouterr().err
    after = written(folder)
    assert len(after) == 4
    assert before.items() <= after.items()


def test_what_changes_is_transcribed_again(
    trained: Path, audio: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "srt"
    arguments = ["transcribe", str(trained), str(audio), "format=srt", f"output={folder}"]
    assert main(arguments) == 0
    first = written(folder)
    shutil.copy(audio / "test-1.wav", audio / "test-0.wav")
    shutil.copy(audio / "test-1.wav", audio / "test-9.wav")
    os.utime(audio / "test-0.wav", ns=(0, 0))
    assert main(arguments) == 0
    assert "3 of 5 items finished" in capsys.readouterr().err
    second = written(folder)
    assert {name for name in first if first[name] != second[name]} == {"test-0.srt"}
    assert "test-9.srt" in second
    assert (folder / "test-0.srt").read_text() == (folder / "test-1.srt").read_text()
    assert main([*arguments, "min_confidence=0.01"]) == 0
    assert not written(folder).items() & second.items()


def test_standard_input_is_never_finished(
    trained: Path, audio: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = []
    for name in ("test-0.wav", "test-1.wav"):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO((audio / name).read_bytes())))
        assert main(["transcribe", str(trained), "-", f"output={tmp_path / 'out'}"]) == 0
        texts.append((tmp_path / "out" / "standard-input.txt").read_text())
    assert texts[0] != texts[1]


def test_a_foreign_transcript_beside_a_recording_is_kept(
    trained: Path, audio: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (audio / "test-3.srt").write_text("mine")
    assert main(["transcribe", str(trained), str(audio), "format=srt"]) == 1
    assert "test-3.srt: expected no such file yet" in capsys.readouterr().err
    assert set(written(audio)) == {"test-3.srt"}


def test_transcripts_that_were_there_before_are_kept(
    trained: Path, audio: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the recordings' folder as `output=`, references beside them were replaced by hypotheses."""
    (audio / "test-3.txt").write_text("what was said")
    command = ["transcribe", str(trained), str(audio), f"output={audio}"]
    assert main(command) == 1
    assert "test-3.txt: expected no such file yet; write to another folder" in capsys.readouterr().err
    assert [x.read_text() for x in audio.glob("*.txt")] == ["what was said"]
    (audio / "test-3.txt").unlink()
    assert main(command) == 0
    assert main([*command, "attention=local-16"]) == 0  # its own transcripts are replaced
    assert len([*audio.glob("*.txt")]) == 4
