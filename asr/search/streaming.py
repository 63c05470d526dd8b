"""Search of log-probabilities as they arrive: labels are returned once no later frame can change them."""

from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from asr.search.confidence import with_confidences
from asr.search.decoder import Search
from asr.search.forced_alignment import force_align
from asr.search.greedy import GreedySearch, greedy_search
from asr.search.path import NO_LABELS, TokenPath, join_paths, part, shifted
from asr.search.prefix import PrefixNode, PrefixSearch
from asr.search.words import WithWords, WordSearch
from asr.text.tokenizer import Tokenizer

# The best hypothesis about the time before this period is final. The period spans several words, the context
# of a language model.
PATIENCE_S = 1.5


class SearchStream(Protocol):
    """The search of one recording; frames are counted from its start."""

    def push(self, log_probs_TV: Tensor, last: bool = False) -> TokenPath:
        """Return the labels that become final with new frames, with their confidences.

        Args:
            log_probs_TV: [T, V] log-probabilities on the CPU, blank at index 0.
            last: whether these frames end the recording; then all labels are final.
        """

    def pending(self) -> TokenPath:
        """Return the labels after the final ones, as they would be if the recording ended here."""


def start_stream(search: Search, frame_s: float) -> SearchStream | None:
    """Return a search of a recording as it arrives; None if `search` needs whole stretches.

    Args:
        search: search of a decoder.
        frame_s: duration of a frame in seconds.
    """
    match search:
        case GreedySearch(topology="ctc"):
            return GreedyStream()
        case PrefixSearch(topology="ctc"):
            return PrefixStream(search, max(1, round(PATIENCE_S / frame_s)))
        case WithWords(search=inner, tokenizer=tokenizer, segment=words):
            labels = start_stream(inner, frame_s)
            return labels and WordStream(labels, tokenizer, words)
    return None


class GreedyStream:
    """`greedy_search`: a label is final when another output follows it."""

    def __init__(self) -> None:
        self._kept_TV: Tensor | None = None  # frames of the last label, which may continue
        self._first = 0

    def push(self, log_probs_TV: Tensor, last: bool = False) -> TokenPath:
        """See `SearchStream`."""
        kept_TV = _joined(self._kept_TV, log_probs_TV)
        path = _greedy(kept_TV, self._first)
        T = len(kept_TV)
        unfinished = path.ids and path.ends[-1] == self._first + T and not last
        begin = path.frames[-1] - self._first if unfinished else T
        self._kept_TV, self._first = kept_TV[begin:].clone(), self._first + begin
        return part(path, 0, -1) if unfinished else path

    def pending(self) -> TokenPath:
        """See `SearchStream`."""
        return NO_LABELS if self._kept_TV is None else _greedy(self._kept_TV, self._first)


def _greedy(log_probs_TV: Tensor, first: int) -> TokenPath:
    (path,) = greedy_search(log_probs_TV[None], torch.tensor([len(log_probs_TV)]))
    (path,) = with_confidences([path], log_probs_TV[None])
    return shifted(path, first)


class PrefixStream:
    """Prefix search with a limited delay: after `patience` frames, the best hypothesis is final.

    Hypotheses that differ from it before that time are dropped. Labels on which all hypotheses agree are
    final earlier. Later audio hardly affects a label that long ago: only a language model links them, by a
    few words. The times of labels come from the alignment of the best hypothesis when they become final. Only
    the frames since then are kept.

    Args:
        search: prefix search.
        patience: number of frames after which the best hypothesis is final.
    """

    def __init__(self, search: PrefixSearch, patience: int) -> None:
        self._search, self._patience = search, patience
        self._root = search.start()  # last label on which all hypotheses agree
        self._beam = [self._root]
        self._agreed: list[int] = []  # labels up to the root that have not been returned
        self._anchor: int | None = None  # last label returned, if it starts with the first frame kept
        self._kept_TV: Tensor | None = None
        self._first = self._frame = 0  # first frame kept; frames searched
        self._end = 0  # frame after the last label returned

    def push(self, log_probs_TV: Tensor, last: bool = False) -> TokenPath:
        """See `SearchStream`."""
        self._kept_TV = _joined(self._kept_TV, log_probs_TV)
        paths = [NO_LABELS]
        for first_V, later_V in self._search.outputs(log_probs_TV):
            self._frame += 1
            self._beam = self._search.step(self._beam, first_V, later_V, self._frame)
            self._agree()
            if len(self._agreed) > 1 or (self._agreed and self._root.born <= self._horizon):
                paths.append(self._final())
            self._forget()
        if last:
            self._beam = [prefix for _, prefix in self._search.ranked(self._beam)[:1]]
            paths.append(self._aligned())
            self._agreed, self._beam = [], []
        return join_paths(paths)

    def pending(self) -> TokenPath:
        """See `SearchStream`."""
        return self._aligned()

    @property
    def _horizon(self) -> int:
        """Frame up to which the best hypothesis is final."""
        return self._frame - self._patience

    def _agree(self) -> None:
        """Drop hypotheses that differ from the best one before the horizon, and move the root."""
        doomed: list[PrefixNode] = []
        for node in [*self._beam[0].path(), None]:
            root = self._root
            decided = node is not None and node.born <= self._horizon
            others = [x for x in root.children.values() if x is not node]
            doomed += [y for x in others if decided or x.born <= self._horizon for y in x.below()]
            doomed += [root] if decided else []
            for prefix in doomed:
                if prefix.alive:
                    prefix.drop()
            if node is None or root.alive or len(root.children) > 1:
                break
            node.parent, self._root = None, node
            self._agreed.append(node.label)
        if doomed:
            self._beam = [prefix for prefix in self._beam if prefix.alive]

    def _final(self) -> TokenPath:
        """Return the agreed labels that have ended, and forget them."""
        path = self._aligned()
        count = len(self._agreed)
        if path.ends[count - 1] == self._frame or self._root.born > self._horizon:
            count -= 1  # the last label may continue
        if not count:
            return NO_LABELS
        self._anchor = self._agreed[count - 1]
        self._agreed = self._agreed[count:]
        self._keep_from(path.frames[count - 1])
        self._end = path.ends[count - 1]
        return part(path, 0, count)

    def _forget(self) -> None:
        """Forget frames of silence: all further labels lie after the horizon."""
        if self._agreed or self._horizon <= self._first or (self._anchor and self._end >= self._horizon):
            return
        self._anchor = None
        self._keep_from(self._horizon)

    def _keep_from(self, frame: int) -> None:
        assert self._kept_TV is not None
        self._kept_TV, self._first = self._kept_TV[frame - self._first :], frame

    def _aligned(self) -> TokenPath:
        """Return the agreed labels and the best hypothesis's labels after them, with their times."""
        labels = [*self._agreed, *(self._beam[0].labels() if self._beam else [])]
        if not labels or self._kept_TV is None:
            return NO_LABELS
        before = [] if self._anchor is None else [self._anchor]
        log_probs_TV = self._kept_TV[: self._frame - self._first]
        spans = force_align(log_probs_TV, [*before, *labels])[len(before) :]
        path = TokenPath(labels, [x.start_frame for x in spans], [x.end_frame for x in spans])
        (path,) = with_confidences([path], log_probs_TV[None])
        return shifted(path, self._first)


class WordStream:
    """Adds the words of a lexicon to the phones of another search.

    Args:
        search: search of the phones.
        tokenizer: tokenizer of the model.
        words: search of words in a phone sequence.
    """

    def __init__(self, search: SearchStream, tokenizer: Tokenizer, words: WordSearch) -> None:
        self._search, self._tokenizer, self._words = search, tokenizer, words
        self._segments = words.start()
        self._path = NO_LABELS  # labels that no final word covers

    def push(self, log_probs_TV: Tensor, last: bool = False) -> TokenPath:
        """See `SearchStream`; labels come with their words."""
        new = self._search.push(log_probs_TV, last)
        self._path = join_paths([self._path, new])
        words, labels = self._segments.push(self._tokenizer.tokens(new.ids), last)
        path = replace(part(self._path, 0, labels), words=words)
        self._path = part(self._path, labels, len(self._path.ids))
        return path

    def pending(self) -> TokenPath:
        """See `SearchStream`."""
        path = join_paths([self._path, self._search.pending()])
        return replace(path, words=self._words(self._tokenizer.tokens(path.ids)))


def _joined(kept_TV: Tensor | None, log_probs_TV: Tensor) -> Tensor:
    new_TV = log_probs_TV.detach().float()
    return new_TV if kept_TV is None else torch.cat((kept_TV, new_TV))
