"""Ctrl-C, SIGTERM and a job's announced end: training ends after the current step, other work at once."""

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

# SLURM and submitit send one of them before a job's time limit. Windows has none.
ANNOUNCEMENTS = tuple(getattr(signal, name) for name in ("SIGUSR1", "SIGUSR2") if hasattr(signal, name))
HANDLED = (signal.SIGINT, signal.SIGTERM, *ANNOUNCEMENTS)


class Stopped(BaseException):
    """A signal ends the program.

    Not KeyboardInterrupt, which Lightning turns into an exit status of 1.

    Args:
        number: number of the signal.
        note: text that follows `… stopped by SIGTERM`.
    """

    def __init__(self, number: int, note: str = "") -> None:
        super().__init__(number)
        self.number = number
        self.note = note


class Signals:
    """Context in which signals raise `Stopped`, at once or, while `deferred`, when `check` is called.

    A second signal is never deferred. Outside the main thread, signals are left as they are.

    Attributes:
        deferred: whether signals wait for `check`.
        received: number of the signal that waits; 0 if none does.
    """

    def __init__(self) -> None:
        self.deferred = False
        self.received = 0
        self.before: dict[int, Callable[..., Any] | int | None] = {}

    def __enter__(self) -> "Signals":
        """Handle signals."""
        if threading.current_thread() is threading.main_thread():
            self.before = {number: signal.getsignal(number) for number in HANDLED}
            self.handle()
        return self

    def handle(self) -> None:
        """Install the handlers, again if other code has replaced them."""
        for number in self.before:
            signal.signal(number, self._receive)

    def __exit__(self, *_: Any) -> None:
        """Restore the previous handlers."""
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.received or not self.deferred:
            self.received = number
            raise Stopped(number)
        self.received = number

    def check(self) -> None:
        """Raise `Stopped` if a signal waits."""
        if self.received:
            raise Stopped(self.received)
