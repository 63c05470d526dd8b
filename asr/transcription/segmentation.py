"""Segments a long recording with its text into utterances, by CTC alignment of the whole.

As in CTC segmentation (Kürzinger et al. 2020), the whole text is aligned at once, in time proportional to
frames × labels. Between lines, a wildcard may match speech that the text lacks.
"""

import contextlib
import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from asr.errors import UserError
from asr.search.forced_alignment import TokenSpan, fit, force_align, word_labels
from asr.search.options import LEAST_FIT
from asr.text.tokenizer import Tokenizer
from asr.text.unspaced import is_unspaced

# Probability of the wildcard relative to the most probable label of a frame. The wildcard matches speech that
# fits the text less well, so it lies between the fits of wrong and right texts.
WILDCARD = 0.4
PADDING_S = 0.2  # largest margin before and after an utterance
CLOSING = r"[\"”’')\]]"
# Space after punctuation and at most two closing quotes or brackets.
SENTENCE = re.compile(rf"(?:(?<=[.!?…:;])|(?<=[.!?…:;]{CLOSING})|(?<=[.!?…:;]{CLOSING}{CLOSING}))\s+")


@dataclass(frozen=True)
class TimedText:
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


class _Piece(NamedTuple):
    """A line, or part of a long line, in frames `start` … `end` − 1."""

    text: str
    start: int
    end: int
    fit: float


class _Word(NamedTuple):
    """A word, or, in scripts without spaces, one of its labels; all labels but the first are `glued`."""

    word: str
    labels: list[int]
    glued: bool = False


_Line = tuple[str, list[_Word]]  # the line as written, and its words


@dataclass(frozen=True)
class _Placed:
    word: str
    labels: list[int]
    glued: bool
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
    min_fit: float = LEAST_FIT,
    name: str = "recording",
) -> list[TimedText]:
    """Return the utterances of a recording in order, including those that don't fit.

    A line that was not spoken displaces its neighbours, so successive lines that don't fit are aligned again
    one by one.

    Args:
        log_probs_TV: [T, V] log-probabilities of the recording.
        lines: parts of the text, as written and as normalised for the tokenizer.
        tokenizer: tokenizer of the model.
        frame_s: duration of an encoder frame in seconds.
        longest_s: maximum duration of an utterance; longer lines are divided at the longest pauses between
            their words.
        min_fit: minimum fit of a line that was spoken.
        name: name of the recording, for errors.

    Raises:
        UserError: the recording has too few frames for the text, or the text has no label of the vocabulary.
    """
    parts = [(written, _words(spoken, tokenizer)) for written, spoken in lines]
    parts = [(written, words) for written, words in parts if any(x.word for x in words)]
    if not parts:
        raise UserError(f"{name}: its text has no label of the model's vocabulary")
    aligner = _Aligner(log_probs_TV, longest_s / frame_s, name)
    placed = aligner.place(parts, 0, len(log_probs_TV))
    fits = [max(x.fit for x in line) >= min_fit for line in placed]
    end = 0
    for fitting, group in itertools.groupby(range(len(parts)), lambda i: fits[i]):
        run = list(group)
        if not fitting and len(run) > 1:
            after = placed[run[-1] + 1][0].start if run[-1] + 1 < len(placed) else len(log_probs_TV)
            for i, line in aligner.place_singly({i: parts[i] for i in run}, end, after, min_fit).items():
                placed[i] = line
        end = placed[run[-1]][-1].end
    every = sorted((x for line in placed for x in line), key=lambda x: x.start)
    kept = _padded([x for x in every if x.fit >= min_fit], frame_s, len(log_probs_TV))
    others = [TimedText(x.text, x.start * frame_s, x.end * frame_s, x.fit) for x in every if x.fit < min_fit]
    return sorted([*kept, *others], key=lambda x: x.start_s)


def _words(text: str, tokenizer: Tokenizer) -> list[_Word]:
    """Return the words of a text; in scripts without spaces, each label, because pauses may be anywhere."""
    words = []
    for word, labels in word_labels(text, tokenizer):
        if tokenizer.unit == "phone" or not is_unspaced(word):
            words.append(_Word(word, labels))
        else:
            names = [tokenizer.text([label]) or "" for label in labels]
            glued = [any(names[:i]) for i in range(len(names))]  # a first piece may be just a space
            words += [_Word(name, [x], after) for name, x, after in zip(names, labels, glued, strict=True)]
    return words


class _Aligner:
    """Aligns lines with parts of a recording.

    Args:
        log_probs_TV: [T, V] log-probabilities of the recording.
        longest: maximum number of frames of an utterance.
        name: name of the recording, for errors.
    """

    def __init__(self, log_probs_TV: Tensor, longest: float, name: str) -> None:
        self.log_probs_TV = log_probs_TV
        extra_T1 = log_probs_TV.max(dim=-1, keepdim=True).values + math.log(WILDCARD)
        self.scores_TV = torch.cat([log_probs_TV, extra_T1], dim=1)
        self.longest = longest
        self.name = name

    def place(self, lines: Sequence[_Line], start: int, end: int) -> list[list[_Piece]]:
        """Return the parts of each line, with wildcards around the lines, in frames `start` … `end` − 1."""
        wildcard = self.log_probs_TV.shape[1]
        ids = [wildcard]
        for _, words in lines:
            ids += [*(label for x in words for label in x.labels), wildcard]
        spans = force_align(self.scores_TV[start:end], ids, self.name)[1:]
        moved = (replace(x, start_frame=x.start_frame + start, end_frame=x.end_frame + start) for x in spans)
        return [self._divide(line, moved) for line in lines]

    def place_singly(
        self, lines: dict[int, _Line], start: int, end: int, min_fit: float
    ) -> dict[int, list[_Piece]]:
        """Return the parts of the lines that fit; each line is aligned alone, but after its predecessors.

        The line that fits best is placed first, then the lines before it and the lines after it.
        """
        alone = {}
        for i, line in lines.items():
            with contextlib.suppress(UserError):  # too few frames for its labels
                alone[i] = self.place([line], start, end)[0]
        best = max(alone, key=lambda i: max(x.fit for x in alone[i]), default=None)
        if best is None or max(x.fit for x in alone[best]) < min_fit:
            return {}
        before = {i: line for i, line in lines.items() if i < best}
        after = {i: line for i, line in lines.items() if i > best}
        placed = {best: alone[best]}
        placed |= self.place_singly(before, start, alone[best][0].start, min_fit)
        return placed | self.place_singly(after, alone[best][-1].end, end, min_fit)

    def _divide(self, line: _Line, spans: Iterator[TokenSpan]) -> list[_Piece]:
        """Take the spans of a line's labels and of the wildcard after it; return its parts."""
        written, words = line
        placed = [_Placed(*word, [next(spans) for _ in word.labels]) for word in words]
        next(spans)
        spoken = [item for item in placed if item.word]
        shown = written.split()
        divided = any(item.glued for item in spoken)
        texts = shown if len(shown) == len(spoken) and not divided else [item.word for item in spoken]
        texts = [text if item.glued else f" {text}" for text, item in zip(texts, spoken, strict=True)]
        pieces = []
        for first, end in _division(spoken, self.longest):
            inner = placed[placed.index(spoken[first]) : placed.index(spoken[end - 1]) + 1]
            labels = [label for item in inner for label in item.labels]
            own = [span for item in inner for span in item.spans]
            start, stop = own[0].start_frame, own[-1].end_frame
            rate = fit(self.log_probs_TV[start:stop], own, labels, first=start)
            whole = divided and end - first == len(spoken)
            text = " ".join(shown) if whole else "".join(texts[first:end]).strip()
            pieces.append(_Piece(text, start, stop, rate))
        return pieces


def _padded(parts: Sequence[_Piece], frame_s: float, frames: int) -> list[TimedText]:
    """Return utterances with margins of up to `PADDING_S`, but at most half-way to their neighbours."""
    padded = []
    edge = 0
    for i, x in enumerate(parts):
        following = parts[i + 1].start if i + 1 < len(parts) else frames
        start_s = max(x.start * frame_s - PADDING_S, (edge + x.start) / 2 * frame_s)
        stop_s = min(x.end * frame_s + PADDING_S, (x.end + following) / 2 * frame_s)
        padded.append(TimedText(x.text, start_s, stop_s, x.fit))
        edge = x.end
    return padded


def _division(words: Sequence[_Placed], longest: float) -> Iterator[tuple[int, int]]:
    """Yield (first, end) of runs of words of at most `longest` frames, divided at the longest pauses."""
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
