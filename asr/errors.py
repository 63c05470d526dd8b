"""The error that a user can mend, shown as one line."""

import difflib


class UserError(Exception):
    """Bad input: the message is one line that names the file, the utterance or the key,
    says what was expected and what was found. The command line prints it without a traceback.
    """

    @property
    def line(self) -> str:
        """The message itself, where PyTorch has wrapped it in a data worker's traceback."""
        lines = str(self).strip().splitlines() or [""]
        return lines[-1].removeprefix(f"{UserError.__module__}.{UserError.__qualname__}: ")


def did_you_mean(word: str, known: list[str]) -> str:
    """Return `` (did you mean 'x'?)`` for the nearest known word, else a list of what is known."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    if close:
        return f" (did you mean {close[0]!r}?)"
    return f" (known: {', '.join(sorted(known))})"
