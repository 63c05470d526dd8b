"""`decoder=beam`."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from asr.config import option
from asr.search.decoder import Search, WeightedDecoder

if TYPE_CHECKING:
    from asr.text.tokenizer import Tokenizer


@dataclass
class Beam(WeightedDecoder):
    """Words of a lexicon; see `BeamSearch`."""

    name = "beam"
    meaning = "only words of a lexicon, with 300 hypotheses"
    usual_size = 300

    lexicon: str = option(
        "",
        help="words to recognise: a word list, or `word PH PH …` lines for phone models; empty: the "
        "model's lexicon, else the words of lm",
        affects="result",
    )

    def files(self) -> dict[str, str]:
        """Return the lexicon as well."""
        return super().files() | ({"lexicon": self.lexicon} if self.lexicon else {})

    def build(self, tokenizer: "Tokenizer", topology: str = "ctc") -> Search:
        """See `Decoder`; without words to search for, characters and pieces are an error."""
        from asr.search.beam import BeamSearch
        from asr.search.spelling import read_search_lexicon
        from asr.text.lexicon import read_words
        from asr.text.tokenizer import PhoneTokenizer

        words, lexicon = None, None
        if self.lexicon and isinstance(tokenizer, PhoneTokenizer):
            lexicon = read_search_lexicon(self.lexicon, tokenizer)
        elif self.lexicon:
            words = read_words(self.lexicon)
        weights = self.weights()
        return BeamSearch(
            tokenizer,
            words=words,
            lexicon=lexicon,
            beam=weights.size,
            tokens=self.tokens,
            lm=self.lm or None,
            lm_weight=weights.lm_weight,
            word_score=weights.word_score,
            hotwords=self.phrases(),
            nbest=self.nbest,
            topology=topology,
        )
