"""Lexicon-constrained beam search with an optional word n-gram model (flashlight)."""

import copy
import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby, islice, pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from asr.errors import UserError
from asr.lm.arpa import read_vocabulary
from asr.lm.ngram import check_casing, is_special, load_kenlm, warn_unknown
from asr.losses.ctc import BLANK
from asr.losses.topology import output_count
from asr.search.decoder import Search, Weights
from asr.search.half_frames import half_frame_log_probs, half_frame_spellings, label_count, read_half_frames
from asr.search.hotwords import WordRewards
from asr.search.path import TokenPath, Word
from asr.search.spelling import (
    IMPOSSIBLE,
    Labels,
    held_label_count,
    held_log_probs,
    label_runs,
    lexicon_spellings,
    with_held_labels,
    word_spellings,
)
from asr.search.ties import WORD_WEIGHT, costly_model, costs_alone, perturbed
from asr.text.g2p import installed_model
from asr.text.hotwords import Hotword, in_words_of, pronunciations, writable
from asr.text.lexicon import Lexicon
from asr.text.tokenizer import WORD_GAP, PhoneTokenizer, Tokenizer

LARGEST = 2**31  # flashlight aborts or reads outside its memory with larger sizes
SAME_TEXT = 20  # hypotheses examined per requested one, because many differ only in pronunciation or timing


class BeamSearch(Search):
    """CTC beam search that returns only words of a lexicon (Collobert et al., *Wav2Letter*, 2016, §3.3).

    A word may be recognised in any of its pronunciations. The language model chooses among homophones (at
    most six; beyond this limit flashlight prints a warning). Without a model, the first in the lexicon wins.

    A confidently wrong label costs its log-probability in every frame, while `WordSearch` counts it as one
    edit. If phones are often wrong, `WordSearch` may therefore find better words.

    flashlight requires a silence label, on which hypotheses stay between words: the gap for characters, and
    blank for phones and pieces, which have no gap. A word of characters ends with the gap, so a frame is
    appended for the gap of the last word.

    The same input gives the same result (`ties.py`): among equal scores, the fewest words win, then the first
    homophone in the lexicon.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        words: Sequence[str] | None = None,
        lexicon: Lexicon | None = None,
        beam: int = 300,
        threshold: float = 100.0,
        tokens: int = 0,
        lm: str | Path | None = None,
        lm_weight: float = 2.0,
        word_score: float = -1.0,
        hotwords: Sequence[Hotword] = (),
        nbest: int = 1,
        topology: str = "ctc",
    ):
        """Build the decoder, which takes seconds for a lexicon of 100,000 words.

        Args:
            tokenizer: tokenizer of the model.
            words: words that characters or pieces may spell. None: the words of `lm`.
            lexicon: words that phones may spell. None: the tokenizer's lexicon.
            beam: number of hypotheses kept after each frame.
            threshold: maximum distance to the best hypothesis (natural log); worse ones are pruned. CTC
                posteriors are peaked: a misrecognised phone costs 10 or more in each of its frames, and the
                correct word may be that far behind until it ends.
            tokens: number of most probable labels tried in a frame; 0: all.
            lm: word n-gram model, ARPA or KenLM binary.
            lm_weight: weight of the language model's log10 probabilities.
            word_score: score added for every word; negative values favour fewer words. At 0 without `lm`,
                a word has the same score as its parts, if they are words, and the fewest words win.
            hotwords: phrases whose words are rewarded, and recognised even if they are not in the lexicon.
            nbest: number of hypotheses with different words to return: the best and its `alternatives`.
            topology: label topology.

        Raises:
            UserError: flashlight-text is not installed, there are no words, `lm` can't be read or differs
                from the words in letter case, or `tokens` is set for the topology `hmm`.
        """
        if tokens and topology == "hmm":  # half of the rows contain no labels
            raise UserError(f"beam.tokens={tokens}: has no effect on a model with the topology hmm")
        self._size = len(tokenizer)
        self._topology = topology
        self._gap = tokenizer.symbols.index(WORD_GAP) if tokenizer.unit == "character" else BLANK
        self._spellings, hotwords = _spellings(tokenizer, words, lexicon or tokenizer.lexicon, lm, hotwords)
        self._words = list(self._spellings)
        self._rewards: WordRewards | None = None
        if hotwords:
            phones = tokenizer.unit == "phone"
            sizes = [len(spelled[0] if phones else word) for word, spelled in self._spellings.items()]
            self._rewards = WordRewards(hotwords, self._words, sizes)
        self._nbest = nbest
        self._lm = None if lm is None else load_kenlm(lm, self._words)
        self._costs = costs_alone(self._spellings)  # used where no language model has a weight
        self._costly_lm = None if lm is None else costly_model(lm, self._spellings)
        # Without a weight, the language model must not guide the search, either.
        self._tries = {weighted: self._build_trie(weighted) for weighted in {lm is not None, False}}
        self._options: dict[str, Any] = {
            "beam_size": beam,
            # 8 more for held and ending labels, few of which are probable in a frame.
            "beam_size_token": 2 * self._size if topology == "hmm" else (tokens or self._size) + 8,
            "beam_threshold": threshold,
            "lm_weight": lm_weight,
            "word_score": word_score,
        }
        self._decoder = self._build_decoder()
        # flashlight's decoder has state, and its calls to Python for word costs let other threads run.
        self._lock = threading.Lock()

    @property
    def vocabulary(self) -> Sequence[str]:
        """The words that can be found."""
        return self._words

    @property
    def tunable(self) -> tuple[str, ...]:
        """Names of the weights, besides the size of the beam, that change the result."""
        return ("word_score", "lm_weight") if self._lm is not None else ("word_score",)

    def with_weights(self, weights: Weights) -> "BeamSearch":
        """Return a search with other weights that shares the lexicon and the language model."""
        other = copy.copy(self)
        other._options = self._options | {
            "beam_size": weights.size,
            "lm_weight": weights.lm_weight,
            "word_score": weights.word_score,
        }
        other._decoder = other._build_decoder()
        return other

    def __call__(self, log_probs_BTV: Tensor, lengths_B: Tensor) -> list[TokenPath]:
        """Decode a batch, one utterance after the other.

        Args:
            log_probs_BTV: [B, T, V] log-probabilities, blank at index 0.
            lengths_B: [B] valid frames.

        Returns:
            Per utterance the labels with their frames, the words, and the score: natural-log acoustic score
            plus the weighted terms. The result is empty if the beam contains no words.
        """
        if log_probs_BTV.shape[2] != (outputs := output_count(self._topology, self._size)):
            raise UserError(f"BeamSearch: expected {outputs} outputs, found {log_probs_BTV.shape[2]}")
        log_probs_BTV = log_probs_BTV.detach().to("cpu", torch.float32)
        return [
            self._decode(log_probs_TV[:length])
            for log_probs_TV, length in zip(log_probs_BTV, lengths_B.tolist(), strict=True)
        ]

    def _decode(self, log_probs_TV: Tensor) -> TokenPath:
        if len(log_probs_TV) == 0:
            return TokenPath([], [], [], [])
        hmm, T = self._topology == "hmm", len(log_probs_TV)
        if self._gap != BLANK:
            log_probs_TV = torch.cat((log_probs_TV, self._last_frame(log_probs_TV)))
        exact_TN = half_frame_log_probs(log_probs_TV, self._gap) if hmm else held_log_probs(log_probs_TV)
        emissions_TN = perturbed(exact_TN)
        # The result counts the start as a frame: [start, T frames, end].
        with self._lock:
            results = self._decoder.decode(emissions_TN.data_ptr(), *emissions_TN.shape)
        # Several are read even for nbest=1, because the amounts that break ties may move the best to second.
        read = list(islice(self._in_order(results), self._nbest * SAME_TEXT)) or results[:1]
        scored = [(self._score(x, exact_TN), x) for x in read]
        scored.sort(key=lambda pair: -pair[0])  # stable: equal scores stay in flashlight's order
        by_text: dict[str | None, TokenPath] = {}
        for score, result in scored:
            labels, words = result.tokens[1:-1], result.words[1:]
            if hmm:
                path = read_half_frames(labels, words, self._words, self._gap, self._size)
                path = replace(path, score=score)
            else:
                path = self._read_path(labels, words, score)
            if self._gap != BLANK:
                path = _within(path, T)
            by_text.setdefault(path.text, path)
        best, *others = list(by_text.values())[: self._nbest] or [TokenPath([], [], [], [])]
        best.alternatives.extend(others)
        return best

    def _in_order(self, results: list[Any]) -> Iterator[Any]:
        """Yield flashlight's results without merged words; order ties by their words."""
        may_merge = self._topology == "ctc" and self._gap == BLANK
        for _, ties in groupby(results, key=lambda x: x.score):
            for result in sorted(ties, key=lambda x: x.words):
                if not (may_merge and self._merges_words(result.tokens[1:-1])):
                    yield result

    def _score(self, result: Any, exact_TN: Tensor) -> float:
        """Return the score of a path without the amounts that break ties."""
        tokens_T1 = torch.tensor(result.tokens[1:-1])[:, None]
        score = exact_TN.gather(1, tokens_T1).sum(dtype=torch.float64).item()
        words = [word for word in result.words if word >= 0]
        score += self._options["word_score"] * len(words)
        if self._lm is not None and self._options["lm_weight"]:
            state = self._lm.start(False)
            for word in words:
                state, log10_probability = self._lm.score(state, word)
                score += self._options["lm_weight"] * log10_probability
            score += self._options["lm_weight"] * self._lm.finish(state)[1]
        if self._rewards is not None:
            score += self._rewards.of(words)
        return round(score, 6)  # equal scores summed in another order differ in later decimals

    def _merges_words(self, labels: list[int]) -> bool:
        """Return whether two words share a label because there is no blank between them."""
        runs = label_runs(labels, self._size)
        return any(one == other for (one, _), (other, _) in pairwise(runs))

    def _read_path(self, labels: list[int], words: list[int], score: float) -> TokenPath:
        """Convert flashlight's path: a label per frame, and a word in the frame that completes it.

        A word is completed in the first frame of the gap after it. Without gaps, it is completed in the first
        frame of its last label or in a later frame of that label.
        """
        ids: list[int] = []
        frames: list[int] = []
        ends: list[int] = []
        recognised: list[Word] = []
        end = 0
        for label, count in label_runs(labels, self._size):
            begin, end = end, end + count
            if label != BLANK:
                ids.append(label)
                frames.append(begin)
                ends.append(end)
            for word in words[begin:end]:
                if word < 0:
                    continue
                first = recognised[-1].end if recognised else 0
                while self._gap != BLANK and ids[first] == self._gap:
                    first += 1
                name = self._words[word]
                if self._gap != BLANK:
                    recognised.append(Word(name, first, len(ids) - 1))
                    continue
                if (
                    len(ids) - first > 1
                    and ids[-1] == ids[-2]
                    and tuple(ids[first:]) not in self._spellings[name]
                ):
                    # A held label, a blank and the label again are one label.
                    ids.pop()
                    frames.pop()
                    ends[-2:] = [ends[-1]]
                recognised.append(Word(name, first, len(ids)))
        return TokenPath(ids, frames, ends, recognised, score)

    def _last_frame(self, log_probs_TV: Tensor) -> Tensor:
        """Return a frame that is certainly a gap, [1, V]."""
        frame_1V = torch.full_like(log_probs_TV[:1], IMPOSSIBLE)
        frame_1V[:, self._gap] = 0.0
        return frame_1V

    def _build_trie(self, weighted: bool) -> Any:
        """Return the spellings as a trie; if weighted, with homophones and the model's best scores."""
        from flashlight.lib.text.decoder import SmearingMode, Trie

        hmm = self._topology == "hmm"
        trie = Trie(label_count(self._size) if hmm else held_label_count(self._size), self._gap)
        index = {word: number for number, word in enumerate(self._words)}
        start = self._lm.start(False) if weighted and self._lm is not None else None
        spell = half_frame_spellings if hmm else with_held_labels
        homophones = weighted or self._rewards is not None
        for word, labels in spell(self._spellings, self._size, homophones, self._gap):
            log10_probability = self._lm.score(start, index[word])[1] if start and self._lm else 0.0
            trie.insert(list(labels), index[word], log10_probability)
        trie.smear(SmearingMode.MAX)
        return trie

    def _build_decoder(self) -> Any:
        from flashlight.lib.text.decoder import CriterionType, LexiconDecoder, LexiconDecoderOptions

        own = self._options
        for name, least in (("beam_size", 1), ("beam_size_token", 5), ("beam_threshold", 0)):
            if not least <= own[name] < LARGEST:
                raise UserError(f"BeamSearch: {name}={own[name]}: expected at least {least}")
        if not math.isfinite(own["lm_weight"]) or not math.isfinite(own["word_score"]):
            raise UserError(
                f"BeamSearch: lm_weight={own['lm_weight']}, word_score={own['word_score']}: expected numbers"
            )
        weighted = self._lm is not None and own["lm_weight"] != 0
        lm = self._costly_lm if weighted else self._costs
        options = LexiconDecoderOptions(
            unk_score=-float("inf"),
            sil_score=0.0,
            log_add=False,
            criterion_type=CriterionType.CTC,
            **(own if weighted else own | {"lm_weight": WORD_WEIGHT}),
        )
        if self._rewards is not None:
            lm = self._rewards.added_to(lm, options.lm_weight)
        self._guide = lm  # flashlight doesn't keep an object of Python
        no_word = len(self._words)
        return LexiconDecoder(options, self._tries[weighted], lm, self._gap, BLANK, no_word, [], False)


def _within(path: TokenPath, T: int) -> TokenPath:
    """Return the path of the first T frames."""
    count = sum(frame < T for frame in path.frames)
    ends = [min(end, T) for end in path.ends[:count]]
    return replace(path, ids=path.ids[:count], frames=path.frames[:count], ends=ends)


def _spellings(
    tokenizer: Tokenizer,
    words: Sequence[str] | None,
    lexicon: Lexicon | None,
    lm: str | Path | None,
    hotwords: Sequence[Hotword],
) -> tuple[dict[str, list[Labels]], Sequence[Hotword]]:
    """Return the spellings of the words that may be recognised, and the hotwords in the same letter case.

    The words are checked against the language model.
    """
    vocabulary = read_vocabulary(lm) if lm is not None else None
    if lexicon is not None:
        if hotwords and isinstance(tokenizer, PhoneTokenizer):
            hotwords = in_words_of(hotwords, lexicon)
            lexicon = lexicon.merged(pronunciations(hotwords, lexicon, tokenizer, installed_model()))
        spellings, source = lexicon_spellings(tokenizer, lexicon), "the lexicon"
    elif words is not None:
        spellings, source = word_spellings(tokenizer, words, "beam.lexicon"), "beam.lexicon"
    elif vocabulary is not None:
        known = sorted(word for word in vocabulary if not is_special(word))
        spellings, source = word_spellings(tokenizer, known, str(lm)), "the language model"
    else:
        raise UserError(
            f"decoder=beam: a model of {tokenizer.unit}s needs words to search for: set beam.lm or "
            "beam.lexicon (a word list), or use decoder=prefix"
        )
    if lm is not None:
        check_casing(lm, vocabulary, spellings, source)
        warn_unknown(lm, vocabulary, spellings, source)
    if hotwords and lexicon is None:
        hotwords = writable(hotwords, tokenizer, spellings)
        added = [word for hotword in hotwords for word in hotword.words if word not in spellings]
        spellings |= word_spellings(tokenizer, added, "beam.hotwords") if added else {}
    return spellings, hotwords
