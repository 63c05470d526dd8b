"""Spellings of words as labels, with a workaround for flashlight, which can't stay on a word's last label."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import torch
from torch import Tensor

from asr.console import counted, first_of
from asr.errors import UserError
from asr.losses.ctc import BLANK
from asr.text.cmudict import without_stress
from asr.text.lexicon import Lexicon, Phones, read_pronunciations
from asr.text.tokenizer import UNKNOWN, PhoneTokenizer, Tokenizer

log = logging.getLogger(__name__)

IMPOSSIBLE = -1e9

Labels = tuple[int, ...]


def lexicon_spellings(tokenizer: Tokenizer, lexicon: Lexicon) -> dict[str, list[Labels]]:
    """Return the words of a lexicon with the labels of all their pronunciations."""
    index = {symbol: number for number, symbol in enumerate(tokenizer.symbols)}
    return {
        word: [tuple(index[phone] for phone in phones) for phones in said]
        for word, said in lexicon.pronunciations.items()
    }


def read_search_lexicon(path: str, tokenizer: PhoneTokenizer) -> Lexicon:
    """Return the words that a phone model is to recognise, with their pronunciations.

    Args:
        path: file of `word PH PH …` lines; a line with only a word stands for its pronunciations in the
            model's lexicon. Pronunciations with phones that the model lacks are left out.
        tokenizer: tokenizer of the model.

    Raises:
        UserError: half of the pronunciations have phones that the model lacks, or no word has any.
    """
    symbols = set(tokenizer.symbols)
    pronunciations: dict[str, list[Phones]] = {}
    left_out, foreign = [], []
    for number, word, written in read_pronunciations(path):
        said = [without_stress(written)] if written else tokenizer.lexicon.pronunciations.get(word, [])
        if unknown := sorted({phone for phones in said for phone in phones} - symbols):
            foreign.append((number, word, " ".join(unknown)))
            continue
        known = pronunciations.setdefault(word, [])
        known += [phones for phones in said if phones not in known]
        if not known:
            left_out.append(word)
            del pronunciations[word]
    if foreign and len(foreign) >= sum(map(len, pronunciations.values())):  # another phone set
        number, _, found = foreign[0]
        raise UserError(
            f"{path}:{number}: expected phones of the model ({' '.join(tokenizer.lexicon.phones)}), "
            f"found {found}"
        )
    if lacking := list(dict.fromkeys(word for _, word, _ in foreign if word not in pronunciations)):
        log.warning(
            "%s: %s phones that the model lacks and won't be recognised: %s",
            path,
            counted(len(lacking), "word has", "words have"),
            first_of(lacking),
        )
    if not pronunciations:
        raise UserError(
            f"{path}: expected `word PH PH …` lines, or words of the model's lexicon, found "
            f"{first_of(left_out) or 'no words'}"
        )
    if left_out:
        log.warning(
            "%s: %s no pronunciation there or in the model's lexicon and won't be recognised: %s",
            path,
            counted(len(left_out), "word has", "words have"),
            first_of(left_out),
        )
    return Lexicon(pronunciations)


def word_spellings(tokenizer: Tokenizer, words: Iterable[str], source: str) -> dict[str, list[Labels]]:
    """Return words with their labels; words with characters outside the vocabulary are left out.

    Pieces give only the most probable segmentation.

    Args:
        tokenizer: tokenizer of characters or pieces.
        words: words to spell; the first of several with the same labels is preferred.
        source: origin of `words`, for messages.

    Raises:
        UserError: no word can be written, or most differ in letter case.
    """
    spelled: dict[str, list[Labels]] = {}
    left_out = []
    for word in words:
        if labels := _labels(tokenizer, word):
            spelled[word] = [labels]
        else:
            left_out.append(word)
    shown = first_of(left_out)
    if len(left_out) > len(spelled):
        other_case = sum(bool(_labels(tokenizer, word.swapcase())) for word in left_out)
        if other_case > len(left_out) / 2:
            raise UserError(
                f"{source}: its words differ in case from the model's training texts: "
                f"the model's {tokenizer.unit}s can't write {shown}"
            )
    if not spelled:
        raise UserError(f"{source}: the model's {tokenizer.unit}s can write none of its words ({shown})")
    if left_out:
        log.warning(
            "%s: the model's %ss can't write %d of %d words, which won't be recognised: %s",
            source,
            tokenizer.unit,
            len(left_out),
            len(left_out) + len(spelled),
            shown,
        )
    return spelled


def _labels(tokenizer: Tokenizer, word: str) -> Labels:
    """Return the labels of a word; empty if the tokenizer can't write it."""
    labels = tokenizer.encode(word)
    return () if tokenizer.oov(word) or UNKNOWN in tokenizer.tokens(labels) else tuple(labels)


def with_held_labels(
    spellings: dict[str, list[Labels]], size: int, homophones: bool, gap: int
) -> Iterator[tuple[str, Labels]]:
    """Yield each word with the label sequences to insert into the decoder's trie.

    A word of characters ends with the gap. Other words have no such end: flashlight completes a word in the
    first frame of its last label and allows only the silence label after it. If the last label lasts longer,
    a longer word would win (K AE T with two frames of T became K AE T S). Each spelling is therefore added a
    second time with a held label before the last one: `T+`, on which a hypothesis may stay until the last
    frame of T. A word with a single label gets an ending label after it instead, because after a word that
    ends in the same label, a held label would skip the blank that CTC requires between them. If the last two
    labels are equal, the spelling has a blank between them, which flashlight doesn't require at the end of a
    word.

    Args:
        spellings: words and their spellings.
        size: number of labels V, without held and ending labels.
        homophones: whether to yield every word with a spelling, or only the first.
        gap: label between words; BLANK: there is none.
    """
    first_word: dict[Labels, str] = {}
    for word, spelled in spellings.items():
        for labels in spelled:
            first_word.setdefault(labels, word)
    for word, spelled in spellings.items():
        for labels in spelled:
            if not homophones and first_word[labels] != word:
                continue
            *inner, last = labels
            if gap != BLANK:
                yield word, (*labels, gap)
            elif inner:
                inner += [required_blank(size)] if inner[-1] == last else []
                yield word, (*inner, last)
                yield word, (*inner, held(last, size), last)
            else:
                yield word, labels
                yield word, (last, ending(last, size))


def held(label: int, size: int) -> int:
    """Return the held label of a label, for all its frames but the last."""
    return label - 1 + size


def ending(label: int, size: int) -> int:
    """Return the ending label of a label, for the last frame of a word with a single label."""
    return held(label, size) + size - 1


def required_blank(size: int) -> int:
    """Return the label of a blank within a spelling.

    It differs from BLANK, so that hypotheses before and after it never have equal scores.
    """
    return ending(size - 1, size) + 1


def held_label_count(size: int) -> int:
    """Return the number of labels, including held and ending ones and the required blank."""
    return required_blank(size) + 1


def unheld(label: int, size: int) -> int:
    """Map a held or ending label to its label, the required blank to blank, and any other label to itself."""
    return BLANK if label in (BLANK, required_blank(size)) else (label - 1) % (size - 1) + 1


def label_runs(labels: Sequence[int], size: int) -> list[tuple[int, int]]:
    """Return (label, frames) of each run of a label with its held and ending labels.

    An ending label ends its run. If the same label follows, both runs are one label by CTC's rules, but
    belong to two words.
    """
    runs: list[tuple[int, int]] = []
    ended = False
    for raw, frames in groupby(labels):
        label, count = unheld(raw, size), len(list(frames))
        if runs and runs[-1][0] == label and not ended:
            runs[-1] = label, runs[-1][1] + count
        else:
            runs.append((label, count))
        ended = held(size - 1, size) < raw < required_blank(size)
    return runs


def held_log_probs(log_probs_TV: Tensor) -> Tensor:
    """Append held and ending labels for all but blank, and the required blank: [T, V] → [T, 3V − 1].

    A label may be held only if it is more probable than blank in the next frame. Otherwise a held label, a
    blank and the label again would count as one label, and a word that starts with the second would lose it.
    For the same reason, it may end only if it is more probable than blank in the frame before. The same label
    may follow an ending one without a blank, which makes one label of two words (`label_runs`). This is rare
    because the ending label may not be the most probable one of the next frame.
    """
    labels = log_probs_TV[:, BLANK + 1 :]
    likely = labels > log_probs_TV[:, BLANK, None]
    best_T1 = log_probs_TV.argmax(dim=1, keepdim=True)
    best = best_T1 == torch.arange(BLANK + 1, log_probs_TV.shape[1])
    goes_on, ends = torch.zeros_like(likely), torch.zeros_like(likely)
    goes_on[:-1] = likely[1:]
    ends[1:] = likely[:-1]
    ends[:-1] &= ~best[1:]
    added = (labels.masked_fill(~possible, IMPOSSIBLE) for possible in (goes_on, ends))
    return torch.cat([log_probs_TV, *added, log_probs_TV[:, BLANK, None]], dim=1).contiguous()
