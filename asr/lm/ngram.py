"""N-gram models in use: probabilities of words one after the other, by KenLM (in flashlight-text)."""

import logging
import os
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from asr.errors import UserError
from asr.lm.arpa import Vocabulary, read_vocabulary
from asr.lm.kneser_ney import SPECIAL

if TYPE_CHECKING:
    from flashlight.lib.text.decoder import LMState
    from flashlight.lib.text.decoder.kenlm import KenLM

log = logging.getLogger(__name__)

ENOUGH = 0.5  # share of the words in both, below which the casing is looked at


class NgramModel:
    """An ARPA or KenLM file together with the words that it is asked for, by their index in a list.

    Words that the file lacks have the probability of its `<unk>`.

    Example:
        >>> model = NgramModel("tri.arpa", ["the", "board"])  # doctest: +SKIP
        >>> state, log10_probability = model.score(model.start(), 0)  # doctest: +SKIP
    """

    def __init__(self, path: str | Path, words: Sequence[str]) -> None:
        """Load the file; `UserError` where it is missing, truncated or neither ARPA nor KenLM."""
        vocabulary = read_vocabulary(path)
        self.words = list(words)
        self.vocabulary = vocabulary.words
        self._lm = load_kenlm(path, self.words)

    def start(self) -> "LMState":
        """Return the state at the beginning of a sentence."""
        return self._lm.start(False)

    def score(self, state: "LMState", word: int) -> tuple["LMState", float]:
        """Return the state after a word, and log10 of its probability."""
        return self._lm.score(state, word)

    def finish(self, state: "LMState") -> float:
        """Return log10 of the probability that the sentence ends here."""
        return self._lm.finish(state)[1]


def load_kenlm(path: str | Path, words: Sequence[str]) -> "KenLM":
    """Load an ARPA or KenLM file into flashlight's language model over `words`.

    Raises:
        UserError: flashlight-text isn't installed, or KenLM can't read the file.
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
        reason = str(error).strip().splitlines()[-1]  # above it, where KenLM raised it
        raise UserError(
            f"{path}: expected a complete ARPA or KenLM file, found one that KenLM refuses: {reason}"
        ) from error


def check_casing(path: str | Path, vocabulary: Vocabulary, words: Collection[str], of: str) -> None:
    """Refuse a language model whose words are written in another case than those it will be asked for.

    Args:
        path: of the language model, for the message.
        vocabulary: of the language model.
        words: what it will be asked for.
        of: where `words` come from, e.g. `the lexicon`.
    """
    if vocabulary.words is None or not words:
        return
    known = sum(word in vocabulary.words for word in words)
    if known >= ENOUGH * len(words):
        return
    spelled = {word.casefold(): word for word in sorted(vocabulary.words)}
    alike = sorted(word for word in words if word.casefold() in spelled)
    if len(alike) > max(2 * known, ENOUGH * len(words)):
        own = next(word for word in alike if word not in vocabulary.words)
        raise UserError(
            f"{path}: its words are written in another case than those of {of} "
            f"({spelled[own.casefold()]!r} for {own!r}): it has {known} of {len(words)}, "
            f"and {len(alike)} regardless of case"
        )


def warn_unknown(path: str | Path, vocabulary: Vocabulary, words: Collection[str], of: str) -> None:
    """Log how many of `words` the language model lacks, and some of them."""
    if vocabulary.words is None:
        return
    if missing := sorted(word for word in words if word not in vocabulary.words):
        log.warning(
            "%s: %d of %d words of %s are unknown to it and get the probability of <unk>: %s%s",
            path,
            len(missing),
            len(words),
            of,
            ", ".join(missing[:10]),
            " …" if len(missing) > 10 else "",
        )


def is_special(word: str) -> bool:
    """Whether a word of a model's vocabulary is one of its marks: `<unk>`, `<s>`, `</s>`, any case."""
    return word.lower() in SPECIAL


@contextmanager
def _quiet_stderr() -> Iterator[None]:
    """Keep KenLM's progress bar, written past Python's streams, off the terminal."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as sink:
        os.dup2(sink.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
