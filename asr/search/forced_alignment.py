"""Forced alignment: the times of the labels and words of a known transcript."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from asr.errors import UserError
from asr.lengths import frames_needed
from asr.losses.ctc import BLANK
from asr.losses.topology import split_outputs
from asr.search.path import TokenPath
from asr.search.viterbi import best_path, label_spans
from asr.text.tokenizer import PIECE_START, WORD_GAP, Tokenizer


@dataclass(frozen=True)
class TokenSpan:
    """The frames start_frame … end_frame − 1 of a label, and its mean probability (0 … 1)."""

    start_frame: int
    end_frame: int
    confidence: float


@dataclass(frozen=True)
class AlignedText:
    """The words of a transcript, and its fit to the audio, 0 … 1; see `fit`."""

    words: list["AlignedWord"]
    fit: float


@dataclass(frozen=True)
class AlignedToken:
    """A label with its times in seconds and its confidence (0 … 1)."""

    label: str
    start_s: float
    end_s: float
    confidence: float


@dataclass(frozen=True)
class AlignedWord:
    """A word with its times in seconds, its mean confidence (0 … 1) and its labels."""

    word: str
    start_s: float
    end_s: float
    confidence: float
    tokens: list[AlignedToken]


def force_align(
    log_probs_TV: Tensor, ids: Sequence[int], utterance: str = "utterance", topology: str = "ctc"
) -> list[TokenSpan]:
    """Return the frames of each label of a known transcript, by Viterbi alignment.

    CTC paths are those of Graves et al. 2006. Time is O(T·U). `torchaudio.functional.forced_align` is faster,
    but may lose the best path if paths tie exactly.

    Args:
        log_probs_TV: [T, V] log-probabilities of one utterance, without padded frames.
        ids: U labels, without blanks.
        utterance: name of the utterance or file, for errors.
        topology: topology of the labels.

    Returns:
        U spans in order; the frames between them are blank.

    Raises:
        UserError: there are too few frames for the labels, or their probability is zero.

    Example:
        >>> probs = torch.tensor([[0.1, 0.9], [0.2, 0.8], [0.7, 0.3], [0.4, 0.6]])
        >>> [(span.start_frame, span.end_frame) for span in force_align(probs.log(), [1, 1])]
        [(0, 2), (3, 4)]
    """
    T = log_probs_TV.shape[0]
    needed = frames_needed(ids, topology)
    if needed > T:
        raise UserError(f"{utterance}: its transcript needs {needed} encoder frames, found {T}")
    if not ids:
        return []
    log_probs_TV = log_probs_TV.detach().float().cpu()
    if log_probs_TV.isnan().any():
        raise UserError(f"{utterance}: expected log-probabilities, found NaN")
    state_T, log_prob = best_path(log_probs_TV, ids, topology)
    spans = label_spans(state_T)
    if not math.isfinite(log_prob):
        raise UserError(f"{utterance}: no path has a probability above zero for its transcript")
    first_TV, later_TV = split_outputs(log_probs_TV, topology)
    token_spans = []
    for label, (start, end) in zip(ids, spans, strict=True):
        probs_T = torch.cat((first_TV[start : start + 1, label], later_TV[start + 1 : end, label])).exp()
        token_spans.append(TokenSpan(start, end, min(1.0, float(probs_T.mean()))))
    return token_spans


def fit(
    log_probs_TV: Tensor,
    spans: Sequence[TokenSpan],
    ids: Sequence[int],
    first: int = 0,
    topology: str = "ctc",
) -> float:
    """Return how well aligned labels fit the audio: the geometric mean of p(aligned) / p(best), 0 … 1.

    p(aligned) and p(best) are the probabilities of the aligned and of the most probable label or blank in a
    frame; the mean is over the frames in which one of them is a label, so that silence doesn't count. Unlike
    the mean posterior of CTC segmentation (Kürzinger et al. 2020), the ratio doesn't fall where the model is
    uncertain between several labels, as in noise.

    Args:
        log_probs_TV: [T, V] log-probabilities.
        spans: frames of each label.
        ids: label of each span.
        first: frame number, as counted in the spans, of the first row of `log_probs_TV`.
        topology: topology of the labels.
    """
    first_TV, later_TV = split_outputs(log_probs_TV, topology)
    aligned_T = first_TV[:, BLANK].clone()
    best_T, found_T = log_probs_TV.max(dim=-1)
    spoken_T = found_T != BLANK
    for span, label in zip(spans, ids, strict=True):
        start, end = span.start_frame - first, span.end_frame - first
        aligned_T[start] = first_TV[start, label]
        aligned_T[start + 1 : end] = later_TV[start + 1 : end, label]
        spoken_T[start:end] = True
    ratios = (aligned_T - best_T)[spoken_T]
    return math.exp(float(ratios.double().mean())) if len(ratios) else 0.0


def align_text(
    log_probs_TV: Tensor,
    text: str,
    tokenizer: Tokenizer,
    frame_s: float,
    utterance: str = "utterance",
    topology: str = "ctc",
) -> AlignedText:
    """Return the times of a transcript's words and labels, and its fit.

    Args:
        log_probs_TV: [T, V] log-probabilities of one utterance, without padded frames.
        text: transcript; phone models use the first pronunciation of every word.
        tokenizer: tokenizer of the model.
        frame_s: duration of an encoder frame in seconds.
        utterance: name of the utterance or file, for errors.
        topology: topology of the labels.

    Raises:
        UserError: as in `force_align`, or the transcript has no labels.
    """
    parts = word_labels(text, tokenizer)
    ids = [index for _, labels in parts for index in labels]
    if not ids:
        raise UserError(f"{utterance}: its transcript has no label of the model's vocabulary")
    aligned = force_align(log_probs_TV, ids, utterance, topology)
    spans = iter(aligned)
    words = []
    for word, labels in parts:
        tokens = [
            AlignedToken(
                tokenizer.symbols[index],
                round(span.start_frame * frame_s, 3),
                round(span.end_frame * frame_s, 3),
                round(span.confidence, 4),
            )
            for index, span in zip(labels, spans, strict=False)  # consumes as many spans as the word's labels
        ]
        if word:
            mean = sum(token.confidence for token in tokens) / len(tokens)
            words.append(AlignedWord(word, tokens[0].start_s, tokens[-1].end_s, round(mean, 4), tokens))
    return AlignedText(words, fit(log_probs_TV.detach().float().cpu(), aligned, ids, topology=topology))


def word_labels(text: str, tokenizer: Tokenizer) -> list[tuple[str, list[int]]]:
    """Divide the labels of a transcript among its words.

    Returns:
        (word, labels) in order; a gap between words has an empty word. The labels together are
        `tokenizer.encode(text)`, but may differ if the normaliser of a piece tokenizer divides a word.

    Example:
        >>> from asr.text.tokenizer import CharacterTokenizer
        >>> word_labels("go on", CharacterTokenizer.train(["go on"]))
        [('go', [3, 5]), ('', [2]), ('on', [5, 4])]
    """
    words = [word for word in text.split() if tokenizer.encode(word)]
    if tokenizer.unit == "piece":
        return _piece_labels(words, tokenizer)
    parts = [(word, tokenizer.encode(word)) for word in words]
    if tokenizer.unit == "phone":
        return parts
    gap = ("", [tokenizer.symbols.index(WORD_GAP)])
    return [part for pair in zip([gap] * len(parts), parts, strict=True) for part in pair][1:]


def _piece_labels(words: list[str], tokenizer: Tokenizer) -> list[tuple[str, list[int]]]:
    """Divide sentence pieces among the words; a piece with a leading space starts a word."""
    labels: list[list[int]] = []
    for index in tokenizer.encode(" ".join(words)):
        if tokenizer.symbols[index].startswith(PIECE_START) or not labels:
            labels.append([])
        labels[-1].append(index)
    if len(labels) != len(words):  # e.g. NFKC turns `l´homme` into two words
        labels = [tokenizer.encode(word) for word in words]
    return list(zip(words, labels, strict=True))


def align_labels(
    log_probs_TV: Tensor, ids: list[int], score: float | None = None, topology: str = "ctc"
) -> TokenPath:
    """Return labels with the frames of their Viterbi alignment.

    Args:
        log_probs_TV: [T, V] log-probabilities of one utterance, on the CPU; T is at least
            `frames_needed(ids, topology)`.
        ids: labels without blanks.
        score: score of the sequence.
        topology: topology of the labels.
    """
    spans = force_align(log_probs_TV, ids, topology=topology)
    return TokenPath(ids, [x.start_frame for x in spans], [x.end_frame for x in spans], score=score)
