"""Selection of the best checkpoint by the word errors of beam search on development utterances."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from lhotse.cut import MonoCut
from torch import Tensor

from asr.errors import UserError
from asr.scoring.error_rates import ErrorCounts
from asr.scoring.score import WordFilter, scored_words
from asr.search.path import text_of
from asr.text.tokenizer import Tokenizer
from asr.training.options import SelectionConfig


class WordErrors:
    """Counts the word errors of `decoder=beam`.

    Args:
        config: number of utterances and options of the search.
        cuts: development data; see `drawn`.
        tokenizer: tokenizer of the model.
        topology: label topology.
        filter_words: scoring rules of the data.
        seed: random seed that selects the utterances.

    Raises:
        UserError: invalid options of the search, or no words in the utterances.
    """

    def __init__(
        self,
        config: SelectionConfig,
        cuts: Iterable[MonoCut],
        tokenizer: Tokenizer,
        topology: str,
        filter_words: WordFilter | None,
        seed: int,
    ) -> None:
        self.tokenizer = tokenizer
        self.filter_words = filter_words
        self.search = config.beam.build(tokenizer, topology)
        chosen = drawn(list(cuts), config.utterances, seed)
        words = scored_words((cut.supervisions[0].text for cut in chosen), filter_words)
        self.references = {cut.id: said for cut, said in zip(chosen, words, strict=True)}
        if not any(words):
            raise UserError("select.metric=wer: the development data have no words")

    def counts(self, ids: list[str], log_probs_BTO: Tensor, lengths_B: Tensor) -> ErrorCounts:
        """Return the word errors of the batch's utterances that were drawn."""
        rows = [row for row, name in enumerate(ids) if name in self.references]
        if not rows:
            return ErrorCounts()
        index = torch.tensor(rows, device=log_probs_BTO.device)
        paths = self.search(log_probs_BTO[index], lengths_B[index])
        hypotheses = scored_words((text_of(path, self.tokenizer) for path in paths), self.filter_words)
        return ErrorCounts.between([self.references[ids[row]] for row in rows], hypotheses)


def drawn(cuts: Sequence[MonoCut], count: int, seed: int) -> list[MonoCut]:
    """Return utterances drawn at random, from as many speakers as possible.

    Every speaker, in random order, gives one utterance, then a second, and so on. The first utterances by id
    would come from few speakers; in Switchboard, from a few telephone calls.

    Args:
        cuts: utterances; each without a speaker counts as a speaker.
        count: number to draw; if there are no more than that, all are returned in their order.
        seed: random seed.
    """
    if len(cuts) <= count:
        return list(cuts)
    random = np.random.default_rng([seed, len(cuts)])
    by_speaker = defaultdict(list)
    for index in random.permutation(len(cuts)):
        by_speaker[cuts[index].supervisions[0].speaker or cuts[index].id].append(cuts[index])
    rounds = [(turn, cut) for own in by_speaker.values() for turn, cut in enumerate(own)]
    return [cut for _, cut in sorted(rounds, key=lambda entry: entry[0])[:count]]
