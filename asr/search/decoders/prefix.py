"""`decoder=prefix`."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from asr.config import option
from asr.errors import UserError
from asr.search.decoder import Search, WeightedDecoder

if TYPE_CHECKING:
    from asr.text.tokenizer import Tokenizer


@dataclass
class Prefix(WeightedDecoder):
    """The most probable label sequence; for phones, also the closest words; see `PrefixSearch`."""

    name = "prefix"
    meaning = "the most probable label sequence, with 50 hypotheses"
    streams = True
    usual_size = 50

    token_threshold: float = option(
        10.0,
        help="labels this much below the frame's best label are skipped",
        affects="result",
        unit="nats",
        maximum=1e6,
    )
    label_score: float = option(
        0.0,
        help="score added per label, positive against deletions",
        affects="result",
        unit="nats",
        minimum=-1000,
        maximum=1000,
    )

    def check(self) -> None:
        """Raise UserError for a word score without a language model: then the search has no words."""
        if self._scores_words() and (not self.lm or self.lm_weight == 0):
            found = "with beam.lm_weight=0" if self.lm else "without beam.lm"
            raise UserError(f"word_score={self.word_score:g}: has no effect with decoder=prefix {found}")

    def _scores_words(self) -> bool:
        """Return whether `word_score` differs from the default."""
        return self.weights().word_score != Prefix().weights().word_score

    def build(self, tokenizer: "Tokenizer", topology: str = "ctc") -> Search:
        """See `Decoder`; a word score with a language model of labels is an error."""
        from asr.search.fusion import build_fusion
        from asr.search.hotwords import HotwordFusion
        from asr.search.prefix import PrefixSearch
        from asr.search.words import with_words
        from asr.text.g2p import installed_model
        from asr.text.hotwords import in_words_of, pronunciations, writable
        from asr.text.tokenizer import PhoneTokenizer

        weights, hotwords, lexicon = self.weights(), self.phrases(), tokenizer.lexicon
        fusion = build_fusion(self.lm, tokenizer, weights.lm_weight, weights.word_score)
        if self.lm and self._scores_words() and "word_score" not in fusion.tunable:
            raise UserError(
                f"beam.word_score={weights.word_score:g}: has no effect with {self.lm}, a model of labels"
            )
        if hotwords and isinstance(tokenizer, PhoneTokenizer):
            hotwords = in_words_of(hotwords, tokenizer.lexicon)
            said = pronunciations(hotwords, tokenizer.lexicon, tokenizer, installed_model())
            fusion = HotwordFusion(fusion, hotwords, tokenizer, said)
            lexicon = said.merged(tokenizer.lexicon)  # hotwords first: the first of homophones is found
        elif hotwords:
            fusion = HotwordFusion(fusion, writable(hotwords, tokenizer, fusion.words), tokenizer)
        search = PrefixSearch(
            fusion,
            beam=weights.size,
            tokens=self.tokens,
            token_threshold=self.token_threshold,
            label_score=self.label_score,
            nbest=self.nbest,
            topology=topology,
        )
        return with_words(search, tokenizer, lexicon)
