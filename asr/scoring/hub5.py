"""NIST Hub-5 scoring: STM reference, CTM hypothesis and mapping rules, with sclite's counts."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from rich.console import Console
from rich.progress import track

from asr.errors import UserError
from asr.scoring.alignment import Edit
from asr.scoring.ctm import CtmAlternatives, CtmEntry, CtmWord
from asr.scoring.error_rates import ErrorCounts
from asr.scoring.glm import Glm
from asr.scoring.network import Network, NetworkWord, align_networks, network_of, tokens_of
from asr.scoring.stm import Stm, StmSegment, by_channel, channel_of

NO_RULES = Glm([])


@dataclass(frozen=True)
class SegmentScore:
    """The alignment of one segment of the reference."""

    segment: StmSegment
    edits: list[Edit]
    counts: ErrorCounts


def score_segments(
    stm: Stm,
    entries: Iterable[CtmEntry],
    reference_rules: Glm | None = NO_RULES,
    hypothesis_rules: Glm | None = NO_RULES,
    *,
    progress: bool = False,
) -> list[SegmentScore]:
    """Align the hypothesis with the reference segment by segment, as `hubscr.pl` does.

    A word belongs to the first segment of its channel that ends after the word's midpoint, or to the last
    segment. Segments marked IGNORE_TIME_SEGMENT_IN_SCORING are skipped with their words. In a channel
    without recognised words, all reference words are deletions. Case doesn't count in names and words.

    Args:
        stm: reference.
        entries: hypothesis, in any order.
        reference_rules: rules from `read_glm(path, "reference")`; None: words as written, as
            `sclite -r ref.stm stm -h hyp.ctm ctm` takes them, without fragments and optional words.
        hypothesis_rules: rules from `read_glm(path, "hypothesis")`, or None as for the reference.
        progress: whether to show a progress bar.

    Raises:
        UserError: a word is in a channel that the reference lacks, or markup is malformed.
    """
    segments = by_channel(stm.segments)
    heard: dict[tuple[str, str], list[CtmEntry]] = {channel: [] for channel in segments}
    for entry in sorted(entries, key=lambda x: (*channel_of(x), round(x.start_s, 3))):
        channel = channel_of(entry)
        if channel not in heard:
            raise UserError(
                f"recording {entry.file}, channel {entry.channel}: expected it in the reference, found it "
                "only in the hypothesis"
            )
        heard[channel] += filter_entry(entry, hypothesis_rules) if hypothesis_rules else [entry]
    work = [pair for channel in segments for pair in _assigned(segments[channel], heard[channel])]
    bar = track(work, "scoring", console=Console(stderr=True), transient=True, disable=not progress)
    return [_score(segment, own, reference_rules) for segment, own in bar if not segment.ignored]


def filter_entry(entry: CtmEntry, rules: Glm) -> list[CtmEntry]:
    """Apply mapping rules to an entry; a word may become several words, alternatives or nothing."""
    if isinstance(entry, CtmAlternatives):
        filtered = tuple(_filter_choice(choice, rules) for choice in entry.choices)
        # Alternatives without any word have no time at which they could be assigned to a segment.
        return [replace(entry, choices=filtered)] if any(filtered) else []
    try:
        tokens = tokens_of(rules.filter(entry.word))
    except ValueError as error:
        raise UserError(f"recording {entry.file}, word at {entry.start_s:g} s: {error}") from None
    choices: list[list[str]] = [[]]
    for token in tokens:
        if token == "/":
            choices.append([])
        elif token not in ("{", "}"):
            choices[-1].append(token)
    timed = [spread_words(entry, choice) for choice in choices if choice]
    if len(timed) > 1:
        return [CtmAlternatives(entry.file, entry.channel, tuple(timed))]
    return list(timed[0]) if timed else []


def _filter_choice(choice: Iterable[CtmWord], rules: Glm) -> tuple[CtmWord, ...]:
    """Apply mapping rules to a choice; where they give alternatives, the first is taken."""
    filtered = [entry for word in choice for entry in filter_entry(word, rules)]
    return tuple(
        word for x in filtered for word in (x.choices[0] if isinstance(x, CtmAlternatives) else (x,))
    )


def spread_words(entry: CtmWord, tokens: Sequence[str]) -> tuple[CtmWord, ...]:
    """Return the words that replace an entry; they divide its duration equally."""
    if len(tokens) == 1:
        return (replace(entry, word=tokens[0]),)
    share_s = entry.duration_s / len(tokens)
    # Rounded to milliseconds, as in the output of SCTK's filter.
    starts_s = [round(entry.start_s + share_s * i, 3) for i in range(len(tokens))]
    return tuple(
        replace(entry, word=token, start_s=start_s, duration_s=round(share_s, 3))
        for token, start_s in zip(tokens, starts_s, strict=True)
    )


def _assigned(segments: list[StmSegment], entries: list[CtmEntry]) -> list[tuple[StmSegment, list[CtmEntry]]]:
    assigned = []
    position = 0
    for segment in segments[:-1]:
        start = position
        end_s = float(np.float32(segment.end_s))  # sclite stores segment times in single precision
        while position < len(entries) and entries[position].middle_s < end_s:
            position += 1
        assigned.append((segment, entries[start:position]))
    return [*assigned, (segments[-1], entries[position:])]


def _score(segment: StmSegment, entries: list[CtmEntry], rules: Glm | None) -> SegmentScore:
    parse = NetworkWord.parse if rules else NetworkWord.parse_folded
    try:
        reference = network_of(rules.filter(segment.text) if rules else segment.text, parse)
    except ValueError as error:
        raise UserError(f"segment {segment.name}: {error}") from None
    hypothesis = Network(parse=parse)
    for entry in entries:
        if isinstance(entry, CtmWord):
            hypothesis.add_tokens([entry.word])
        else:
            hypothesis.add_choices([[word.word for word in choice] or ["@"] for choice in entry.choices])
    edits = align_networks(reference, hypothesis)
    return SegmentScore(segment, edits, ErrorCounts.of(edits))
