"""`asr decode` is killed, interrupted, or runs out of disk; running it again gives the same hypotheses."""

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from processes import Asr, fork_server

from asr.cli import main

pytestmark = pytest.mark.slow
KILLS = 20
GONE_S = 60


def start(run: Path, folder: Path, limit_bytes: int | None = None) -> Asr:
    """Start `asr decode`."""
    return Asr(arguments(run, folder), limit_bytes=limit_bytes)


def arguments(run: Path, folder: Path) -> list[str]:
    return ["decode", str(run), f"output={folder}", "decoder=prefix", "jobs=2", "frames_per_batch=300"]


def session(leader: int) -> list[int]:
    """Return the processes of a session that haven't ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, own, *_ = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(own) == leader and state != "Z":
            found.append(int(path.parent.name))
    return found


def assert_all_end(leader: int) -> None:
    end = time.monotonic() + GONE_S
    while left := session(leader):
        assert time.monotonic() < end, f"still running: {left}"
        time.sleep(0.1)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.fixture(scope="module")
def undisturbed(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, float]:
    """Hypotheses and duration in seconds of a run that nothing disturbs."""
    folder = tmp_path_factory.mktemp("undisturbed")
    fork_server()
    started = time.monotonic()
    process = start(trained, folder)
    _, errors = process.communicate()
    assert process.wait() == 0, errors
    assert names(folder) == {"hyp.jsonl", "decode.json", "lock"}
    return (folder / "hyp.jsonl").read_text(), time.monotonic() - started


def again(run: Path, folder: Path, expected: str) -> None:
    """Decode undisturbed, in this process, and check that the failure has left no trace."""
    assert main(arguments(run, folder)) == 0
    assert names(folder) == {"hyp.jsonl", "decode.json", "lock"}
    assert (folder / "hyp.jsonl").read_text() == expected


@pytest.mark.parametrize(
    "seed",
    [
        0,
        pytest.param(1, marks=pytest.mark.slow),
        *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(2, KILLS)),
    ],
)
def test_killed_at_any_moment(
    seed: int, trained: Path, undisturbed: tuple[str, float], tmp_path: Path
) -> None:
    """The search processes of a killed `asr decode` waited for work for an hour."""
    expected, duration_s = undisturbed
    process = start(trained, tmp_path)
    # The first part of the time goes into loading the model and into imports of the search processes.
    time.sleep(duration_s * random.Random(seed).uniform(0.4, 1.0))
    process.kill()
    process.communicate()
    assert_all_end(process.pid)
    hypotheses = tmp_path / "hyp.jsonl"
    assert not hypotheses.exists() or hypotheses.read_text() == expected
    again(trained, tmp_path, expected)


def when_it_searches(process: Asr, folder: Path) -> None:
    """Wait until the search processes run."""
    while process.poll() is None and not ((folder / "lock").exists() and len(session(process.pid)) > 3):
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("stop", "status"),
    [
        (lambda process: os.killpg(process.pid, signal.SIGINT), 130),  # Ctrl-C reaches all processes
        pytest.param(lambda process: process.terminate(), 143, marks=pytest.mark.slow),
    ],
    ids=["ctrl-c", "sigterm"],
)
def test_interrupted(
    stop: Callable[[Asr], None],
    status: int,
    trained: Path,
    undisturbed: tuple[str, float],
    tmp_path: Path,
) -> None:
    """Ctrl-C printed a traceback for every search process."""
    process = start(trained, tmp_path)
    when_it_searches(process, tmp_path)
    stop(process)
    _, errors = process.communicate()
    assert (process.wait(), "Traceback" in errors) == (status, False), errors
    assert_all_end(process.pid)
    again(trained, tmp_path, undisturbed[0])


def test_two_processes_on_one_folder(trained: Path, undisturbed: tuple[str, float], tmp_path: Path) -> None:
    processes = [start(trained, tmp_path) for _ in range(2)]
    errors = [process.communicate()[1] for process in processes]
    assert sorted(process.wait() for process in processes) == [0, 1]
    assert "another asr decode is running in this folder" in "".join(errors)
    assert (tmp_path / "hyp.jsonl").read_text() == undisturbed[0]


def test_a_full_disk_leaves_the_earlier_hypotheses(
    trained: Path, undisturbed: tuple[str, float], tmp_path: Path
) -> None:
    """The earlier files were removed or mixed with new ones."""
    (tmp_path / "hyp.jsonl").write_text("earlier")
    (tmp_path / "score.json").write_text("earlier")
    process = start(trained, tmp_path, limit_bytes=1000)  # less than hyp.jsonl
    _, errors = process.communicate()
    assert process.wait() == 1, errors
    assert names(tmp_path) == {"hyp.jsonl", "score.json", "lock", "shards"}
    assert {(tmp_path / name).read_text() for name in ("hyp.jsonl", "score.json")} == {"earlier"}
    again(trained, tmp_path, undisturbed[0])
