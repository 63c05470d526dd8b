"""Finds utterances that can't be trained on: outside the duration limits, or too short for their targets."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from asr.data.cuts import Cuts
from asr.data.transcripts import Texts
from asr.lengths import frames_needed
from asr.text.tokenizer import Tokenizer

# If an utterance has fewer frames than this multiple of what its words need, its whole text is encoded,
# because sentencepiece may divide a word differently in its sentence if two divisions are equally likely.
MARGIN = 1.1


def misfits(
    cuts: Cuts, frames: NDArray[np.int64], limits_s: tuple[float, float], tokenizer: Tokenizer, topology: str
) -> Iterator[tuple[int, str]]:
    """Yield index and reason of each utterance that can't be trained on.

    Args:
        cuts: the utterances.
        frames: [utterances] number of encoder frames.
        limits_s: shortest and longest duration in seconds.
        tokenizer: tokenizer for the targets.
        topology: label topology.
    """
    shortest, longest = limits_s
    outside = ~((shortest <= cuts.durations_s) & (cuts.durations_s <= longest))
    suspects = np.flatnonzero(outside | (frames < MARGIN * frames_for_words(cuts.texts, tokenizer, topology)))
    for i, text in zip(suspects.tolist(), cuts.select(suspects).texts, strict=True):
        if outside[i]:
            yield i, f"duration {cuts.durations_s[i]:.2f} s is outside {shortest} … {longest} s"
        elif frames[i] < (needed := frames_needed(tokenizer.encode(text), topology)):
            yield i, f"the targets need {needed} encoder frames, found {frames[i]}"


def frames_for_words(texts: Texts, tokenizer: Tokenizer, topology: str) -> NDArray[np.int64]:
    """Return `frames_needed` for each utterance, [utterances], encoding each distinct word only once.

    This assumes that a word has the same labels in every sentence.
    """
    labels = [tokenizer.encode(word) for word in texts.words]
    alone = np.array([frames_needed(x, topology) for x in labels], dtype=np.int64)
    first, last = (np.array([x[end] if x else 0 for x in labels]) for end in (0, -1))
    needed = [np.zeros(0, dtype=np.int64)]
    for words, lengths in texts.chunks():
        utterance = np.repeat(np.arange(len(lengths)), lengths)
        spoken = alone[words] > 0  # noises may have no labels
        words, utterance = words[spoken], utterance[spoken]
        between = utterance[1:] == utterance[:-1]
        if not tokenizer.gap:
            between &= (last[words[:-1]] == first[words[1:]]) & (topology == "ctc")
        gaps = np.bincount(utterance[1:][between], minlength=len(lengths))
        needed.append(np.bincount(utterance, alone[words], len(lengths)).astype(np.int64) + gaps)
    return np.concatenate(needed)
