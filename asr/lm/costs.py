"""Copies n-gram models with a small cost for each word, different for each."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from zlib import crc32

from asr.lm.kneser_ney import UNKNOWN

# A model that gives every word the probability 1. KenLM requires a bigram.
NO_MODEL = r"""
\data\
ngram 1=3
ngram 2=1
\1-grams:
0 <unk> 0
-99 <s> 0
0 </s>
\2-grams:
0 <s> </s>
\end\
"""
CAPITAL_UNKNOWN = "<UNK>"  # for KenLM, the same word as <unk>
HEADER = 1000  # characters reserved for the counts, which are written last; KenLM skips empty lines there


def fraction(text: str) -> float:
    """Return a pseudo-random number for a text, 0 … 1, the same in every process."""
    return crc32(text.encode()) / 2**32


class CostlyCopy:
    """Copies an ARPA file; the log10 probability of each n-gram is lowered by the cost of its last word.

    Each word that the model lacks gets an entry, with the probability of `<unk>`. Each n-gram of two or more
    words costs a different amount more, up to `step`, so that the order of words matters. For this purpose,
    all pairs of the words `ordered` get an entry; pairs that the model lacks have their back-off probability.

    Args:
        costs: costs of the words to score.
        step: maximum cost of an n-gram, in addition to the cost of its last word.
        ordered: words whose order matters.
    """

    def __init__(self, costs: Mapping[str, float], step: float, ordered: Sequence[str]) -> None:
        self._costs = costs
        self._step = step
        self._ordered = dict.fromkeys(ordered)
        self._unigrams: dict[str, tuple[float, float]] = {}  # log10 probability in the copy, and backoff
        self._pairs: set[str] = set()  # pairs of ordered words that the model contains
        self._names: dict[str, str] = {}
        self._unknown_in_ngrams = False

    def write(self, lines: Iterable[str], path: Path) -> list[str] | None:
        """Copy the lines of a file that `read_vocabulary` has checked.

        Returns:
            The names of the words in the copy, in the order of `costs`. None if there can't be a copy: the
            model lacks words and has n-grams with `<unk>`, which apply to each of these words.
        """
        counts: list[int] = []
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n" * HEADER)
            for entry in self._entries(lines):
                if entry.startswith("\\"):
                    counts.append(0)
                else:
                    counts[-1] += 1
                file.write(f"{entry}\n")
            file.write("\\end\\\n")
            file.seek(0)
            file.write("\n".join(["\\data\\", *(f"ngram {n}={count}" for n, count in enumerate(counts, 1))]))
        names = [self._names.get(word, word) for word in self._costs]
        return None if self._unknown_in_ngrams and self._names else names

    def _entries(self, lines: Iterable[str]) -> Iterator[str]:
        """Yield the heads of the sections and their n-grams."""
        order = orders = 0
        for line in lines:
            if line.startswith("ngram "):
                orders += 1
            elif line.startswith("\\"):
                if order == 1:
                    yield from self._other_words()
                if order == 2:
                    yield from self._other_pairs(backoff="\t0" if orders > 2 else "")
                if line.startswith("\\end\\"):
                    return
                if line.startswith(f"\\{order + 1}-grams:"):
                    order += 1
                    yield f"\\{order}-grams:"
            elif order and (fields := line.split()):
                if CAPITAL_UNKNOWN in line:
                    fields = [UNKNOWN if field == CAPITAL_UNKNOWN else field for field in fields]
                yield self._entry(float(fields[0]), fields[1 : order + 1], fields[order + 1 :])

    def _entry(self, log10_probability: float, words: list[str], backoff: list[str]) -> str:
        name = " ".join(words)
        if (cost := self._costs.get(words[-1])) is not None:
            log10_probability -= cost + (self._step * fraction(name) if words[1:] else 0.0)
        if not words[1:]:
            self._unigrams[name] = log10_probability, float(backoff[0] if backoff else 0.0)
        elif UNKNOWN in words:
            self._unknown_in_ngrams = True
        elif len(words) == 2 and words[0] in self._ordered and words[1] in self._ordered:
            self._pairs.add(name)
        return "\t".join([f"{log10_probability:.9g}", name, *backoff])

    def _other_words(self) -> Iterator[str]:
        unknown, backoff = self._unigrams.get(UNKNOWN, (-100.0, 0.0))  # -100 is KenLM's default
        for number, (word, cost) in enumerate(self._costs.items()):
            if word not in self._unigrams:
                self._names[word] = name = f"<{number}>"  # the word itself may have spaces
                self._unigrams[word] = unknown - cost, backoff
                yield f"{unknown - cost:.9g}\t{name}\t{backoff:g}"

    def _other_pairs(self, backoff: str) -> Iterator[str]:
        for one, other in itertools.product(self._ordered, repeat=2):
            name = f"{self._names.get(one, one)} {self._names.get(other, other)}"
            backed_off = self._unigrams[one][1] + self._unigrams[other][0]
            if name not in self._pairs and backed_off <= 0:
                yield f"{backed_off - self._step * fraction(name):.9g}\t{name}{backoff}"
