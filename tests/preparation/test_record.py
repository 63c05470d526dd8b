"""Shards of prepare: their union is byte for byte what one process writes."""

from pathlib import Path

import numpy as np
import pytest
import soundfile

from asr.cli import main
from asr.data.facts import speech_facts
from asr.errors import UserError
from asr.preparation.options import PreparationOptions
from asr.preparation.run import Preparation

RATE = 8000
OVERRIDES = ["workers=1", "tokenizers=[character]", "dev_share=0.2", "test_share=0.2", "language=de"]


@pytest.fixture
def audio(tmp_path: Path) -> Path:
    """Write eight recordings with their transcripts."""
    random = np.random.default_rng(0)
    folder = tmp_path / "audio"
    folder.mkdir()
    for number in range(8):
        soundfile.write(folder / f"u{number}.wav", 0.1 * random.standard_normal(RATE // 4), RATE)
        (folder / f"u{number}.txt").write_text(f"go on {number}\n")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder except locks."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.parametrize("damaged", [None, 0, 5])
def test_the_union_is_what_one_process_writes(
    damaged: int | None, audio: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["prepare", "folder", f"audio={audio}", *OVERRIDES]
    if damaged is not None:
        (audio / f"u{damaged}.wav").write_bytes(b"RIFF")
        arguments.append("allow_partial=[damaged_audio]")
    assert main([*arguments, f"folder={tmp_path / 'whole'}"]) == 0
    parts = tmp_path / "parts"
    for index in (3, 1, 2):
        assert main([*arguments, f"folder={parts}", f"shard={index}/3"]) == 0
    assert not list(parts.glob("*.cuts.jsonl.gz"))
    read: list[str] = []

    def noted(path: str) -> tuple[int, int, int]:
        read.append(path)
        return speech_facts(path)

    noted.__module__, noted.__qualname__ = speech_facts.__module__, speech_facts.__qualname__
    monkeypatch.setattr("asr.preparation.own_data.speech_facts", noted)
    assert main(["merge", str(parts)]) == 0
    assert contents(parts) == contents(tmp_path / "whole")
    assert read == ([] if damaged is None else [str(audio / f"u{damaged}.wav")])
    assert main([*arguments, f"folder={parts}"]) == 0
    assert contents(parts) == contents(tmp_path / "whole")


def test_missing_and_foreign_shards_are_refused(
    audio: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "data"
    arguments = ["prepare", "folder", f"audio={audio}", *OVERRIDES, f"folder={folder}"]

    def merge() -> str:
        capsys.readouterr()
        assert main(["merge", str(folder)]) == 1
        return capsys.readouterr().err

    assert main([*arguments, "shard=1/2"]) == 0
    assert "2-of-2.jsonl: expected shard 2 of 2, found none" in merge()
    assert main([*arguments, "shard=2/2", "text=none"]) == 0
    assert "found another: options.text is 'none' instead of 'auto'" in merge()
    (audio / "u1.txt").write_text("go back\n")
    assert main([*arguments, "shard=2/2"]) == 0
    assert "2-of-2.jsonl: expected the job of" in merge()
    assert main([*arguments, "shard=1/2"]) == 0
    assert main(["merge", str(folder)]) == 0


def test_an_interrupted_shard_goes_on(
    audio: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "prepare",
        "folder",
        f"audio={audio}",
        *OVERRIDES,
        f"folder={tmp_path / 'data'}",
        "shard=2/2",
    ]

    def until(path: str) -> tuple[int, int, int]:
        if path.endswith("u5.wav"):
            raise KeyboardInterrupt
        return speech_facts(path)

    until.__module__, until.__qualname__ = speech_facts.__module__, speech_facts.__qualname__
    monkeypatch.setattr("asr.preparation.own_data.speech_facts", until)
    assert main(arguments) == 130
    monkeypatch.setattr("asr.preparation.own_data.speech_facts", speech_facts)
    assert main(arguments) == 0
    assert "reusing 2 of 4 results" in capsys.readouterr().out


def test_what_can_not_be_divided_is_refused(audio: Path, tmp_path: Path) -> None:
    options = PreparationOptions(shard="1/2", workers=1)
    with pytest.raises(UserError, match="shard=1/2: recipe own can't be divided: do it without shard="):
        Preparation("own", tmp_path, options).map(speech_facts, [str(audio / "u0.wav")], "reading")
    with pytest.raises(UserError, match="recipe own can't be divided"):
        Preparation("own", tmp_path, options).finish({})
    with pytest.raises(UserError, match="expected i/n with 1 ≤ i ≤ n"):
        Preparation("own", tmp_path, PreparationOptions(shard="3/2"))
