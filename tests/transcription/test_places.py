"""Audio files to transcribe, and the places of their transcripts."""

import logging
from pathlib import Path

import pytest

from asr.errors import UserError
from asr.transcription.places import audio_files, check_places


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Recordings in a folder and a subfolder, with a transcript and a hidden file."""
    for name in (
        "calls/a.wav",
        "calls/a.flac",
        "calls/b.wav",
        "calls/b.txt",
        "calls/.hidden",
        "calls/sub/c.wav",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    return tmp_path / "calls"


def test_transcripts_keep_subfolders_and_tell_recordings_of_one_name_apart(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        files = audio_files([folder, Path("-")], "out", "srt")
    assert [str(x.path.relative_to(folder)) for x in files[:-1]] == ["a.flac", "a.wav", "b.wav", "sub/c.wav"]
    written = ["a.flac.srt", "a.wav.srt", "b.srt", "sub/c.srt", "standard-input.srt"]
    assert [str(x.transcript.relative_to("out")) for x in files] == written
    assert [x.is_input for x in files] == [False] * 4 + [True]
    assert "skipped 2 transcripts or hidden files" in caplog.text


def test_without_an_output_folder_transcripts_are_beside_the_recordings(folder: Path) -> None:
    files = audio_files([folder / "sub", folder / "b.wav"], "", "vtt")
    assert [x.transcript for x in files] == [folder / "sub" / "c.vtt", folder / "b.vtt"]


def test_two_recordings_have_no_common_transcript(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "b.wav").write_bytes(b"")
    files = audio_files([folder / "b.wav", tmp_path / "b.wav"], str(tmp_path / "out"), "text")
    with pytest.raises(UserError, match=r"expected different transcripts, found .*b\.wav\.txt for both"):
        check_places(files)


def test_a_name_that_is_no_text_is_shown_with_escapes() -> None:
    (file,) = audio_files([Path("a\udcff.wav")], "", "text")
    assert file.name == "a\\udcff.wav"
