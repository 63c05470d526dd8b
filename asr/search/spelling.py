"""How words are spelled in labels, for a decoder that can't stay on a word's last label."""

import logging
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from asr.errors import UserError
from asr.losses.ctc import BLANK
from asr.text.tokenizer import UNKNOWN, Tokenizer

log = logging.getLogger(__name__)

IMPOSSIBLE = -1e9

Labels = tuple[int, ...]


def lexicon_spellings(tokenizer: Tokenizer) -> dict[str, list[Labels]]:
    """The words of a tokenizer's lexicon with all their pronunciations, as labels."""
    assert tokenizer.lexicon is not None
    index = {symbol: number for number, symbol in enumerate(tokenizer.symbols)}
    return {
        word: [tuple(index[phone] for phone in phones) for phones in said]
        for word, said in tokenizer.lexicon.pronunciations.items()
    }


def word_spellings(tokenizer: Tokenizer, words: Iterable[str], of: str) -> dict[str, list[Labels]]:
    """Words as a tokenizer of characters or pieces writes them; those that it can't write are left out.

    Pieces: the most probable segmentation alone.

    Args:
        tokenizer: of characters or pieces.
        words: in the order in which the first of those that are spelled alike is preferred.
        of: where `words` come from, for the messages.

    Raises:
        UserError: not one of the words can be written.
    """
    spelled: dict[str, list[Labels]] = {}
    left_out = []
    for word in words:
        if labels := _labels(tokenizer, word):
            spelled[word] = [labels]
        else:
            left_out.append(word)
    shown = ", ".join(left_out[:10]) + (" …" if len(left_out) > 10 else "")
    if len(left_out) > len(spelled):
        other_case = sum(bool(_labels(tokenizer, word.swapcase())) for word in left_out)
        if other_case > len(left_out) / 2:
            raise UserError(
                f"{of}: its words are written in another case than the model's texts: "
                f"the model's {tokenizer.unit}s can't write {shown}"
            )
    if not spelled:
        raise UserError(f"{of}: the model's {tokenizer.unit}s can write none of its words ({shown})")
    if left_out:
        log.warning(
            "%s: the model's %ss can't write %d of %d words, which won't be recognised: %s",
            of,
            tokenizer.unit,
            len(left_out),
            len(left_out) + len(spelled),
            shown,
        )
    return spelled


def _labels(tokenizer: Tokenizer, word: str) -> Labels:
    """A word in labels; none where the tokenizer can't write it."""
    labels = tokenizer.encode(word)
    return () if tokenizer.oov(word) or UNKNOWN in tokenizer.tokens(labels) else tuple(labels)


def with_held_labels(
    spellings: dict[str, list[Labels]], size: int, homophones: bool
) -> Iterator[tuple[str, Labels]]:
    """Yield the words with the label sequences that the decoder is given.

    flashlight completes a word on the first frame of its last label, and then stays between words on the
    silence label: where the last label lasts for a second frame, the word would be lost to a longer one
    (K AE T with two frames of T became K AE T S). Every spelling is therefore also given with its last
    label held: on a label of its own, `T+`, on which a hypothesis may stay before the last frame of T.
    A word of one label gets the label itself twice, because a held label after the same label of the word
    before wouldn't need the blank between them that CTC asks for.

    Args:
        spellings: words and their spellings.
        size: labels without the held ones.
        homophones: whether to yield every word of a spelling, or the first alone.
    """
    first_word: dict[Labels, str] = {}
    for word, spelled in spellings.items():
        for labels in spelled:
            first_word.setdefault(labels, word)
    for word, spelled in spellings.items():
        for labels in spelled:
            if not homophones and first_word[labels] != word:
                continue
            yield word, labels
            if len(labels) == 1 and labels * 2 not in first_word:
                yield word, labels * 2
            elif len(labels) > 1 and labels[-1] != labels[-2]:
                yield word, (*labels[:-1], held(labels[-1], size), labels[-1])


def held(label: int, size: int) -> int:
    """The label on which a word waits for its last label to end."""
    return label - 1 + size


def unheld(label: int, size: int) -> int:
    """The label itself, of a held one or not."""
    return label if label < size else label + 1 - size


def held_log_probs(log_probs_TV: Tensor) -> Tensor:
    """Append a held label for every label but blank: [T, V] → [T, 2V - 1].

    A label may be held in a frame where it is more probable than blank in the next one. Without this
    condition a held label, a blank and the label again would pass for one label, and the word that begins
    with the second would lose it.
    """
    labels = log_probs_TV[:, BLANK + 1 :]
    goes_on = torch.zeros_like(labels, dtype=torch.bool)
    goes_on[:-1] = labels[1:] > log_probs_TV[1:, BLANK, None]
    return torch.cat([log_probs_TV, labels.masked_fill(~goes_on, IMPOSSIBLE)], dim=1).contiguous()
