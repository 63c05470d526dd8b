"""`decoder=greedy`."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from asr.search.decoder import Decoder, Search

if TYPE_CHECKING:
    from asr.text.tokenizer import Tokenizer


@dataclass
class Greedy(Decoder):
    """The labels of the most probable output sequence; for phones, also the closest words."""

    name = "greedy"
    meaning = "the best label of each frame"
    streams = True

    def build(self, tokenizer: "Tokenizer", topology: str = "ctc") -> Search:
        """See `Decoder`."""
        from asr.search.greedy import GreedySearch
        from asr.search.words import with_words

        return with_words(GreedySearch(topology), tokenizer, tokenizer.lexicon)
