"""Beam search over the words of a lexicon, with an optional n-gram model (flashlight through torchaudio)."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from asr.ctc import BLANK
from asr.errors import UserError
from asr.search.path import TokenPath, Word
from asr.text.lexicon import Lexicon
from asr.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from torchaudio.models.decoder import CTCDecoder

HELD = "+"  # marks the label on which a word waits for its last phone to end
IMPOSSIBLE = -1e9


class BeamSearch:
    """CTC beam search that returns only words of a lexicon (Collobert et al., *Wav2Letter*, 2016, §3.3).

    Of a word's pronunciations any may be recognised. Of homophones the language model chooses (among six
    at most, flashlight's limit, beyond which it prints a warning); without one the first in the lexicon does.

    A confident wrong label costs its whole log-probability in every frame that it lasts, where the edits of
    `WordSearch` count it once: of phones that are often wrong the latter may make the better words.

    A model here has no silence label. flashlight needs the index of one: blank takes its place, since
    between two words a hypothesis stays on exactly that label.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        beam: int = 300,
        threshold: float = 100.0,
        lm: str | Path | None = None,
        lm_weight: float = 2.0,
        word_score: float = -1.0,
    ):
        """Build the decoder; takes seconds for a lexicon of 100,000 words.

        Args:
            tokenizer: of phones, with its lexicon.
            beam: hypotheses kept after each frame.
            threshold: hypotheses this far (natural log) below the best one are dropped. The posteriors of
                CTC are peaked: a phone that was recognised as another costs 10 or more in each of its
                frames, and the right word may be that far behind until it ends.
            lm: n-gram model over the lexicon's words, ARPA or KenLM binary.
            lm_weight: weight of the model's log10 probabilities.
            word_score: added for every word; below 0 for fewer words. At 0 and without `lm` a word and its
                split into short words cost the same, and the short ones take over.

        Raises:
            UserError: flashlight-text isn't installed, the tokenizer has no lexicon, `lm` can't be read.
        """
        if tokenizer.unit != "phone" or tokenizer.lexicon is None:
            raise UserError(
                f"decoder=beam: expected a model of phones with a lexicon, found one of {tokenizer.unit}s; "
                "use decoder=greedy"
            )
        if lm is not None and not Path(lm).is_file():
            raise UserError(f"{lm}: expected an ARPA or KenLM file, found none")
        self._lexicon = tokenizer.lexicon
        self._symbols = tokenizer.symbols
        self._decoder = _build_decoder(
            tokenizer.symbols,
            tokenizer.lexicon,
            lm=None if lm is None else str(lm),
            beam_size=beam,
            # All labels and the few held ones of a frame (see `with_held`); the improbable ones are cut.
            beam_size_token=len(tokenizer) + 4,
            beam_threshold=threshold,
            lm_weight=lm_weight,
            word_score=word_score,
        )

    def __call__(self, log_probs_BTV: Tensor, lengths_B: Tensor) -> list[TokenPath]:
        """Decode a batch, one utterance after the other.

        Args:
            log_probs_BTV: [B, T, V] log-probabilities, blank at index 0.
            lengths_B: [B] valid frames.

        Returns:
            Per utterance the labels with start frames and confidences (highest probability of the label in
            the frames that it spans), the words, and the score: natural-log acoustic score plus the
            weighted terms. An utterance for which the beam holds no words comes back empty.
        """
        log_probs_BTV = log_probs_BTV.detach().to("cpu", torch.float32)
        return [
            self._decode(log_probs_TV[:length])
            for log_probs_TV, length in zip(log_probs_BTV, lengths_B.tolist(), strict=True)
        ]

    def _decode(self, log_probs_TV: Tensor) -> TokenPath:
        if len(log_probs_TV) == 0:
            return TokenPath([], [], [], [])
        emissions_TV = with_held(log_probs_TV)
        # torchaudio's own call hides on which frame a word ends, and counts the decoder's start state as
        # frame 0; the decoder's answer has both: [start state, T frames, end state].
        results = self._decoder.decoder.decode(emissions_TV.data_ptr(), *emissions_TV.shape)
        if not results:
            return TokenPath([], [], [], [])
        size = log_probs_TV.shape[1]
        labels = [label if label < size else label - size + 1 for label in results[0].tokens[1:-1]]
        return self._read_path(labels, results[0].words[1:], log_probs_TV, results[0].score)

    def _read_path(
        self, labels: list[int], words: list[int], log_probs_TV: Tensor, score: float
    ) -> TokenPath:
        """Make labels, times and words of a path: a label per frame, and a word where one was completed.

        A word is completed on the frame in which its last label begins or on a later frame of that label.
        """
        ids: list[int] = []
        frames: list[int] = []
        confidences: list[float] = []
        found: list[Word] = []
        for label, begin, end in _runs(labels):
            if label != BLANK:
                ids.append(label)
                frames.append(begin)
                confidences.append(float(log_probs_TV[begin:end, label].max().exp()))
            for word in words[begin:end]:
                if word < 0:
                    continue
                first = found[-1].end if found else 0
                name = self._decoder.word_dict.get_entry(word)
                if len(ids) - first > 1 and ids[-1] == ids[-2] and not self._is_said(name, ids[first:]):
                    # A held phone, a blank and the phone again: it counts once, from its start.
                    ids.pop()
                    frames.pop()
                    confidences[-2:] = [max(confidences[-2:])]
                found.append(Word(name, first, len(ids)))
        return TokenPath(ids, frames, confidences, found, score)

    def _is_said(self, word: str, ids: list[int]) -> bool:
        return tuple(self._symbols[index] for index in ids) in self._lexicon.pronunciations[word]


def _runs(labels: list[int]) -> Iterator[tuple[int, int, int]]:
    """Yield (label, begin, end) of every run of equal labels."""
    begin = 0
    for position in range(1, len(labels) + 1):
        if position == len(labels) or labels[position] != labels[begin]:
            yield labels[begin], begin, position
            begin = position


def spellings(lexicon: Lexicon, homophones: bool) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the words with the phone sequences that the decoder is given.

    flashlight completes a word on the first frame of its last phone, and then stays between words on the
    silence label: where the last phone lasts for a second frame, the word would be lost to a longer one
    (K AE T with two frames of T became K AE T S). Every pronunciation is therefore also given with its last
    phone held: on a label of its own, `T+`, on which a hypothesis may stay before the last frame of T.
    A word of one phone gets the phone itself twice, because a held label after the same phone of the word
    before wouldn't need the blank between them that CTC asks for.

    Args:
        lexicon: words and pronunciations.
        homophones: whether to yield every word of a pronunciation, or the first alone.
    """
    first_word: dict[tuple[str, ...], str] = {}
    for word, pronunciations in lexicon.pronunciations.items():
        for phones in pronunciations:
            first_word.setdefault(phones, word)
    for word, pronunciations in lexicon.pronunciations.items():
        for phones in pronunciations:
            if not homophones and first_word[phones] != word:
                continue
            yield word, phones
            if len(phones) == 1 and phones * 2 not in first_word:
                yield word, phones * 2
            elif len(phones) > 1 and phones[-1] != phones[-2]:
                yield word, (*phones[:-1], phones[-1] + HELD, phones[-1])


def with_held(log_probs_TV: Tensor) -> Tensor:
    """Append a held label for every label but blank: [T, V] → [T, 2V - 1].

    A label may be held in a frame where it is more probable than blank in the next one. Without this
    condition a held phone, a blank and the phone again would pass for one phone, and the word that begins
    with the second would lose it.
    """
    labels = log_probs_TV[:, BLANK + 1 :]
    goes_on = torch.zeros_like(labels, dtype=torch.bool)
    goes_on[:-1] = labels[1:] > log_probs_TV[1:, BLANK, None]
    return torch.cat([log_probs_TV, labels.masked_fill(~goes_on, IMPOSSIBLE)], dim=1).contiguous()


def _build_decoder(symbols: list[str], lexicon: Lexicon, lm: str | None, **options: Any) -> "CTCDecoder":
    try:
        from torchaudio.models.decoder import ctc_decoder
    except (ImportError, RuntimeError) as error:
        raise UserError(
            f"decoder=beam needs flashlight-text ({error}): pip install 'flashlight-text>=0.0.7'"
        ) from error
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "lexicon.txt")
        with open(path, "w", encoding="utf-8") as file:
            for word, phones in spellings(lexicon, homophones=lm is not None):
                file.write(f"{word} {' '.join(phones)}\n")
        try:
            return ctc_decoder(
                str(path),
                symbols + [symbol + HELD for symbol in symbols[BLANK + 1 :]],
                lm,
                blank_token=symbols[BLANK],
                sil_token=symbols[BLANK],
                **options,
            )
        except RuntimeError as error:
            if lm is None:
                raise
            reason = str(error).strip().splitlines()[-1]  # above it, where KenLM raised it
            raise UserError(f"{lm}: expected an ARPA or KenLM file, found {reason}") from error
