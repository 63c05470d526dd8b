"""Atomic output files, locks, file hashes, and JSON files checked against types.

Every writer fills a temporary file in the same folder, flushes it to disk and renames it. After an error the
file is unchanged. Missing folders are created. The temporary file has a fixed name, so that the next writer
reuses what a killed one left behind.
"""

import dataclasses
import difflib
import errno
import functools
import gzip
import hashlib
import itertools
import json
import os
import secrets
import shutil
import stat
import tempfile
import types
import typing
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, TextIO, TypeVar, cast

from filelock import FileLock, Timeout

from asr.errors import UserError, not_text

Schema = TypeVar("Schema")

MARK = "clustered-asr 1"  # format of the program's own files
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # errors that don't name a file
GZIP_MAGIC = b"\x1f\x8b"
MOST_NAMES = 1000  # maximum number of names in a folder that are compared with a missing name
WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)  # their errors


@contextmanager
def atomic_path(path: str | Path, *, sync: bool = True) -> Iterator[Path]:
    """Yield a temporary path that is renamed to `path` if the block succeeds and removed otherwise.

    Args:
        path: file to write.
        sync: whether to flush to disk before renaming, so that the file survives a power failure.

    Raises:
        UserError: `path` is a folder, pipe or device.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "notes.txt")
        >>> with atomic_path(path) as temporary:
        ...     written = temporary.write_text("complete")
        ...     path.exists()
        False
        >>> path.read_text()
        'complete'
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    _check_regular(path)  # renaming would replace a device
    temporary, held = _claim(path)
    try:
        open(temporary, "wb").close()
        os.utime(temporary, (0, 0))  # opening to write changes it: tells an empty file from an unwritten one
        yield temporary
        if temporary.stat().st_mtime == 0:
            raise FileNotFoundError(f"{path}: nothing was written")
        if sync:
            with open(temporary, "rb+") as file:  # Windows flushes only files opened for writing
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno in FULL and error.filename is None:
            error.filename = str(path)
        raise
    finally:
        if held is not None:
            held.release()


def lock_on(path: Path, acquired: Callable[[int], None] | None = None) -> FileLock:
    """Return a lock that the system releases however its process ends. The file stays.

    Args:
        path: file to lock.
        acquired: called with the locked file's descriptor as soon as the lock is held.
    """
    # Not filelock's substitute for file systems without locks: its file outlives a killed process.
    return FileLock(
        path, thread_local=False, fallback_to_soft=False, preserve_lock_file=True, on_acquired=acquired
    )


def _claim(path: Path) -> tuple[Path, FileLock | None]:
    """Return the temporary path of a file and its lock.

    The name is fixed, unless another writer of the same file is at work, and on Windows: then it is random.
    """
    # Shortened because file names are limited to 255 bytes.
    stem = f"{path.name[:40]}.{digest(path.name, 4)}"
    temporary = path.with_name(f"{stem}.partial")
    if os.name == "nt":  # Windows can't rename open files, or write locked ones
        return path.with_name(f"{stem}.{secrets.token_hex(4)}.partial"), None
    opened: list[os.stat_result] = []
    while True:
        held = lock_on(temporary, lambda descriptor: opened.append(os.fstat(descriptor)))
        try:
            held.acquire(blocking=False)
            # Another writer may have renamed the file between its opening and its locking.
            if os.path.samestat(opened[-1], os.stat(temporary)):
                return temporary, held
        except FileNotFoundError:
            pass
        except Timeout:
            temporary = path.with_name(f"{stem}.{secrets.token_hex(4)}.partial")
        except OSError as error:
            if error.errno not in WITHOUT_LOCKS:
                raise
            return temporary, None
        held.release()


@contextmanager
def atomic_text(path: str | Path) -> Iterator[TextIO]:
    """Yield a UTF-8 stream that becomes the file `path` if the block succeeds; newlines stay as written."""
    with atomic_path(path) as temporary, open(temporary, "w", encoding="utf-8", newline="") as file:
        yield file


@contextmanager
def atomic_binary(path: str | Path, *, zipped: bool = False) -> Iterator[IO[bytes]]:
    """Yield a binary stream that becomes the file `path` if the block succeeds.

    Args:
        path: file to write.
        zipped: whether to compress with gzip, without name and time: equal content gives equal files.
    """
    with atomic_path(path) as temporary, open(temporary, "wb") as file:
        if not zipped:
            yield file
            return
        # Level 9 takes twice as long as level 6, for files that are 1 % smaller.
        with gzip.GzipFile("", "wb", compresslevel=6, fileobj=file, mtime=0) as packed:
            yield cast(IO[bytes], packed)


def write_bytes(content: bytes, path: str | Path) -> None:
    """Write bytes atomically."""
    with atomic_binary(path) as file:
        file.write(content)


def write_text(text: str, path: str | Path) -> None:
    """Write UTF-8 text atomically."""
    write_bytes(text.encode(), path)


def write_json(values: dict[str, Any], path: str | Path) -> None:
    """Write indented JSON atomically."""
    write_text(_json_text(values), path)


def write_record(values: Mapping[str, Any], path: str | Path) -> None:
    """Write indented JSON atomically, with a format mark and a digest that `read_record` checks."""
    write_text(record_text(values), path)


def record_text(values: Mapping[str, Any]) -> str:
    """Return the text that `write_record` writes."""
    return _json_text({**values, "mark": _mark(values)})


def _json_text(values: Mapping[str, Any]) -> str:
    return json.dumps(values, indent=2, ensure_ascii=False) + "\n"


def _mark(values: Mapping[str, Any]) -> str:
    return f"{MARK} {digest(json.dumps(values))}"


def check_writable(path: str | Path) -> None:
    """Check before long work that a file can be written; missing folders aren't created.

    Raises:
        UserError: the file can't be written, or is a folder, pipe or device.
    """
    path = Path(path)
    try:
        place = next(place for place in path.parents if place.exists())
        if not place.is_dir():
            raise UserError(f"{place}: expected a folder to write to, found a {kind_of(place)}")
        # A folder created here would remain, empty, if the work failed.
        with tempfile.TemporaryFile(dir=place):
            _check_regular(path)
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        reason = getattr(error, "strerror", str(error))
        raise UserError(f"{path}: can't be written ({reason})") from None


def _check_regular(path: Path) -> None:
    if path.exists() and not path.is_file():
        raise UserError(f"{path}: expected a file to write to, found a {kind_of(path)}")


def as_path(value: Any, what: str) -> Path:
    """Return a path given by a Python program, with `~` expanded.

    Raises:
        UserError: the value isn't a path, has a null character or isn't UTF-8; messages begin with `what`.
    """
    if not isinstance(value, str | os.PathLike) or not isinstance(text := os.fspath(value), str):
        raise UserError(f"{what}: expected a path, found {value!r:.60}")
    if "\0" in text:
        raise UserError(f"{what}: expected a path without null characters, found {text!r:.60}")
    if not_text(text):
        raise UserError(f"{what}: expected a path in UTF-8, found {text!r:.60}")
    return Path(text).expanduser()


def kind_of(path: str | Path) -> str:
    """Return the kind of a path, for messages: file, folder, pipe, socket or device."""
    path = Path(path)
    kinds = {"file": path.is_file, "folder": path.is_dir, "pipe": path.is_fifo, "socket": path.is_socket}
    return next((name for name, applies in kinds.items() if applies()), "device")


def near_path(path: str | Path) -> str:
    """Return `` (did you mean 'exp/demo/full'?)`` for a missing path, if a similar one exists."""
    path = Path(path)
    missing = path
    while not missing.parent.exists():
        missing = missing.parent
    with suppress(OSError):
        if not path.exists():
            names = [x.name for x in itertools.islice(missing.parent.iterdir(), MOST_NAMES)]
            for name in difflib.get_close_matches(missing.name, names, n=3):
                near = missing.parent / name / path.relative_to(missing)
                if near.exists():
                    return f" (did you mean '{near}'?)"
    return ""


def require_file(path: str | Path, expected: str, kind: str = "") -> int:
    """Return the size of a regular file in bytes.

    Args:
        path: path of the file.
        expected: expected kind of file, for the message, e.g. `an audio file`.
        kind: `UserError.kind` if there is no file.

    Raises:
        UserError: there is no file, or it is a folder, a named pipe or a device, which may block forever.
    """
    try:
        state = os.stat(path)
    except FileNotFoundError:
        near = "" if kind else near_path(path)  # not for a corpus, which may lack thousands of files
        raise UserError(f"{path}: expected {expected}, found none{near}", kind) from None
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        reason = getattr(error, "strerror", str(error))
        raise UserError(f"{path}: expected {expected}, found none ({reason})", kind) from None
    if not stat.S_ISREG(state.st_mode):
        raise UserError(f"{path}: expected {expected}, found a {kind_of(path)}")
    return state.st_size


@contextmanager
def locked(folder: str | Path, work: str, begun: Callable[[], bool] | None = None) -> Iterator[None]:
    """Hold a folder's lock, the file `lock`; the system releases it however the process ends.

    Temporary files left in the folder by killed processes are removed. If the work fails before it has begun,
    the folders created for it are removed, too, or in another folder the new lock.

    Args:
        folder: output folder, created if missing.
        work: name of the work, for the message, e.g. `asr train`.
        begun: returns whether the folder contains anything to keep; None: whether anything was written.

    Raises:
        UserError: another process holds the lock, or the folder can't be written.
    """
    path = Path(folder, "lock")
    made = [place for place in path.parents if not place.exists()]
    check_writable(path)
    before = set() if made else set(path.parent.iterdir())
    path.parent.mkdir(parents=True, exist_ok=True)
    held = lock_on(path, functools.partial(_write_name, f" {work}"))
    try:
        held.acquire(blocking=False)
    except Timeout:
        with path.open("rb", buffering=0) as file:
            file.seek(1)  # on Windows, nobody can read the first byte, which is locked
            other = file.read().decode() or work
        raise UserError(f"{folder}: another {other} is running in this folder") from None
    except OSError as error:
        if error.errno not in WITHOUT_LOCKS:
            raise
        # Working without a lock is better than not at all.
    try:
        for left in path.parent.glob("*.partial"):
            with suppress(PermissionError):  # on Windows, for a file that another process writes
                left.unlink(missing_ok=True)
        yield
    except BaseException:
        with suppress(OSError):  # on Windows, the file is open
            if not made and set(path.parent.iterdir()) == before | {path} != before:
                path.unlink()  # from a folder of recordings that was named as output by mistake
        if made and not (begun() if begun else list(path.parent.iterdir()) != [path]):
            with suppress(OSError):  # another process has written to one, or on Windows a file is open
                shutil.rmtree(path.parent)
                for place in made[1:]:
                    place.rmdir()
        raise
    finally:
        held.release()


def is_locked(folder: str | Path) -> bool:
    """Return whether a process holds a folder's lock; False if that can't be tested."""
    path = Path(folder, "lock")
    if not path.exists():
        return False
    held = lock_on(path)
    try:
        held.acquire(blocking=False)
    except Timeout:
        return True
    except OSError:
        return False
    held.release()
    return False


def _write_name(name: str, descriptor: int) -> None:
    os.ftruncate(descriptor, 0)
    os.write(descriptor, name.encode())


def parse_json(text: str | bytes, source: str, what: str = "") -> Any:
    """Parse JSON.

    Half a surrogate pair (`\\ud800`), which JSON can express but UTF-8 can't, is invalid.

    Args:
        text: text to parse.
        source: file, or file and line, for the message.
        what: description for messages, e.g. `a cut`.

    Raises:
        UserError: the text is not JSON, or is nested too deeply.
    """
    try:
        values = json.loads(text)
        start, half = (b"\\u", b"\\ud") if isinstance(text, bytes) else ("\\u", "\\ud")
        if start in text and half in text.lower():  # type: ignore[operator]
            json.dumps(values, ensure_ascii=False).encode()
        return values
    except RecursionError:
        reason = "nested too deeply"
    except ValueError as error:  # a syntax error, or a number with thousands of digits
        reason = str(error)
    found = text[:40] if isinstance(text, str) else text[:40].decode(errors="replace")
    raise UserError(f"{source}: expected {f'{what} in ' if what else ''}JSON, found {found!r} ({reason})")


def read_json(path: str | Path, what: str = "a JSON file") -> dict[str, Any]:
    """Read a JSON file with an object at its top level.

    Args:
        path: file, compressed or not.
        what: description for messages, e.g. `results of asr compare`.

    Raises:
        UserError: the file is missing, can't be read, or contains something else.
    """
    path = Path(path)
    if path.exists() and not path.is_file():
        raise UserError(f"{path}: expected {what}, found a {kind_of(path)}")
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if path.suffix == ".gz" or content[:2] == GZIP_MAGIC else content
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise UserError(f"{path}: expected {what}, found a damaged archive") from None
    except OSError as error:
        found = f"none{near_path(path) or f' ({error.strerror})'}"
        raise UserError(f"{path}: expected {what}, found {found}") from None
    values = parse_json(content, str(path))
    if not isinstance(values, dict):
        raise UserError(f"{path}: expected {what}, found {str(values)[:60]!r}")
    return values


def read_as(schema: type[Schema], path: Path, what: str = "a JSON file") -> Schema:
    """Read a JSON file through a schema.

    Args:
        schema: dataclass; other entries of the file are ignored.
        path: file written by `write_record`, or by a version without digests.
        what: description of the file for messages.

    Raises:
        UserError: the file is missing, contains no object, has changed since it was written, lacks an entry
            without default, or has an entry of another type; the message names file and entry.
    """
    return schema(**checked_entries(schema, read_record(path, what), path))


def read_record(path: Path, what: str = "a JSON file") -> dict[str, Any]:
    """Return the content written by `write_record`; raise UserError if it has changed since."""
    values = read_json(path, what)
    if values.pop("mark", None) not in (None, _mark(values)):
        raise UserError(f"{path}: damaged: expected {what} as this program wrote it, found another digest")
    return values


def checked_entries(schema: Any, values: dict[str, Any], path: Path | str) -> dict[str, Any]:
    """Return the entries of a schema, each built as its type; see `read_as`. Errors begin with `path`."""
    entries = {}
    for name, kind in _hints(schema).items():
        if name in values:
            entries[name] = _entry(kind, values[name], path, name)
    for x in dataclasses.fields(schema):
        if x.name not in entries and x.default is x.default_factory is dataclasses.MISSING:
            raise UserError(f"{path}: expected {x.name}, found none")
    return entries


def _entry(kind: Any, value: Any, path: Path | str, name: str) -> Any:
    try:
        return build(kind, value, f"{path}: {name}")
    except UserError:
        if isinstance(value, dict | list):
            raise
        raise UserError(f"{path}: expected {type_name(kind)}, found {name}={repr(value)[:60]}") from None


def build(kind: Any, value: Any, source: str) -> Any:
    """Build a value of an annotated type from JSON data.

    Unlike in pydantic, nothing is converted: "3" in place of 3 indicates a damaged or foreign file.

    Args:
        kind: dataclass, list, dict, tuple, union, literal or plain type. An `int` may be a key of an object.
        value: result of `json.loads`.
        source: file and entry, for the message.

    Raises:
        UserError: the data are of another type.

    Example:
        >>> build(dict[str, list[int | None]], {"a": [1, None]}, "x.json")
        {'a': [1, None]}
        >>> build(list[float], [1.5, "2"], "x.json")
        Traceback (most recent call last):
        asr.errors.UserError: x.json: 1: expected float, found '2'
    """
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if Any in parts or type(value) in parts or (type(value) is int and float in parts):
            return value
        containers = [x for x in parts if typing.get_origin(x) or dataclasses.is_dataclass(x)]
        if isinstance(value, dict | list) and containers:
            return build(containers[0], value, source)
    elif (
        kind is Any
        or type(value) is kind
        or (kind is float and type(value) is int)
        or (origin is typing.Literal and value in parts)
    ):
        return value
    elif dataclasses.is_dataclass(kind) and isinstance(value, dict):
        return _build_record(kind, value, source)
    elif origin is list and isinstance(value, list):
        return [build(parts[0], item, f"{source}: {number}") for number, item in enumerate(value)]
    elif origin is tuple and isinstance(value, list) and len(value) == len(parts):
        return tuple(build(part, item, source) for part, item in zip(parts, value, strict=True))
    elif origin is dict and isinstance(value, dict):
        keys = [int(key) if parts[0] is int and key.isdecimal() else key for key in value]
        if all(isinstance(key, parts[0]) for key in keys):
            items = [build(parts[1], item, f"{source}: {key}") for key, item in value.items()]
            return dict(zip(keys, items, strict=True))
    raise UserError(f"{source}: expected {type_name(kind)}, found {repr(value)[:60]}")


def type_name(kind: Any) -> str:
    """Return the name of an annotated type, for messages: `float | None`."""
    plain = isinstance(kind, type) and not typing.get_args(kind)
    return kind.__name__ if plain else str(kind).replace("typing.", "")


def _build_record(kind: Any, values: dict[str, Any], source: str) -> Any:
    hints = _hints(kind)
    if unknown := sorted(values.keys() - hints.keys()):
        raise UserError(f"{source}: unknown {', '.join(unknown)[:60]}")
    missing = dataclasses.MISSING
    for field in dataclasses.fields(kind):
        if field.name not in values and field.default is missing and field.default_factory is missing:
            raise UserError(f"{source}: expected {field.name}, found none")
    built = {name: build(hints[name], value, f"{source}: {name}") for name, value in values.items()}
    try:
        return kind(**built)
    except UserError as error:  # the record's own checks
        raise UserError(f"{source}: {error}") from None


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def digest(content: str | bytes | Iterable[str | bytes], digits: int = 12, algorithm: str = "sha256") -> str:
    """Return the first hex digits of the hash of some content, as its identity.

    Args:
        content: text (as UTF-8; paths outside UTF-8 as bytes) or bytes; or parts, which are joined.
        digits: number of digits; 12 make a collision among a million contents unlikely (1 in 500).
        algorithm: `sha256` (64 digits) or `md5` (32).

    Example:
        >>> digest("abc") == digest([b"a", "bc"]) == "ba7816bf8f01"
        True
    """
    hashed = hashlib.new(algorithm, usedforsecurity=False)
    for part in (content,) if isinstance(content, str | bytes) else content:
        hashed.update(part.encode(errors="surrogateescape") if isinstance(part, str) else part)
    return hashed.hexdigest()[:digits]


def contents_digest(paths: Iterable[Path], digits: int = 64) -> str:
    """Return the digest of the names and contents of files in order."""
    return digest((path.name.encode() + path.read_bytes() for path in paths), digits)


def file_state(path: str | Path) -> str:
    """Return a file's path, size and modification time, which reveal whether it has changed.

    For a missing file or a broken link, return only the path.
    """
    try:
        state = os.stat(path)
    except (OSError, ValueError):  # ValueError: a null character in the path
        return str(path)
    return f"{path} {state.st_size} {state.st_mtime_ns}"


def file_digest(path: str | Path, digits: int = 12, algorithm: str = "sha256") -> str:
    """Return the digest of a file's content."""
    with open(path, "rb") as file:
        return digest(iter(lambda: file.read(1 << 20), b""), digits, algorithm)
