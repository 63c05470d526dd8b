"""Segmentation of a long recording with its text into utterances, by CTC alignment of the whole.

As in CTC segmentation (Kürzinger et al. 2020), the text is aligned at once, in time linear in the recording
for each label. Between its lines, a wildcard may take up speech that the text doesn't have.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from asr.errors import UserError
from asr.search.forced_alignment import TokenSpan, fit, force_align, word_labels
from asr.text.tokenizer import Tokenizer

# Probability of the wildcard relative to the most probable label of a frame. It takes up speech that fits
# less well, so it lies between the fits of wrong and of right texts.
WILDCARD = 0.4
PADDING_S = 0.2  # largest margin before and after an utterance
CLOSING = r"[\"”’')\]]"
# Space after punctuation and at most two closing quotes or brackets.
SENTENCE = re.compile(rf"(?:(?<=[.!?…:;])|(?<=[.!?…:;]{CLOSING})|(?<=[.!?…:;]{CLOSING}{CLOSING}))\s+")


@dataclass(frozen=True)
class Utterance:
    """A part of the text with its time in the recording.

    Attributes:
        text: words of the text, as written.
        start_s, end_s: start and end in seconds.
        fit: how well it fits the audio, 0 … 1; see `asr.search.forced_alignment.fit`.
    """

    text: str
    start_s: float
    end_s: float
    fit: float


@dataclass(frozen=True)
class _Placed:
    word: str
    labels: list[int]
    spans: list[TokenSpan]


def sentences(text: str) -> list[str]:
    """Return the lines of a text, divided after punctuation that ends a sentence or clause.

    Example:
        >>> sentences("It rained. “Go on!” he said\\nat last")
        ['It rained.', '“Go on!”', 'he said', 'at last']
    """
    parts = [part for line in text.splitlines() for part in SENTENCE.split(line)]
    return [" ".join(part.split()) for part in parts if part.strip()]


def segment(
    log_probs_TV: Tensor,
    lines: Sequence[tuple[str, str]],
    tokenizer: Tokenizer,
    frame_s: float,
    longest_s: float,
    name: str = "recording",
) -> list[Utterance]:
    """Return the utterances of a recording in order, those that don't fit included.

    Args:
        log_probs_TV: [T, V] log-probabilities of the recording.
        lines: parts of the text, as written and as normalised for the tokenizer.
        tokenizer: tokenizer of the model.
        frame_s: duration of an encoder frame in seconds.
        longest_s: longest utterance; longer lines are divided in the longest pauses between their words.
        name: name of the recording, for errors.

    Raises:
        UserError: the recording has too few frames for the text, or the text no label of the vocabulary.
    """
    wildcard = log_probs_TV.shape[1]
    ids = [wildcard]
    parts: list[list[tuple[str, list[int]]]] = []
    for _, spoken in lines:
        parts.append(word_labels(spoken, tokenizer))
        ids += [*(label for _, labels in parts[-1] for label in labels), wildcard]
    if len(ids) == len(lines) + 1:
        raise UserError(f"{name}: its text has no label of the model's vocabulary")
    extra_T1 = log_probs_TV.max(dim=-1, keepdim=True).values + math.log(WILDCARD)
    spans = iter(force_align(torch.cat([log_probs_TV, extra_T1], dim=1), ids, name)[1:])
    found: list[Utterance] = []
    edge_s = 0.0
    for (written, _), part in zip(lines, parts, strict=True):
        placed = [_Placed(word, labels, [next(spans) for _ in labels]) for word, labels in part]
        next(spans)  # the wildcard after the line
        words = [item for item in placed if item.word]
        if words:
            shown = written.split()
            texts = shown if len(shown) == len(words) else [item.word for item in words]
            for first, end in _division(words, longest_s / frame_s):
                inner = placed[placed.index(words[first]) : placed.index(words[end - 1]) + 1]
                start, stop = inner[0].spans[0].start_frame, inner[-1].spans[-1].end_frame
                labels = [label for item in inner for label in item.labels]
                own = [span for item in inner for span in item.spans]
                rate = fit(log_probs_TV[start:stop], own, labels, first=start)
                found.append(Utterance(" ".join(texts[first:end]), start * frame_s, stop * frame_s, rate))
    end_s = len(log_probs_TV) * frame_s
    starts = [x.start_s for x in found[1:]] + [end_s]
    padded = []
    for utterance, following_s in zip(found, starts, strict=True):
        start_s = max(utterance.start_s - PADDING_S, (edge_s + utterance.start_s) / 2)
        stop_s = min(utterance.end_s + PADDING_S, (utterance.end_s + following_s) / 2)
        padded.append(Utterance(utterance.text, start_s, stop_s, utterance.fit))
        edge_s = utterance.end_s
    return padded


def _division(words: Sequence[_Placed], longest: float) -> Iterator[tuple[int, int]]:
    """Yield (first, end) of runs of words of at most `longest` frames, divided in the longest pauses."""
    waiting = [(0, len(words))]
    while waiting:
        first, end = waiting.pop()
        length = words[end - 1].spans[-1].end_frame - words[first].spans[0].start_frame
        if length <= longest or end - first == 1:
            yield first, end
            continue
        pauses = [
            words[i].spans[0].start_frame - words[i - 1].spans[-1].end_frame for i in range(first + 1, end)
        ]
        middle = (len(pauses) - 1) / 2  # among equal pauses, the one nearest the middle
        cut = first + 1 + max(range(len(pauses)), key=lambda i: (pauses[i], -abs(i - middle)))
        waiting += [(cut, end), (first, cut)]
