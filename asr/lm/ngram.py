"""Scores words with n-gram models, using KenLM as built into flashlight-text."""

import logging
import os
import re
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from asr.console import first_of
from asr.errors import UserError
from asr.lm.kneser_ney import SPECIAL

if TYPE_CHECKING:
    from flashlight.lib.text.decoder import LMState
    from flashlight.lib.text.decoder.kenlm import KenLM

log = logging.getLogger(__name__)

PLACE = re.compile(r"\S+\.(cc|hh):\d+ in .* threw \w+")  # place of an exception in KenLM's source


class NgramModel:
    """An ARPA or KenLM model over a word list, queried by index in that list.

    Words outside the model have the probability of `<unk>`.

    Example:
        >>> model = NgramModel("tri.arpa", ["the", "board"])  # doctest: +SKIP
        >>> state, log10_probability = model.score(model.start(), 0)  # doctest: +SKIP
    """

    def __init__(self, path: str | Path, words: Sequence[str]) -> None:
        """Load a file that `read_vocabulary` has checked; raise `UserError` if KenLM rejects it."""
        self._lm = load_kenlm(path, words)

    def start(self) -> "LMState":
        """Return the state at the start of a sentence."""
        return self._lm.start(False)

    def score(self, state: "LMState", word: int) -> tuple["LMState", float]:
        """Return the state after a word, and the log10 probability of the word."""
        return self._lm.score(state, word)

    def finish(self, state: "LMState") -> float:
        """Return the log10 probability that the sentence ends here."""
        return self._lm.finish(state)[1]


def load_kenlm(path: str | Path, words: Sequence[str]) -> "KenLM":
    """Load an ARPA or KenLM file into flashlight's language model over `words`.

    Raises:
        UserError: flashlight-text is not installed, or KenLM can't read the file.
    """
    try:
        from flashlight.lib.text.decoder.kenlm import KenLM
        from flashlight.lib.text.dictionary import Dictionary
    except ImportError as error:
        raise UserError(
            f"language models need flashlight-text ({error}): pip install 'flashlight-text>=0.0.7'"
        ) from error
    try:
        with _quiet_stderr():
            return KenLM(str(path), Dictionary(list(words)))
    except RuntimeError as error:
        reason = _reason(str(error))
        raise UserError(
            f"{path}: expected a complete ARPA or KenLM file, found one that KenLM rejects: {reason}"
        ) from error


def _reason(message: str) -> str:
    """Return KenLM's message on one line, without the place in its source.

    >>> _reason("/tmp/lm/model.cc:70 in void f(int) threw FormatLoadException.\\nFile too small.\\nByte: 9")
    'File too small. Byte: 9'
    """
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    if len(lines) > 1 and PLACE.match(lines[0]):
        del lines[0]
    return " ".join(lines) or "no reason given"


def check_casing(
    path: str | Path, vocabulary: frozenset[str] | None, words: Collection[str], source: str
) -> None:
    """Raise `UserError` if the words of a language model differ in case from those that it will score.

    Args:
        path: file of the language model, for the message.
        vocabulary: words of the language model; None: unknown.
        words: words to score.
        source: origin of `words` for the message, e.g. `the lexicon`.
    """
    if vocabulary is None or not words:
        return
    known = sum(word in vocabulary for word in words)
    if known >= len(words) / 2:
        return
    spelled = {word.casefold(): word for word in sorted(vocabulary)}
    alike = sorted(word for word in words if word.casefold() in spelled)
    if len(alike) > max(2 * known, len(words) / 2):
        unknown = next(word for word in alike if word not in vocabulary)
        raise UserError(
            f"{path}: its words differ in case from those of {source} "
            f"({spelled[unknown.casefold()]!r} for {unknown!r}): it has {known} of {len(words)}, "
            f"and {len(alike)} regardless of case"
        )


def warn_unknown(
    path: str | Path, vocabulary: frozenset[str] | None, words: Collection[str], source: str
) -> None:
    """Log the number of `words` that the language model lacks, and some of them."""
    if vocabulary is None:
        return
    if missing := sorted(word for word in words if word not in vocabulary):
        log.warning(
            "%s: %d of %d words of %s are not in the model and get the probability of <unk>: %s",
            path,
            len(missing),
            len(words),
            source,
            first_of(missing),
        )


def is_special(word: str) -> bool:
    """Whether a word of a model's vocabulary is `<unk>`, `<s>` or `</s>` (in any case)."""
    return word.lower() in SPECIAL


@contextmanager
def _quiet_stderr() -> Iterator[None]:
    """Hide KenLM's progress bar, which is written directly to file descriptor 2."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as sink:
        os.dup2(sink.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
