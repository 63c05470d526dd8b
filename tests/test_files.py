"""Output files are complete or unchanged."""

import errno
import gzip
import json
import os
import signal
import stat
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from filelock import FileLock

from asr import files
from asr.errors import UserError, in_words


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_file_appears_when_the_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "out.txt"
    with files.atomic_text(path) as file:
        file.write("first\r\nsecond ü\n")
        assert not path.exists()
    assert path.read_bytes() == "first\r\nsecond ü\n".encode()
    assert names(path.parent) == ["out.txt"]


@pytest.mark.parametrize("writer", [files.atomic_text, files.atomic_binary])
def test_a_failing_writer_leaves_the_old_file_and_nothing_else(writer, tmp_path: Path) -> None:
    path = tmp_path / "out"
    files.write_text("old", path)
    half = "new" if writer is files.atomic_text else b"new"

    def write() -> None:
        with writer(path) as file:
            file.write(half)
            file.flush()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write()
    assert path.read_text() == "old"
    assert names(tmp_path) == ["out"]


def test_a_writer_that_created_no_file_fails(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), files.atomic_path(tmp_path / "out"):
        pass
    assert names(tmp_path) == []


def test_two_writers_of_one_file_do_not_clash(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with files.atomic_text(path) as first, files.atomic_text(path) as second:
        first.write("first")
        second.write("second")
    assert path.read_text() == "first"  # renamed last
    assert names(tmp_path) == ["out"]


@pytest.mark.parametrize("name", ["out", "long" * 50])
def test_a_killed_writer_leaves_nothing_after_the_next_one(name: str, tmp_path: Path) -> None:
    """Temporary files had random names, so those of killed processes stayed for ever."""
    path = tmp_path / name
    code = "import os, sys; from asr.files import atomic_path\n"
    code += (
        "with atomic_path(sys.argv[1]) as part:\n  part.write_text('half-written'); os.kill(os.getpid(), 9)"
    )
    for _ in range(2):
        assert subprocess.run([sys.executable, "-c", code, str(path)]).returncode == -signal.SIGKILL
    assert len(names(tmp_path)) == 1
    files.write_text("new", path)
    assert names(tmp_path) == [name]
    assert path.read_text() == "new"


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    """A named pipe among a corpus's files blocked its preparation for ever."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("123")
    assert files.require_file(tmp_path / "file", "a table") == 3
    cases = {"pipe": "found a pipe", "": "found a folder", "no": "found none", "a\0b": "found none"}
    for name, message in cases.items():
        with pytest.raises(UserError, match=f"expected a table, {message}"):
            files.require_file(f"{tmp_path}/{name}", "a table")


def test_the_content_is_flushed_to_disk_before_the_rename(tmp_path: Path, monkeypatch) -> None:
    events = []
    monkeypatch.setattr(os, "fsync", lambda number: events.append(os.fstat(number).st_size))
    replace = Path.replace
    monkeypatch.setattr(Path, "replace", lambda self, to: (events.append("rename"), replace(self, to)))
    files.write_bytes(b"12345", tmp_path / "a")
    with files.atomic_path(tmp_path / "b", sync=False) as temporary:
        temporary.write_text("1")
    assert events == [5, "rename", "rename"]


def test_a_file_has_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    files.write_text("", tmp_path / "atomic")
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("plain", "atomic")}
    assert len(modes) == 1


def test_the_longest_name_that_a_file_can_have_is_written(tmp_path: Path) -> None:
    path = tmp_path / ("ü" * 127)
    files.write_text("x", path)
    assert path.read_text() == "x"


def test_equal_content_gives_equal_zipped_files(tmp_path: Path) -> None:
    for name in ("a.gz", "b.gz"):
        with files.atomic_binary(tmp_path / name, zipped=True) as file:
            file.write(b"text\n")
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()
    assert gzip.decompress((tmp_path / "a.gz").read_bytes()) == b"text\n"


def test_json_and_digest(tmp_path: Path) -> None:
    files.write_json({"word": "süß"}, tmp_path / "a.json")
    assert (tmp_path / "a.json").read_text(encoding="utf-8") == '{\n  "word": "süß"\n}\n'
    assert json.loads((tmp_path / "a.json").read_text()) == {"word": "süß"}
    (tmp_path / "empty").touch()
    assert files.file_digest(tmp_path / "empty") == "e3b0c44298fc"


@pytest.mark.parametrize("kept", ["", "exp", "exp/run", "exp/run/notes.txt"])
def test_refused_work_leaves_no_folder(kept: str, tmp_path: Path) -> None:
    """`asr train` with a wrong path left a folder with a `lock`."""
    refused = "refused"

    def refuse() -> None:
        with files.locked(tmp_path / "exp" / "run", "asr train"):
            if kept.endswith("txt"):
                (tmp_path / kept).write_text("written before")
            raise UserError(refused)

    if kept and not kept.endswith("txt"):
        (tmp_path / kept).mkdir(parents=True)
    with pytest.raises(UserError, match=refused):
        refuse()
    assert (tmp_path / kept).exists()
    assert (tmp_path / "exp").exists() == bool(kept)
    assert (tmp_path / "exp" / "run").exists() == kept.startswith("exp/run")


def test_a_folder_that_was_refused_keeps_no_lock(tmp_path: Path) -> None:
    """`asr prepare folder folder=recordings` left it among the recordings, as one that can't be read."""
    (tmp_path / "a.wav").touch()
    with pytest.raises(UserError, match="corpus"), files.locked(tmp_path, "asr prepare"):
        raise UserError("the corpus itself")
    assert [x.name for x in tmp_path.iterdir()] == ["a.wav"]

    def fail_later() -> None:
        with files.locked(tmp_path, "asr prepare"):
            (tmp_path / "out").touch()
            raise UserError("the disk")

    with pytest.raises(UserError, match="disk"):
        fail_later()
    assert sorted(x.name for x in tmp_path.iterdir()) == ["a.wav", "lock", "out"]


def test_a_folder_is_locked_against_a_second_process(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    message = "another asr train is running"
    with files.locked(folder, "asr train"), pytest.raises(UserError, match=message):
        files.locked(folder, "asr train").__enter__()
    with files.locked(folder, "asr train"):
        pass


def test_a_file_system_without_locks_is_used_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command said that another one was running."""

    def refused(*args: object, **options: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(FileLock, "acquire", refused)
    with files.locked(tmp_path, "asr train"):
        files.write_text("new", tmp_path / "out")
    assert (tmp_path / "out").read_text() == "new"


def test_a_file_that_cannot_be_written_is_noticed_beforehand(tmp_path: Path) -> None:
    """`asr bench` measured for hours and then found that its results couldn't be written."""
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    for path, message in [
        (tmp_path / "file" / "out.json", "file: expected a folder to write to, found a file"),
        (tmp_path, "found a folder"),
        (tmp_path / "pipe", "found a pipe"),
        (tmp_path / ("x" * 300), "can't be written .File name too long"),
    ]:
        with pytest.raises(UserError, match=message):
            files.check_writable(path)


def test_the_check_of_an_output_leaves_no_folder(tmp_path: Path) -> None:
    """`asr transcribe` of a missing file left an empty folder `output=`."""
    files.check_writable(tmp_path / "new" / "deep" / "out.json")
    assert list(tmp_path.iterdir()) == []


def test_a_device_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    """Renaming a temporary file to `/dev/null` would replace the device if the user is root."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="found a pipe"):
        files.write_text("x", tmp_path / "pipe")
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_the_lock_names_its_holder_and_removes_what_a_killed_process_left(tmp_path: Path) -> None:
    left = tmp_path / "hyp.jsonl.0123abcd.partial"
    left.touch()
    with files.locked(tmp_path, "asr decode"):
        assert not left.exists()
        with pytest.raises(UserError, match="another asr decode is running"):
            files.locked(tmp_path, "asr score").__enter__()


@dataclass
class Entry:
    name: str
    size: float
    kind: Literal["a", "b"] = "a"
    tags: list[str] | None = None
    span: tuple[int, int] = (0, 0)
    rest: Any = None


def test_json_data_of_another_type_are_rejected_with_their_place() -> None:
    """An unexpected type in results.json or hyp.jsonl surfaced as a traceback far from the file."""
    good: dict[str, Any] = {"name": "x", "size": 1, "span": [1, 2], "rest": [{}]}
    assert files.build(Entry, good, "f") == Entry("x", 1, span=(1, 2), rest=[{}])
    assert files.build(dict[int, list[Entry]], {"3": [good]}, "f") == {
        3: [Entry("x", 1, span=(1, 2), rest=[{}])]
    }
    for change, message in [
        ({"name": ["x"]}, r"f: name: expected str, found \['x'\]"),
        ({"size": True}, "f: size: expected float, found True"),
        ({"kind": "c"}, "f: kind: expected .*, found 'c'"),
        ({"tags": ["x", 1]}, "f: tags: 1: expected str, found 1"),
        ({"tags": 1}, "f: tags: expected .*, found 1"),
        ({"span": [1]}, r"f: span: expected tuple\[int, int\], found \[1\]"),
        ({"extra": 1}, "f: unknown extra"),
    ]:
        with pytest.raises(UserError, match=message):
            files.build(Entry, good | change, "f")
    with pytest.raises(UserError, match="f: expected size, found none"):
        files.build(Entry, {"name": "x"}, "f")
    with pytest.raises(UserError, match=r"f: expected dict\[int, str\]"):
        files.build(dict[int, str], {"a": "b"}, "f")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "found none"),
        ("", "expected JSON"),
        ("[]", "found '\\[\\]'"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_a_broken_json_file_is_named(content: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError, match=message) as caught:
        files.read_json(path)
    assert str(caught.value).startswith(str(path))


def test_a_full_disk_names_the_file(tmp_path: Path) -> None:
    """A write fails without a name: asr prepare, decode and lm said "No space left on device" alone."""

    def write() -> None:
        with files.atomic_path(tmp_path / "x"), open("/dev/full", "wb", buffering=0) as disk:
            disk.write(b"x")

    with pytest.raises(OSError, match="No space left") as caught:
        write()
    assert in_words(caught.value) == f"{tmp_path / 'x'}: No space left on device"


def test_a_near_path_is_suggested(tmp_path: Path) -> None:
    """`exp/demo/ful` was a run without checkpoints."""
    (tmp_path / "demo" / "full").mkdir(parents=True)
    assert files.near_path(tmp_path / "demo" / "ful") == f" (did you mean '{tmp_path / 'demo' / 'full'}'?)"
    assert files.near_path(tmp_path / "deom" / "full") == f" (did you mean '{tmp_path / 'demo' / 'full'}'?)"
    for other in ("demo/full", "demo/quite/another", "demo/full/ful"):
        assert files.near_path(tmp_path / other) == ""
    with pytest.raises(UserError, match=r"expected a list, found none \(did you mean"):
        files.require_file(tmp_path / "demo" / "fulll", "a list")


def test_work_that_fails_before_it_begins_leaves_no_folder(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "run"
    for begun in (False, True):
        with suppress(KeyboardInterrupt), files.locked(folder, "x", begun.__bool__):
            files.write_text("log", folder / "log")
            raise KeyboardInterrupt
        assert folder.parent.exists() is begun


def test_packed_json_is_known_by_its_content(tmp_path: Path) -> None:
    """results.json, packed under its own name, was damaged JSON."""
    (tmp_path / "results.json").write_bytes(gzip.compress(b'{"a": 1}'))
    assert files.read_json(tmp_path / "results.json") == {"a": 1}
