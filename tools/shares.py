"""Shares of the parts of a program in a thread's CPU time, from functions that are wrapped meanwhile."""

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from functools import wraps
from typing import Any

from rich.table import Table

from asr.console import open_console


class Shares:
    """CPU time of a thread by part of the program.

    Attributes:
        seconds: time of each part without those that it calls.
    """

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.started = 0.0
        self._parts = ["the rest"]

    def start(self) -> None:
        """Begin at zero."""
        self.seconds.clear()
        self.started = time.thread_time()

    def _enter(self, part: str | None) -> None:
        now = time.thread_time()
        self.seconds[self._parts[-1]] += now - self.started
        self.started = now
        if part is None:
            self._parts.pop()
        else:
            self._parts.append(part)

    @contextlib.contextmanager
    def of(self, *parts: tuple[Any, str, str]) -> Iterator[None]:
        """Measure the functions (owner, name, part) meanwhile."""
        before = [(owner, name, getattr(owner, name)) for owner, name, _ in parts]
        for (owner, name, function), (_, _, part) in zip(before, parts, strict=True):
            setattr(owner, name, self._measured(function, part))
        try:
            yield
        finally:
            for owner, name, function in before:
                setattr(owner, name, function)

    def _measured(self, function: Any, part: str) -> Any:
        @wraps(function)
        def measured(*arguments: Any, **options: Any) -> Any:
            self._enter(part)
            try:
                return function(*arguments, **options)
            finally:
                self._enter(None)

        return measured

    def print(self, title: str) -> None:
        """Print a line per part."""
        self._enter("end")
        table = Table("part", "CPU s", "share", title=title)
        whole = sum(self.seconds.values())
        for part, seconds in self.seconds.most_common():
            table.add_row(part, f"{seconds:.2f}", f"{100 * seconds / whole:.1f} %")
        open_console().print(table)
