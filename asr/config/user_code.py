"""The user's code, a file or module: loaded only if the user names it, with a digest."""

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from asr.errors import UserError, in_words
from asr.files import digest, near_path


@dataclass(frozen=True)
class Code:
    """A loaded module.

    Attributes:
        source: absolute path of its file, or its name if only Python's path finds it.
        digest: digest of its file when it was loaded.
    """

    source: str
    digest: str


_loaded: dict[str, Code] = {}


def load(source: str) -> str:
    """Load a file or import a module, and return the module's name; a changed file is loaded again.

    Args:
        source: a path that ends in `.py`, or the name of a module such as `my_package.nystrom`.

    Raises:
        UserError: the file or module is missing, another module has its name, or its code fails.
    """
    if not source:
        raise UserError("expected a file or module with code, found an empty name")
    return _load_file(Path(source).expanduser()) if source.endswith(".py") else _import(source)


def module(name: str) -> ModuleType | None:
    """Return a module that this process has imported, by `load` or otherwise, or None."""
    return sys.modules.get(name)


def use(name: str) -> None:
    """Register an imported module as loaded, e.g. one that a Python program has imported."""
    if name in _loaded:
        return
    path = getattr(sys.modules[name], "__file__", None)
    content = Path(path).read_bytes() if path and Path(path).is_file() else b""
    # Any process can load a file by its path; a module in a package needs its package.
    alone = path and "." not in name and Path(path).stem == name
    _loaded[name] = Code(str(Path(path).resolve()) if path and alone else name, digest(content))


def sources() -> list[str]:
    """Return the sources of all loaded modules, for `load_all` in another process."""
    return [code.source for code in _loaded.values()]


def options(names: Iterable[str]) -> list[str]:
    """Return the command-line options that load these modules: `--code nystrom.py`."""
    codes = [_loaded[name] for name in sorted(set(names)) if name in _loaded]
    places = (os.path.relpath(x.source) if x.source.endswith(".py") else x.source for x in codes)
    return [word for place in places for word in ("--code", place)]


def load_all(named: Iterable[str]) -> None:
    """Load the `sources` of another process."""
    for source in named:
        load(source)


def digests(names: Iterable[str]) -> dict[str, str]:
    """Return the digests of those modules that are loaded, by name."""
    return {name: _loaded[name].digest for name in sorted(set(names)) if name in _loaded}


def all_digests() -> dict[str, str]:
    """Return the digests of all loaded modules, by name."""
    return digests(_loaded)


def changed(before: Mapping[str, Any]) -> str:
    """Return a line about the first module whose digest has changed; empty if none has."""
    for name, was in before.items():
        code = _loaded.get(name)
        if code and code.digest != was:
            return f"{code.source} has changed: its digest was {was}, is now {code.digest}"
    return ""


def _load_file(path: Path) -> str:
    if not path.is_file():
        raise UserError(f"{path}: expected a file with Python code, found none{near_path(path)}")
    name = path.stem
    if not name.isidentifier():
        raise UserError(f"{path}: expected a name of letters, digits and _, by which the code is imported")
    content, place = path.read_bytes(), str(path.resolve())
    code = Code(place, digest(content))
    known = _loaded.get(name)
    if known and known.digest == code.digest:
        return name
    if (known and known.source != place) or (not known and (other := _origin(name)) not in (None, place)):
        taken = known.source if known else other
        raise UserError(f"{path}: the name {name} is that of another module, {taken}; rename the file")
    created = ModuleType(name)
    created.__file__ = place
    before = sys.modules.get(name)
    sys.modules[name] = created  # where dataclasses and pickle look for it
    try:
        # Compiled here rather than imported: a stale .pyc would have another digest than what runs.
        exec(compile(content, place, "exec"), created.__dict__)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        if before is not None:
            sys.modules[name] = before
        raise _failure(str(path), place, error) from error
    _loaded[name] = code
    return name


def _origin(name: str) -> str | None:
    """Return where Python finds a module of this name, or None."""
    if name in sys.modules:
        return str(getattr(sys.modules[name], "__file__", None) or "built in")
    try:
        spec = importlib.util.find_spec(name)
    except ValueError:
        return "built in"
    return None if spec is None or spec.origin is None else str(Path(spec.origin).resolve())


def _import(name: str) -> str:
    if module(name) is None:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise _failure(name, "", error) from error
            raise UserError(
                f"{name}: expected a module on Python's path, found none; a file is named by its path, "
                f"./{name.replace('.', '/')}.py"
            ) from None
        except (Exception, SystemExit) as error:
            raise _failure(name, "", error) from error
    use(name)
    return name


def failure(error: BaseException) -> str:
    """Describe an exception in one line, with the last line of loaded code in its traceback."""
    return _described(error, _is_loaded)


def passed(error: BaseException) -> bool:
    """Return whether an exception passed through loaded code."""
    return any(_is_loaded(frame.filename) for frame in traceback.extract_tb(error.__traceback__))


def _is_loaded(file: str) -> bool:
    return any(getattr(module(name), "__file__", None) == file for name in _loaded)


def last_file(error: BaseException) -> str:
    """Return the file that raised an exception; empty if there is no traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    return frames[-1].filename if frames else ""


def _failure(name: str, place: str, error: BaseException) -> UserError:
    """Return a UserError for an error in a module's code, with the line in its file."""
    if isinstance(error, SyntaxError) and error.filename == place:
        return UserError(f"{name}, line {error.lineno}: SyntaxError: {error.msg}")
    return UserError(f"{name}: {_described(error, lambda file: file == place)}")


def _described(error: BaseException, among: Callable[[str], bool]) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if among(frame.filename)]
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    name, words = type(error).__name__, in_words(error)
    return f"{name}{where}" if words == name else f"{name}: {words}{where}"
