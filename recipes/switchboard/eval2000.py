"""Reads the Hub5'00 evaluation set: segments from the PEM file, words from the STM file."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from asr.scoring.stm import Stm, plain_words, read_stm
from asr.text.files import read_lines

CONVERSATIONS = 40
UTTERANCES = {"eval2000": 4459, "eval2000_swbd": 1831, "eval2000_callhm": 2628}
PREFIXES = {"eval2000": ("sw_", "en_"), "eval2000_swbd": ("sw_",), "eval2000_callhm": ("en_",)}
MARGIN_S = 0.1  # tight segments are extended by this at each end, at most half-way to a neighbour
NOTHING_SAID = "[noise]"  # transcript of segments without words, because manifests need one


class Span(NamedTuple):
    """A segment of the PEM file."""

    conversation: str  # sw_4390
    side: str  # A or B
    start_s: float
    end_s: float

    @property
    def name(self) -> str:
        """Utterance id as in Kaldi's recipe: conversation, side, start and end in hundredths of a second.

        Times are truncated: 16.4 s becomes 001639, because 100 × 16.4 is below 1640 in floating point.
        """
        start, end = (int(100 * time_s) for time_s in (self.start_s, self.end_s))
        return f"{self.conversation}-{self.side}_{start:06d}-{end:06d}"


@dataclass
class TestSet:
    """The utterances with their texts, the scoring reference, and what was repaired, ignored or wrong."""

    spans: dict[str, Span]  # extended by the margin, by utterance id
    texts: dict[str, str]
    stm: Stm
    repairs: Counter[str] = field(default_factory=Counter)
    ignored: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def read_test_set(pem: Path, stm: Path) -> TestSet:
    """Join segments and reference, and extend the segments by the margin.

    Raises:
        UserError: a file can't be read, or its lines are malformed.
    """
    problems: list[str] = []
    spans = {span.name: span for span in read_pem(pem, problems)}
    reference, repairs = repaired(read_stm(stm))
    test = TestSet({}, {}, reference, repairs, problems=problems)
    by_name = {}
    for segment in reference.segments:
        name = Span(segment.file, segment.channel.upper(), segment.start_s, segment.end_s).name
        if name in by_name:
            problems.append(f"{stm}: segment {segment.name}: expected it once, found it again")
        by_name[name] = segment
        if name not in spans:
            problems.append(
                f"{stm}: segment {segment.name}: expected it in {pem.name} too, found it only here"
            )
    wide = widened(spans)
    for name, span in wide.items():
        if name not in by_name:
            problems.append(f"{pem}: segment {name}: expected its transcript in {stm.name}, found none")
        elif by_name[name].ignored:
            test.ignored.append(name)
        else:
            test.spans[name] = span
            test.texts[name] = " ".join(plain_words(by_name[name].text)).lower() or NOTHING_SAID
    return test


def read_pem(path: Path, problems: list[str]) -> list[Span]:
    """Read `en_4156 A unknown_speaker 301.85 302.48` lines; `;;` begins a comment."""
    spans: list[Span] = []
    lines: dict[str, int] = {}
    for number, line in read_lines(path):
        if line.lstrip().startswith(";;"):
            continue
        fields = line.split()
        try:
            conversation, side, _, start_s, end_s = fields
            span = Span(conversation, side.upper(), float(start_s), float(end_s))
            if span.side not in ("A", "B") or not 0 <= span.start_s < span.end_s:
                raise ValueError
        except ValueError:
            problems.append(
                f"{path}:{number}: expected `conversation A|B speaker start end`, found {line.strip()!r}"
            )
            continue
        if (first := lines.setdefault(span.name, number)) != number:
            problems.append(f"{path}:{number}: expected distinct segments, found that of line {first} again")
            continue
        spans.append(span)
    return spans


def repaired(stm: Stm) -> tuple[Stm, Counter[str]]:
    """Return the reference without markup that NIST's programs mishandle, and the number of repairs by kind.

    `((` becomes `(`, and aside marks are removed.
    """
    repairs: Counter[str] = Counter()
    segments = []
    for segment in stm.segments:
        text, asides = re.subn(r"<[BE]_ASIDE>", " ", segment.text, flags=re.IGNORECASE)
        label = segment.label
        if label.upper() in ("<B_ASIDE>", "<E_ASIDE>"):
            label, asides = "", asides + 1
        # NIST's programs mishandle doubled parentheses.
        text, doubled = re.subn(r"\(\s*\(", "(", text)
        repairs.update({"aside marks": asides, "doubled parentheses": doubled})
        segments.append(replace(segment, label=label, text=" ".join(text.split())))
    return Stm(segments, stm.comments), +repairs


def widened(spans: dict[str, Span], margin_s: float = MARGIN_S) -> dict[str, Span]:
    """Return the segments extended by `margin_s` at each end, at most half-way to a neighbour."""
    wide: dict[str, Span] = {}
    sides: dict[tuple[str, str], list[tuple[str, Span]]] = {}
    for name, span in spans.items():
        sides.setdefault((span.conversation, span.side), []).append((name, span))
    for side in sides.values():
        side.sort(key=lambda item: item[1].start_s)
        ends = [None, *(span.end_s for _, span in side)]
        starts = [*(span.start_s for _, span in side[1:]), None]
        for (name, span), before_s, after_s in zip(side, ends, starts, strict=False):
            wide[name] = span._replace(
                start_s=max(0.0, span.start_s - _room(before_s, span.start_s, margin_s)),
                end_s=span.end_s + _room(span.end_s, after_s, margin_s),
            )
    return {name: wide[name] for name in sorted(spans)}


def subset(names: Iterable[str], split: str) -> list[str]:
    """Return the utterances of eval2000, eval2000_swbd or eval2000_callhm."""
    return [name for name in names if name.startswith(PREFIXES[split])]


def _room(end_s: float | None, start_s: float | None, margin_s: float) -> float:
    if end_s is None or start_s is None:
        return margin_s
    return max(0.0, min(margin_s, (start_s - end_s) / 2))
