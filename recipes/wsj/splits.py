"""The splits of WSJ: their indices and official counts."""

import re
from dataclasses import dataclass

from asr.errors import UserError

from .layout import disc_name

_ENTRY = re.compile(r"(\S+?)\s*:\s*(\S+)")


@dataclass(frozen=True)
class Index:
    """A file that lists audio.

    Attributes:
        disc: disc of the index.
        path: path of the index on that disc.
        moved: (disc named in the index, disc that has the audio) pairs.
    """

    disc: str
    path: str
    moved: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Split:
    """A set of utterances.

    Attributes:
        name: name of the manifest.
        indices: indices that list the utterances.
        utterances: official number of utterances; 0: not checked.
        words: official number of scored words; 0: not checked.
    """

    name: str
    indices: tuple[Index, ...]
    utterances: int
    words: int = 0


# This speaker is in the index of WSJ0 but customarily excluded.
LEFT_OUT = ("11-2.1", "wsj0/si_tr_s/401/")
LEFT_OUT_REASON = "speaker 401 of disc 11-2.1, not in the training set"

_SI84 = Index("11-13.1", "wsj0/doc/indices/train/tr_s_wv1.ndx")
_SI200 = Index("13-34.1", "wsj1/doc/indices/si_tr_s.ndx")
_ON_THE_NEXT_DISC = (("13-32.1", "13-33.1"),)

SPLITS = (
    Split("si84", (_SI84,), 7138),
    Split("si284", (_SI84, _SI200), 37416),
    Split("dev93", (Index("13-34.1", "wsj1/doc/indices/h1_p0.ndx"),), 503, 8234),
    Split("eval92", (Index("11-13.1", "wsj0/doc/indices/test/nvp/si_et_20.ndx"),), 333, 5643),
    Split("eval93", (Index("13-32.1", "wsj1/doc/indices/wsj1/eval/h1_p0.ndx", _ON_THE_NEXT_DISC),), 213),
    # Counterparts with a closed vocabulary of 5,000 words. (A comment in Kaldi's recipe gives 213 for
    # eval93_5k; the index reportedly has 215.)
    Split("dev93_5k", (Index("13-34.1", "wsj1/doc/indices/h2_p0.ndx"),), 513),
    Split("eval92_5k", (Index("11-13.1", "wsj0/doc/indices/test/nvp/si_et_05.ndx"),), 330),
    Split("eval93_5k", (Index("13-32.1", "wsj1/doc/indices/wsj1/eval/h2_p0.ndx", _ON_THE_NEXT_DISC),), 215),
)


@dataclass(frozen=True)
class IndexEntry:
    """A line of an index: disc and path of an utterance's audio; `line` names file and line for messages."""

    disc: str
    path: str
    line: str

    @property
    def utterance(self) -> str:
        """Utterance id: the file's stem in lower case."""
        return self.path.rpartition("/")[2].partition(".")[0].lower()

    @property
    def left_out(self) -> bool:
        """Whether the utterance is customarily excluded."""
        return self.path.startswith(LEFT_OUT[1]) and self.disc == LEFT_OUT[0]


def parse_entry(line: str, index: Index, where: str) -> IndexEntry:
    """Parse a line of an index.

    Args:
        line: text of the line.
        index: the index.
        where: file and line for messages.

    Raises:
        UserError: the line is malformed.
    """
    match = _ENTRY.fullmatch(line.strip())
    disc = disc_name(match[1]) if match else None
    if match is None or disc is None:
        raise UserError(f"{where}: expected `11_13_1:wsj0/…/01ic0201.wv1`, found {line.strip()[:60]!r}")
    path = match[2].lower().lstrip("/").removesuffix(".wv1") + ".wv1"
    return IndexEntry(dict(index.moved).get(disc, disc), path, where)
