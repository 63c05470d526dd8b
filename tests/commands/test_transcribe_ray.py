"""`asr transcribe engine=ray` on a local cluster: a broken file, a killed actor, another start."""

import os
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from asr.cli import main

ray = pytest.importorskip("ray", reason="needs the extra clustered-asr[launchers]")


@pytest.fixture
def cluster() -> Iterator[None]:
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=int(1e8), log_to_driver=False)
    yield
    ray.shutdown()


def kill_an_actor(ended: threading.Event, killed: list[int]) -> None:
    """Kill the first actor of this process's cluster as soon as it works."""
    while not ended.wait(0.01):
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            process = int(path.parent.name)
            try:
                if path.read_text().startswith("ray::_Actor.run") and os.getpid() in ancestors(process):
                    os.kill(process, signal.SIGKILL)
                    killed.append(process)
                    return
            except (OSError, UnicodeDecodeError):
                continue


def ancestors(process: int) -> list[int]:
    """Return the parent of a process, its parent, … ."""
    found = []
    while process > 1:
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        found.append(process)
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_files_are_transcribed_once_by_actors(
    trained: Path, tone_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    audio, expected, found = tmp_path / "audio", tmp_path / "expected", tmp_path / "found"
    audio.mkdir()
    for i in range(6):
        shutil.copy(tone_corpus / "wav" / f"test-{i}.wav", audio)
    whole = (audio / "test-3.wav").read_bytes()
    (audio / "test-3.wav").write_bytes(whole[:20])
    arguments = ["transcribe", str(trained), str(audio), "format=json"]
    assert main([*arguments, f"output={expected}"]) == 1
    said = capsys.readouterr().err.splitlines()[-2:]
    assert "test-3.wav: not a readable audio file" in said[0]

    arguments += [f"output={found}", "engine=ray"]
    killed: list[int] = []
    while not killed:  # the killer may be too late
        shutil.rmtree(found, ignore_errors=True)
        ended = threading.Event()
        killer = threading.Thread(target=kill_an_actor, args=(ended, killed))
        killer.start()
        assert main(arguments) == 1
        ended.set()
        killer.join()
        assert capsys.readouterr().err.splitlines()[-2:] == said
    names = sorted(path.name for path in expected.glob("*.json"))
    assert len(names) == 5
    assert {name: (found / name).read_bytes() for name in names} == {
        name: (expected / name).read_bytes() for name in names
    }

    (audio / "test-3.wav").write_bytes(whole)
    (found / "test-4.json").unlink()
    times = {path: path.stat().st_mtime_ns for path in found.glob("*.json")}
    assert main([*arguments, "actors=1"]) == 0  # each imports the libraries
    assert "4 of 6 items finished" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert len(list(found.glob("*.json"))) == 6
    assert (found / "test-4.json").read_bytes() == (expected / "test-4.json").read_bytes()


def test_options_that_do_not_fit_the_engine(
    trained: Path, tone_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wav = str(tone_corpus / "wav" / "test-0.wav")
    for overrides, message in [
        ([wav, "actors=2"], "actors=2: has no effect without engine=ray"),
        ([wav, "engine=ray"], "engine=ray: expected output=<folder>, found none"),
        ([wav, "engine=ray", f"output={tmp_path}", "shard=1/2"], "shard=1/2: has no effect with engine=ray"),
        (["-", "engine=ray", f"output={tmp_path}"], "expected files, found - (standard input)"),
    ]:
        assert main(["transcribe", str(trained), *overrides]) == 1
        assert message in capsys.readouterr().err
