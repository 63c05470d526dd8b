"""Errors that users can fix, shown as one line; exit status of programs."""

import difflib
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType


class UserError(Exception):
    """Bad input. The command line prints the message without a traceback.

    The message is one line: the file, utterance or option, what was expected, and what was found.

    Attributes:
        kind: kind of problem, for problems with a corpus; see `asr.preparation.problems`.
    """

    def __init__(self, message: object = "", kind: str = "") -> None:
        text = str(message)
        # PyTorch rebuilds a data worker's error from its traceback, whose last line is the message.
        super().__init__(text if PREFIX in text else _one_line(text))
        self.kind = kind

    @property
    def line(self) -> str:
        """Message without the traceback that PyTorch adds to errors from data workers."""
        lines = str(self).strip().splitlines() or [""]
        return lines[-1].removeprefix(PREFIX)


PREFIX = f"{UserError.__module__}.{UserError.__qualname__}: "
# Line breaks, terminal control characters, and surrogates, which UTF-8 can't encode.
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
SIGPIPE = 13  # signal.SIGPIPE, which Windows lacks
LONGEST = 500  # maximum number of characters in a message
# Messages of Python, the loader and PyTorch when the system refuses more resources.
LIMITS = re.compile(
    "can't start new thread|failed to map segment from shared object|can't allocate memory|"
    "unable to mmap .*bytes|Cannot allocate memory|File too large|No space left on device|"
    "Too many open files|Resource temporarily unavailable"
)
FEW = 12  # maximum number of words that an error lists


def _one_line(text: str) -> str:
    """Return a message with control characters escaped; the middle of a long message is left out.

    Example:
        >>> _one_line("a\\nb.wav: no audio")
        'a\\\\nb.wav: no audio'
    """
    line = CONTROL.sub(lambda found: repr(found[0])[1:-1], text.strip())
    half = LONGEST // 2
    return line if len(line) <= LONGEST else f"{line[:half]} … {line[-half:]}"


def not_text(text: str) -> bool:
    """Return whether a text contains null characters, or bytes of a file name that aren't UTF-8.

    Example:
        >>> not_text("a\\x00b"), not_text("su\\udcff"), not_text("süß")
        (True, True, False)
    """
    return re.search("[\0\ud800-\udfff]", text) is not None


def did_you_mean(word: str, known: list[str]) -> str:
    """Return `` (did you mean 'x'?)`` with the closest known word.

    If none is close, list all known words if they are few, otherwise the nearest three.
    """
    word = word[:100]  # comparing takes time quadratic in the length
    if close := difflib.get_close_matches(word, known, n=1, cutoff=0.6):
        return f" (did you mean {close[0]!r}?)"
    if len(known) <= FEW:
        return f" (known: {', '.join(sorted(known))})"
    return f" (nearest: {', '.join(difflib.get_close_matches(word, known, n=3, cutoff=0.0))})"


def run_program(name: str, work: Callable[[], object], *, debug: bool = False) -> int:
    """Run a program; report errors that users can fix, and signals, in one line on standard error.

    SIGTERM interrupts the work like Ctrl-C, so that it cleans up.

    Args:
        name: name of the program, with which the line begins.
        work: function without arguments.
        debug: whether to print the traceback, too.

    Returns:
        Exit status: 0; 1 for an error that the user can fix, or a file that can't be read or written; 130
        after Ctrl-C; 141 if nobody reads the output; 143 after SIGTERM.
    """
    received: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        received.append(number)
        raise KeyboardInterrupt

    def report(message: str, status: int) -> int:
        if debug:
            traceback.print_exc()
        with suppress(OSError):
            print(f"{name}: {message}", file=sys.stderr)
        return status

    if sys.stderr is None:  # closed: the next opened file would take its place
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    with _handling_signals(interrupt):
        try:
            if sys.stdout is None:
                raise UserError("standard output is closed: > /dev/null discards it")
            work()
            sys.stdout.flush()
            return 0
        except UserError as error:
            return report(error.line, 1)
        except UnicodeEncodeError as error:
            return report(_describe_unwritable(error), 1)
        except BrokenPipeError:
            _discard_output()
            return 128 + SIGPIPE
        except OSError as error:
            _discard_output()
            return report(_describe_os_error(error), 1)
        except MemoryError:
            return report("out of memory", 1)
        except BaseException as error:
            # A library may turn an interrupted import into another error.
            if not received and not isinstance(error, KeyboardInterrupt):
                if lack := LIMITS.search(" ".join(map(str, with_causes(error)))):
                    limit = f"a limit of the system or its memory is reached ({lack[0]}): see ulimit -a"
                    return report(limit, 1)
                raise
            number = received[0] if received else signal.SIGINT
            if isinstance(error, SystemExit):  # the work has already reported that it was stopped
                return 128 + number
            return report("terminated" if number == signal.SIGTERM else "interrupted", 128 + number)


def with_causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and the errors that it hides: cleaning up after an error may fail, too."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


@contextmanager
def _handling_signals(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle SIGINT and SIGTERM with a function within the block; do nothing outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Defer SIGINT and SIGTERM to the end of the block, so that it isn't left half done."""
    received: list[int] = []
    with _handling_signals(lambda number, frame: received.append(number)):
        yield
    for number in received:
        signal.raise_signal(number)


def _describe_os_error(error: OSError) -> str:
    places = [str(place) for place in (error.filename, error.filename2) if place is not None]
    return ": ".join([*places[:1], error.strerror or str(error)])


def _describe_unwritable(error: UnicodeEncodeError) -> str:
    found = error.object[error.start : error.end][:20]
    if not_text(found):
        return _one_line(f"{error.object[:200]!r}: expected a name in UTF-8")
    return (
        f"expected an output that takes {found!a}, found the encoding {error.encoding}: set "
        "PYTHONIOENCODING=utf-8"
    )


def in_words(error: BaseException) -> str:
    """Return the message of a library's exception in one line, without type names and error numbers.

    Example:
        >>> in_words(FileNotFoundError(2, "No such file or directory", "a.json")), in_words(KeyError("steps"))
        ('a.json: No such file or directory', 'no steps')
    """
    if isinstance(error, UserError):
        return error.line
    if isinstance(error, OSError):
        return _describe_os_error(error)
    if isinstance(error, KeyError) and error.args:
        return f"no {error.args[0]}"
    if isinstance(error, MemoryError):
        return "out of memory"
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _discard_output() -> None:
    """Discard unwritten output, which the interpreter would try to flush again at exit."""
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        return
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
