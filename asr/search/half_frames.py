"""The `hmm` topology for flashlight's CTC search, in which each label has a single output.

Every frame is divided into halves. In the first half, with the outputs' log-probabilities, a label starts
(`a`) or continues (`b`), or there is silence; the second half costs nothing and leads from `a` to `b`. A
label is spelled `a b`: in a single frame, it takes `a` in the first half and `b` in the second, and equal
neighbours need no blank. Because flashlight can't stay on a word's last label, an end mark in a second half
completes the word: in the frame of the last label's `a`, or after `b` in a later frame. A word of characters
ends with the gap instead.

    frame         1       2       3
    half        1   2   1   2   1   2
    T of CAT    a   b   b   b   b   end     (three frames)
    T of CAT    a   end                     (one frame)

Scores are exact, but the search also allows silence between a label's first frame and the next ones.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from asr.losses.ctc import BLANK
from asr.losses.topology import split_outputs
from asr.search.path import TokenPath, Word
from asr.search.spelling import IMPOSSIBLE, Labels, held


def label_count(size: int) -> int:
    """Return the number of labels in half frames: silence, `a` and `b` of each of V − 1 labels, end mark."""
    return 2 * size


def half_frame_spellings(
    spellings: dict[str, list[Labels]], size: int, homophones: bool, gap: int
) -> Iterator[tuple[str, Labels]]:
    """Yield each word with the label sequences to insert into the decoder's trie.

    Args:
        spellings: words and their spellings.
        size: number of labels V.
        homophones: whether to yield every word with a spelling, or only the first.
        gap: label between words; BLANK: there is none.
    """
    end = label_count(size) - 1
    first_word: dict[Labels, str] = {}
    for word, spelled in spellings.items():
        for labels in spelled:
            if first_word.setdefault(labels, word) != word and not homophones:
                continue
            *inner, last = labels
            start = [half for label in inner for half in (label, held(label, size))]
            if gap != BLANK:
                yield word, (*start, last, held(last, size), gap)
                continue
            yield word, (*start, last, end)
            yield word, (*start, last, held(last, size), end)


def half_frame_log_probs(log_probs_TO: Tensor, gap: int) -> Tensor:
    """Map log-probabilities of the outputs, [T, 2V − 1], to those of half frames, [2T, 2V].

    Args:
        log_probs_TO: log-probabilities of one utterance.
        gap: label on which the decoder stays between words. Unless it is silence, it has a single label in
            half frames, for its first and later frames.
    """
    first_TV, later_TV = split_outputs(log_probs_TO, "hmm")
    T, V = first_TV.shape
    halves = first_TV.new_full((T, 2, label_count(V)), IMPOSSIBLE)
    halves[:, 0, :V] = first_TV
    halves[:, 0, V:-1] = later_TV[:, 1:]
    halves[:, 1, V:] = 0.0
    halves[:, 1, BLANK] = 0.0
    if gap != BLANK:
        halves[:, 0, gap] = torch.maximum(first_TV[:, gap], later_TV[:, gap])
    return halves.flatten(0, 1).contiguous()


def read_half_frames(labels: list[int], words: list[int], names: list[str], gap: int, size: int) -> TokenPath:
    """Convert the decoder's path: a label per half frame, and the word completed there, or −1."""
    ids: list[int] = []
    frames: list[int] = []
    ends: list[int] = []
    recognised: list[Word] = []
    before = BLANK
    for t, (label, *_) in enumerate(zip(labels[::2], labels[1::2], strict=True)):
        if 0 < label < size and not label == gap == before:
            ids.append(label)
            frames.append(t)
            ends.append(t + 1)
        elif label != BLANK:
            ends[-1] = t + 1
        before = label
        for word in words[2 * t : 2 * t + 2]:
            if word >= 0:
                first = recognised[-1].end if recognised else 0
                while first < len(ids) and ids[first] == gap:
                    first += 1
                recognised.append(Word(names[word], first, len(ids) - (gap != BLANK)))
    return TokenPath(ids, frames, ends, recognised)
