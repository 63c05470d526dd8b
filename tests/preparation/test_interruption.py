"""A preparation that is killed, interrupted or out of disk leaves what the next one completes."""

import errno
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from asr_recipes.folder import prepare as folder_recipe

from asr.data.manifest import read_cuts
from asr.errors import UserError

RATE = 8000
CHANGES = {"open", "os.rename", "os.mkdir"}
REMOVALS = {"os.remove", "os.rmdir", "shutil.rmtree"}
WRITING = os.O_WRONLY | os.O_RDWR
KILLS = 20


def corpus(folder: Path, size: int) -> Path:
    """Write recordings with their transcripts."""
    random_samples = np.random.default_rng(0)
    folder.mkdir()
    for number in range(size):
        soundfile.write(folder / f"u{number}.wav", 0.1 * random_samples.standard_normal(RATE // 4), RATE)
        (folder / f"u{number}.txt").write_text(f"go on {number}\n")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def prepare(audio: Path, folder: Path) -> None:
    options = folder_recipe.Options(
        audio=str(audio), workers=1, text="lower", tokenizers=["character"], dev_share=0.2, test_share=0.2
    )
    folder_recipe.prepare(options, folder)


def in_a_fork(
    audio: Path, folder: Path, at: int, act: Callable[[], None], events: set[str]
) -> tuple[int, int]:
    """Prepare in a forked process that calls `act` just before change number `at` of the folder.

    Returns:
        The exit status, negative for a signal, and the number of changes if it was not killed.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        status = 99
        try:
            changes = 0

            def hook(event: str, args: tuple[Any, ...]) -> None:
                nonlocal changes
                if event not in events or (event == "open" and not args[2] & WRITING):
                    return
                if str(args[0]).startswith(str(folder)):
                    changes += 1
                    if changes == at:
                        act()

            silent = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silent, 1)
            os.dup2(silent, 2)
            signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored by processes in the background
            signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))
            sys.addaudithook(hook)
            try:
                prepare(audio, folder)
                status = 0
            except KeyboardInterrupt:
                status = 130
            except SystemExit as error:
                status = int(error.code or 0)
            except OSError as error:
                status = error.errno or 98
            except UserError:
                status = 1
            os.write(writing, str(changes).encode())
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading) as result:
        changes = int(result.read() or 0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), changes


def no_space() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


ACTS = {
    "SIGKILL": (lambda: os.kill(os.getpid(), signal.SIGKILL), -signal.SIGKILL, KILLS // 2),
    "SIGTERM": (lambda: os.kill(os.getpid(), signal.SIGTERM), 143, 3),
    "SIGINT": (lambda: os.kill(os.getpid(), signal.SIGINT), 130, 3),
    "full disk": (no_space, errno.ENOSPC, 3),
}


@pytest.mark.parametrize(
    "name", [name if name == "SIGINT" else pytest.param(name, marks=pytest.mark.slow) for name in ACTS]
)
@pytest.mark.parametrize(
    "again", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["first", "another"]
)
def test_the_next_preparation_completes_an_interrupted_one(name: str, again: bool, tmp_path: Path) -> None:
    """Interruption at seeded random changes of the folder, of a first preparation or of another one.

    Drafts and temporary files of killed runs stayed in the folder for ever.
    """
    act, expected, count = ACTS[name]
    events = CHANGES | REMOVALS if name == "SIGKILL" else CHANGES
    audio = corpus(tmp_path / "audio", 12)
    prepare(audio, tmp_path / "undisturbed")
    wanted = contents(tmp_path / "undisturbed")
    before = tmp_path / "before"
    if again:
        options = folder_recipe.Options(audio=str(audio), workers=1, dev_share=0, test_share=0)
        folder_recipe.prepare(options, before)
    else:
        before.mkdir()
    folder = tmp_path / "out"
    shutil.copytree(before, folder)
    status, changes = in_a_fork(audio, folder, 0, act, events)
    assert (status, contents(folder)) == (0, wanted)
    assert changes > 30
    for at in random.Random(f"{name} {again}").sample(range(1, changes + 1), count):
        shutil.rmtree(folder)
        shutil.copytree(before, folder)
        status, _ = in_a_fork(audio, folder, at, act, events)
        # Making a folder that exists may fail without harm.
        complete = name == "full disk" and status == 0 and contents(folder) == wanted
        assert status == expected or complete, at
        if name != "SIGKILL":
            partial = [x for x in contents(folder) if x.endswith(".partial") or "outputs/" in x]
            assert not partial, at
        prepare(audio, folder)
        assert contents(folder) == wanted, at


def test_a_file_that_cannot_be_written_to_its_end(tmp_path: Path) -> None:
    """A limit of 300 bytes fails the manifests in the middle, as a full disk does."""
    audio = corpus(tmp_path / "audio", 12)
    prepare(audio, tmp_path / "undisturbed")

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))

    assert in_a_fork(audio, tmp_path / "out", 1, limit, CHANGES)[0] == errno.EFBIG
    assert {Path(name).parts[0] for name in contents(tmp_path / "out")} == {".unfinished"}  # the journal
    prepare(audio, tmp_path / "out")
    assert contents(tmp_path / "out") == contents(tmp_path / "undisturbed")


def test_a_recording_that_changes_between_two_runs_is_read_again(tmp_path: Path) -> None:
    """The results of the interrupted run are kept by file, size and time."""
    audio = corpus(tmp_path / "audio", 12)
    kill = ACTS["SIGKILL"][0]
    assert in_a_fork(audio, tmp_path / "out", 20, kill, CHANGES)[0] == -signal.SIGKILL
    soundfile.write(audio / "u3.wav", np.full(RATE, 0.1), RATE)
    prepare(audio, tmp_path / "out")
    prepare(audio, tmp_path / "undisturbed")
    assert contents(tmp_path / "out") == contents(tmp_path / "undisturbed")
    found = {cut.id: cut for path in (tmp_path / "out").glob("*.cuts.jsonl.gz") for cut in read_cuts(path)}
    assert found["u3"].duration == 1.0


@pytest.mark.exhaustive
def test_killed_commands_leave_no_processes_and_nothing_else(tmp_path: Path) -> None:
    """Kills of the command itself at random times, with worker processes; about two minutes."""
    audio = corpus(tmp_path / "audio", 250)
    arguments = ["prepare", "folder", f"audio={audio}", "workers=2", "tokenizers=[character]"]

    def start(folder: str) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "asr", *arguments, f"folder={tmp_path / folder}"]
        return subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL)

    begun = time.monotonic()
    assert start("undisturbed").wait() == 0
    whole_s = time.monotonic() - begun
    wanted = contents(tmp_path / "undisturbed")
    draw = random.Random(0)
    for _ in range(KILLS):
        process = start("out")
        time.sleep(draw.uniform(0, whole_s))
        process.kill()
        process.wait()
        deadline = time.monotonic() + 60
        while members(process.pid) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not members(process.pid)
        if draw.random() < 0.5:
            shutil.rmtree(tmp_path / "out", ignore_errors=True)
    assert start("out").wait() == 0
    assert contents(tmp_path / "out") == wanted


def members(session: int) -> list[str]:
    """Return the processes of a session."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(stat.parent.name)
    return found
