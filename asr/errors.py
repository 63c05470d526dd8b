"""Errors that a user can fix, shown as one line."""

import difflib


class UserError(Exception):
    """Bad input. The command line prints the message without a traceback.

    The message is one line: the file, utterance or option, what was expected, and what was found.
    """

    @property
    def line(self) -> str:
        """Message without the traceback that PyTorch adds to errors from data workers."""
        lines = str(self).strip().splitlines() or [""]
        return lines[-1].removeprefix(f"{UserError.__module__}.{UserError.__qualname__}: ")


def did_you_mean(word: str, known: list[str]) -> str:
    """Return `` (did you mean 'x'?)`` with the closest known word, or list all of them if none is close."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    if close:
        return f" (did you mean {close[0]!r}?)"
    return f" (known: {', '.join(sorted(known))})"
