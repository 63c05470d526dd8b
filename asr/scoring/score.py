"""Phone, word and character error rates: pooled, by speaker, by utterance, by length; and confusions."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np

from asr.console import counted
from asr.errors import UserError
from asr.scoring.alignment import Edit, align_all
from asr.scoring.error_rates import ErrorCounts, ErrorRate, error_rate
from asr.scoring.hypotheses import Hypothesis
from asr.scoring.options import ScoreOptions
from asr.text.known_words import KnownWords
from asr.text.normalise import lower, normalise, plain_text
from asr.text.numbers import check_numbers
from asr.text.pronunciation import WordCounts

Metric = Literal["per", "wer", "cer"]
TOKEN_OF: dict[Metric, str] = {"per": "phone", "wer": "word", "cer": "character"}
NOT_SCORED = frozenset({"NSN", "SPN"})  # noise, and words without pronunciation
NOTHING = "∅"  # stands for the missing side of a deletion or insertion

WordFilter = Callable[[list[str]], list[str]]


@dataclass(frozen=True)
class UtteranceScore:
    """The alignments of one utterance, for each metric that applies."""

    id: str
    speaker: str
    alignments: dict[Metric, list[Edit]]
    counts: dict[Metric, ErrorCounts]


@dataclass(frozen=True)
class SpeakerScore:
    """The pooled errors of one speaker."""

    speaker: str
    utterances: int
    counts: dict[Metric, ErrorCounts]


@dataclass(frozen=True)
class LengthScore:
    """The pooled errors of the utterances whose references have `shortest` … `longest` tokens."""

    shortest: int
    longest: int
    utterances: int
    counts: ErrorCounts


@dataclass(frozen=True)
class Confusion:
    """How often a reference token was substituted by another one, deleted or inserted."""

    reference: str
    hypothesis: str
    times: int


@dataclass(frozen=True)
class Score:
    """Error rates of a corpus; a metric that doesn't apply is absent from `rates`."""

    rates: dict[Metric, ErrorRate]  # the main one first: PER, or for models of characters CER
    speakers: list[SpeakerScore]  # sorted by name
    utterances: list[UtteranceScore]  # worst first, by the first metric of `rates`
    audio_s: float = 0.0
    decode_s: float | None = None
    alignment: str = "unit"  # costs of the alignment: unit | sclite
    lexicon: str | None = None  # digest; PERs are comparable only with the same lexicon
    pronunciations: WordCounts | None = None  # counts of reference words, for PER
    known_words: KnownWords | None = (
        None  # reference words that the search could find; None: it can spell any
    )

    @property
    def real_time_factor(self) -> float | None:
        """Decoding time over audio time, if both are known."""
        return self.decode_s / self.audio_s if self.decode_s and self.audio_s else None

    @property
    def shown(self) -> list[Metric]:
        """The rates that lines and tables of several systems show: CER only without PER."""
        return [x for x in self.rates if x != "cer" or "per" not in self.rates]

    @property
    def headlines(self) -> list[Metric]:
        """The rates that are shown in detail: the main one and WER."""
        return [x for x in self.rates if x in (next(iter(self.rates)), "wer")]

    @property
    def constant(self) -> bool:
        """Whether all hypotheses are equal although the references differ."""
        metric = next(iter(self.rates), None)
        edits = [x.alignments[metric] for x in self.utterances] if metric else []
        hypotheses = {tuple(x.hypothesis for x in pairs if x.hypothesis is not None) for pairs in edits}
        spoken = {tuple(x.reference for x in pairs if x.reference is not None) for pairs in edits}
        return len(hypotheses) == 1 < len(spoken)

    def as_dict(self) -> dict[str, object]:
        """Return the contents of `score.json`."""
        summary: dict[str, object] = {metric: rate.as_dict() for metric, rate in self.rates.items()}
        summary |= {"utterances": len(self.utterances), "audio_s": self.audio_s, "decode_s": self.decode_s}
        summary["alignment"] = self.alignment
        if self.constant:
            summary["constant"] = True
        if self.lexicon is not None:
            summary["lexicon"] = self.lexicon
        if self.pronunciations is not None:
            summary["pronunciations"] = asdict(self.pronunciations)
        if self.known_words is not None:
            summary["known_words"] = asdict(self.known_words)
        return summary


def score(
    hypotheses: Sequence[Hypothesis],
    options: ScoreOptions | None = None,
    filter_words: WordFilter | None = None,
) -> Score:
    """Score hypotheses against their references.

    PER applies to phone hypotheses with reference phones; NSN and SPN are removed from both. WER and CER
    apply if there are both recognised and reference words. With an empty reference, all recognised words are
    insertions.

    Args:
        hypotheses: hypotheses of one corpus, all with the same unit.
        options: how to align and compare, and the bootstrap; None: the defaults of `asr score`.
        filter_words: scoring rules, applied to the words of reference and hypothesis before WER and CER.

    Raises:
        UserError: there are no hypotheses, an utterance is repeated, an utterance lacks a reference or words
            that others have, units are mixed, or the corpus has no reference token.
    """
    if not hypotheses:
        raise UserError("expected hypotheses to score, found none")
    _check_ids_and_units(hypotheses)
    options = options or ScoreOptions()
    tokens = _tokens(hypotheses, filter_words, options.text, options.language)
    alignments_of = {metric: align_all(*pair, options.align) for metric, pair in tokens.items()}
    utterances = []
    for position, hypothesis in enumerate(hypotheses):
        alignments = {metric: alignments_of[metric][position] for metric in alignments_of}
        counts = {metric: ErrorCounts.of(edits) for metric, edits in alignments.items()}
        utterances.append(UtteranceScore(hypothesis.id, hypothesis.speaker, alignments, counts))
    audio_s = sum(hypothesis.duration_s for hypothesis in hypotheses)
    return pooled(utterances, options, audio_s)


def pooled(utterances: Sequence[UtteranceScore], options: ScoreOptions, audio_s: float = 0.0) -> Score:
    """Return the pooled error rates of utterances that were aligned with these options.

    Raises:
        UserError: the corpus has no reference token.
    """
    metrics = list(utterances[0].counts)
    for metric in metrics:
        if not any(utterance.counts[metric].length for utterance in utterances):
            raise UserError(
                f"utterance {utterances[0].id!r} and all others: expected a reference {TOKEN_OF[metric]} "
                f"for {metric.upper()}, found none in {counted(len(utterances), 'utterance')}"
            )
    rates = {
        metric: error_rate([x.counts[metric] for x in utterances], samples=options.samples, seed=options.seed)
        for metric in metrics
    }
    worst_first = sorted(utterances, key=lambda entry: badness(entry, metrics[0]))
    return Score(rates, _by_speaker(utterances), worst_first, audio_s, alignment=options.align)


def _check_ids_and_units(hypotheses: Sequence[Hypothesis]) -> None:
    ident, times = Counter(hypothesis.id for hypothesis in hypotheses).most_common(1)[0]
    if times > 1:
        raise UserError(f"utterance {ident!r}: expected once, found {times} times")
    first = hypotheses[0]
    for hypothesis in hypotheses:
        if hypothesis.unit != first.unit:
            raise UserError(
                f"utterance {hypothesis.id!r}: expected unit {first.unit!r} as in {first.id!r}, "
                f"found {hypothesis.unit!r}"
            )


def _tokens(
    hypotheses: Sequence[Hypothesis],
    filter_words: WordFilter | None,
    text: str,
    language: str,
) -> dict[Metric, tuple[list[list[str]], list[list[str]]]]:
    """Return the tokens of all references and of all hypotheses, for each metric that applies."""
    for hypothesis in hypotheses:
        if hypothesis.reference is None and hypothesis.reference_tokens is None:
            raise UserError(f"utterance {hypothesis.id!r}: expected a reference to score against, found none")

    tokens: dict[Metric, tuple[list[list[str]], list[list[str]]]] = {}
    if hypotheses[0].unit == "phone" and _all_have("reference_tokens", hypotheses):
        tokens["per"] = (
            [scored_phones(hypothesis.reference_tokens or []) for hypothesis in hypotheses],
            [scored_phones(hypothesis.tokens) for hypothesis in hypotheses],
        )
    if _all_have("reference", hypotheses) and _all_have("text", hypotheses):
        spoken = scored_words([x.reference for x in hypotheses], filter_words, text, language)
        recognised = scored_words([x.text for x in hypotheses], filter_words, text, language)
        characters = [list(" ".join(x)) for x in spoken], [list(" ".join(x)) for x in recognised]
        if hypotheses[0].unit == "character":
            tokens["cer"] = characters  # first
        tokens["wer"] = spoken, recognised
        tokens["cer"] = characters
    if not tokens:
        raise UserError(
            f"utterance {hypotheses[0].id!r}: expected reference phones, or reference and recognised words; "
            f"found neither in {counted(len(hypotheses), 'utterance')}"
        )
    return tokens


def _all_have(
    name: Literal["reference", "reference_tokens", "text"], hypotheses: Sequence[Hypothesis]
) -> bool:
    """Whether all hypotheses have the field (True) or none (False); raise `UserError` if only some do."""
    without = [hypothesis for hypothesis in hypotheses if getattr(hypothesis, name) is None]
    if without and len(without) < len(hypotheses):
        raise UserError(
            f"utterance {without[0].id!r}: expected {name} as in other utterances, found none in "
            f"{len(without)} of {len(hypotheses)} utterances"
        )
    return not without


def scored_words(
    texts: Iterable[str | None],
    filter_words: WordFilter | None = None,
    rule: str = "lower",
    language: str = "",
) -> list[list[str]]:
    """Return the words of each text that WER counts, normalised by `rule`, the option `text`."""
    if rule == "spoken":
        check_numbers(language or "en")
    kept = [" ".join((filter_words or list)(plain_text(text or "").split())) for text in texts]
    if rule == "lower":  # tags, too
        return [lower(text, language).split() for text in kept]
    return [normalise(text, rule, language).split() for text in kept]


def scored_phones(tokens: Iterable[str]) -> list[str]:
    """Return the phones without NSN and SPN."""
    return [token for token in tokens if token not in NOT_SCORED]


def _by_speaker(utterances: Sequence[UtteranceScore]) -> list[SpeakerScore]:
    of_speaker: dict[str, list[UtteranceScore]] = defaultdict(list)
    for utterance in utterances:
        of_speaker[utterance.speaker].append(utterance)
    scores = []
    for speaker, own in sorted(of_speaker.items()):
        counts = {metric: sum((x.counts[metric] for x in own), ErrorCounts()) for metric in own[0].counts}
        scores.append(SpeakerScore(speaker, len(own), counts))
    return scores


def badness(utterance: UtteranceScore, metric: Metric) -> tuple[float, int, str]:
    """Return a sort key that puts the utterances with the highest error rates first."""
    counts = utterance.counts[metric]
    return -counts.errors / max(counts.length, 1), -counts.errors, utterance.id


def by_length(utterances: Sequence[UtteranceScore], metric: Metric, groups: int = 5) -> list[LengthScore]:
    """Group utterances by reference length, shortest first, into at most `groups` of similar size."""
    counts = sorted((utterance.counts[metric] for utterance in utterances), key=lambda x: x.length)
    lengths = np.array([x.length for x in counts])
    # Utterances of equal length stay in one group.
    edges = np.unique(np.quantile(lengths, np.linspace(0, 1, groups + 1)[1:], method="higher"))
    result, start = [], 0
    for edge in edges:
        end = int(np.searchsorted(lengths, edge, side="right"))
        if end > start:
            group = counts[start:end]
            result.append(
                LengthScore(group[0].length, group[-1].length, len(group), sum(group, ErrorCounts()))
            )
        start = end
    return result


def confusions(utterances: Iterable[UtteranceScore], metric: Metric) -> list[Confusion]:
    """Count the pairs of tokens that differ, most frequent first, then alphabetically."""
    counter = Counter(
        (edit.reference or NOTHING, edit.hypothesis or NOTHING)
        for utterance in utterances
        for edit in utterance.alignments[metric]
        if edit.operation != "="
    )
    ordered = sorted(counter.items(), key=lambda item: (-item[1], item[0]))
    return [Confusion(*pair, times) for pair, times in ordered]
