"""Results stored by key while work goes on, what identifies work, and how two descriptions of it differ."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from asr.config import flat, user_code
from asr.environment import source_digest
from asr.parallel import Journal


def job(command: str, options: Mapping[str, Any], **inputs: Any) -> dict[str, Any]:
    """Return what identifies a command's work: program, options that affect it, and digests of its inputs.

    The program is a part, because results of two versions must not be mixed; at most one interrupted
    command's work is lost. Trainings and the cells of a comparison, which take days, are identified by
    options and inputs alone.
    """
    code = user_code.all_digests()
    program = {"program": source_digest(), **({"code": code} if code else {})}
    return {"command": command, **program, "options": dict(options), **inputs}


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the entries in which two descriptions of work differ, by dotted name: before and now.

    A missing entry equals None, so that a new option whose default is None changes nothing.

    Example:
        >>> differences({"seed": 0, "beam": {"size": 5}}, {"seed": 0, "beam": {"size": 8}, "lm": "3-gram"})
        {'beam.size': (5, 8), 'lm': (None, '3-gram')}
    """
    old, new = flat(before), flat(now)
    return {name: (old.get(name), new.get(name)) for name in old | new if old.get(name) != new.get(name)}


class KeyedRecord(Journal):
    """A journal whose results are looked up while it is written, and which disappears with its work.

    A key identifies a result: the position of an item in a list that the job identifies, the path and state
    of a file (`file_state`), or an item's own description.
    """

    def add(self, key: str, result: Any) -> Any:
        """Store a result (JSON data) and return it as it will be read back: tuples become lists."""
        self.stored[key] = found = super().add(key, result)
        return found

    def obtain(self, key: str, compute: Callable[[], Any]) -> Any:
        """Return the stored result, or compute and store it."""
        return self.stored[key] if key in self.stored else self.add(key, compute())

    def positions(self, keys: Iterable[str]) -> dict[int, Any]:
        """Return the stored results by position of their keys; equal keys share one."""
        return {position: self.stored[key] for position, key in enumerate(keys) if key in self.stored}

    def remove(self) -> None:
        """Remove the file, once the results are elsewhere."""
        self.close()
        self.path.unlink(missing_ok=True)
