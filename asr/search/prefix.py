"""Prefix beam search without a lexicon, with an optional n-gram model of labels or words."""

import copy
import math
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asr.errors import UserError
from asr.losses.ctc import BLANK
from asr.losses.topology import split_outputs
from asr.search.decoder import Search, Weights
from asr.search.forced_alignment import align_labels
from asr.search.fusion import Context, NoModel
from asr.search.path import TokenPath

IMPOSSIBLE = -math.inf


class PrefixSearch(Search):
    """Search for the most probable label sequence, summed over all its alignments.

    Graves and Jaitly, *Towards End-to-End Speech Recognition with Recurrent Neural Networks*, 2014,
    algorithm 1, with the language model at labels or at words as in Hannun et al., *First-Pass Large
    Vocabulary Continuous Speech Recognition using Bi-Directional Recurrent DNNs*, 2014.

    Example:
        >>> import torch
        >>> search = PrefixSearch(NoModel(), beam=4)
        >>> probs = torch.tensor([[[0.6, 0.4], [0.6, 0.4]]])  # greedy search: blank twice
        >>> search(probs.log(), torch.tensor([2]))[0].ids
        [1]
    """

    def __init__(
        self,
        fusion: NoModel,
        *,
        beam: int = 50,
        tokens: int = 0,
        token_threshold: float = 10.0,
        label_score: float = 0.0,
        nbest: int = 1,
        topology: str = "ctc",
    ) -> None:
        """Build the search.

        Args:
            fusion: language model.
            beam: number of prefixes kept after each frame.
            tokens: number of most probable labels tried in a frame; 0: all.
            token_threshold: maximum distance to the best label of a frame (natural log); worse labels are
                skipped.
            label_score: score added for each label.
            nbest: number of hypotheses to return: the best and its `alternatives`.
            topology: label topology.
        """
        if min(beam, nbest) < 1 or tokens < 0 or not token_threshold >= 0:
            raise UserError(
                f"PrefixSearch: beam={beam}, nbest={nbest}, tokens={tokens}, token_threshold="
                f"{token_threshold}: expected at least 1, 1, 0 and 0"
            )
        self._fusion = fusion
        self._beam = beam
        self._tokens = tokens
        self._token_threshold = token_threshold
        self._label_score = label_score
        self._nbest = nbest
        self.topology = topology

    @property
    def tunable(self) -> tuple[str, ...]:
        """Names of the weights, besides the size of the beam, that change the result."""
        return self._fusion.tunable

    def with_weights(self, weights: Weights) -> "PrefixSearch":
        """Return a search with other weights that shares the language model."""
        other = copy.copy(self)
        other._beam = weights.size
        other._fusion = self._fusion.with_weights(weights.lm_weight, weights.word_score)
        return other

    def __call__(self, log_probs_BTV: Tensor, lengths_B: Tensor) -> list[TokenPath]:
        """Decode a batch, one utterance after the other.

        Args:
            log_probs_BTV: [B, T, V] log-probabilities, blank at index 0.
            lengths_B: [B] valid frames.

        Returns:
            Per utterance the labels, with the frames of their best alignment. The score is the natural log of
            the sequence's probability plus the weighted terms.
        """
        log_probs_BTV = log_probs_BTV.detach().to("cpu", torch.float32)
        return [
            self._decode(log_probs_TV[:length])
            for log_probs_TV, length in zip(log_probs_BTV, lengths_B.tolist(), strict=True)
        ]

    def _decode(self, log_probs_TV: Tensor) -> TokenPath:
        beam = [self.start()]
        for frame, (first_V, later_V) in enumerate(self.outputs(log_probs_TV)):
            beam = self.step(beam, first_V, later_V, frame)
        best, *others = (
            align_labels(log_probs_TV, prefix.labels(), score, self.topology)
            for score, prefix in self.ranked(beam)[: self._nbest]
        )
        best.alternatives.extend(others)
        return best

    def start(self) -> "PrefixNode":
        """Return the empty prefix, with which a beam begins."""
        return PrefixNode(None, BLANK, self._fusion.start(), 0.0, log_blank=0.0)

    def outputs(self, log_probs_TV: Tensor) -> Iterator[tuple[NDArray[np.float32], NDArray[np.float32]]]:
        """Yield the log-probabilities with which labels start and continue in each frame, [V] each."""
        first_TV, later_TV = split_outputs(log_probs_TV, self.topology)
        yield from zip(first_TV.numpy(), later_TV.numpy(), strict=True)

    def ranked(self, beam: list["PrefixNode"]) -> list[tuple[float, "PrefixNode"]]:
        """Return the prefixes with their scores as complete texts, best first."""
        scored = [
            (prefix.score + self._fusion.finish(prefix.context), prefix) for prefix in beam if prefix.alive
        ]
        return sorted(scored, key=lambda pair: -pair[0])

    def step(
        self,
        beam: list["PrefixNode"],
        first_V: NDArray[np.float32],
        later_V: NDArray[np.float32],
        frame: int = 0,
    ) -> list["PrefixNode"]:
        """Process a frame: extend every prefix by blank, by its last label again, or by a new label.

        Args:
            beam: prefixes before the frame.
            first_V, later_V: see `outputs`.
            frame: number of the frame, which new prefixes keep.

        Returns:
            The best prefixes after the frame, best first.
        """
        first: list[float] = first_V.tolist()
        later: list[float] = later_V.tolist()
        labels = self._labels(first_V, max(first_V.max(), later_V.max()))
        ctc = self.topology == "ctc"
        reached = dict.fromkeys(beam)  # ordered set; extending a prefix may lead to a node in the beam
        for prefix in beam:
            total = prefix.total
            prefix.next_blank = _log_add(prefix.next_blank, total + first[BLANK])
            prefix.next_label = _log_add(prefix.next_label, prefix.log_label + later[prefix.label])
            for label in labels:
                # With CTC, repeating the last label starts a new one only after a blank.
                before = prefix.log_blank if ctc and label == prefix.label else total
                if before == IMPOSSIBLE:
                    continue
                child = prefix.children.get(label)
                if child is None:
                    context, added = self._fusion.extend(prefix.context, label)
                    added += prefix.added + self._label_score
                    child = prefix.children[label] = PrefixNode(prefix, label, context, added, born=frame)
                child.next_label = _log_add(child.next_label, before + first[label])
                reached[child] = None
        for prefix in reached:
            prefix.advance()
        best = sorted(reached, key=lambda prefix: -prefix.score)
        for prefix in best[self._beam :]:
            prefix.drop()
        return best[: self._beam]

    def _labels(self, log_probs_V: NDArray[np.float32], best: float) -> list[int]:
        """Return the labels to try, without blank."""
        likely = np.flatnonzero(log_probs_V >= best - self._token_threshold)
        if self._tokens and len(likely) > self._tokens:
            likely = likely[np.argsort(-log_probs_V[likely], kind="stable")[: self._tokens]]
        return [label for label in likely.tolist() if label != BLANK]


class PrefixNode:
    """A label sequence with its probability, as a node of the prefix tree."""

    def __init__(
        self,
        parent: "PrefixNode | None",
        label: int,
        context: Context,
        added: float,
        log_blank: float = IMPOSSIBLE,
        born: int = 0,
    ) -> None:
        self.parent = parent
        self.label = label
        self.context = context
        self.added = added  # score of the language model and of the number of labels
        self.born = born  # first frame of its last label, in any alignment
        self.children: dict[int, PrefixNode] = {}
        # Log-probabilities of the alignments that end in blank, and in the label.
        self.log_blank, self.log_label = log_blank, IMPOSSIBLE
        self.next_blank, self.next_label = IMPOSSIBLE, IMPOSSIBLE
        self.total = log_blank
        self.score = log_blank

    def advance(self) -> None:
        """Move to the next frame."""
        self.log_blank, self.log_label = self.next_blank, self.next_label
        self.next_blank, self.next_label = IMPOSSIBLE, IMPOSSIBLE
        self.total = _log_add(self.log_blank, self.log_label)
        self.score = self.total + self.added

    def drop(self) -> None:
        """Remove the prefix from the beam, and from the tree all nodes without descendants in the beam."""
        self.log_blank, self.log_label, self.total, self.score = (IMPOSSIBLE,) * 4
        prefix = self
        while prefix.parent is not None and not prefix.children and prefix.total == IMPOSSIBLE:
            del prefix.parent.children[prefix.label]
            prefix = prefix.parent

    @property
    def alive(self) -> bool:
        """Whether the prefix is in the beam."""
        return self.total > IMPOSSIBLE

    def below(self) -> list["PrefixNode"]:
        """Return this node and its descendants."""
        prefixes = [self]
        for prefix in prefixes:  # the list grows meanwhile
            prefixes += prefix.children.values()
        return prefixes

    def path(self) -> list["PrefixNode"]:
        """Return the nodes from below the root to this one."""
        nodes = []
        prefix = self
        while prefix.parent is not None:
            nodes.append(prefix)
            prefix = prefix.parent
        return nodes[::-1]

    def labels(self) -> list[int]:
        """Return the labels, first to last."""
        return [prefix.label for prefix in self.path()]


def _log_add(a: float, b: float) -> float:
    if a < b:
        a, b = b, a
    return a if b == IMPOSSIBLE else a + math.log1p(math.exp(b - a))
