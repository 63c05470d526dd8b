"""Official NIST scores of a decoded test set, against the recipe's STM reference.

A recipe writes `<split>.stm` beside `<split>.cuts.jsonl.gz`, the mapping rules as `hub5.glm` and its lexicon
as `lexicon.txt`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.markup import escape

from asr.console import Column, Table
from asr.data.lines import manifest_entries
from asr.data.places import GLM, LEXICON, WORD_RULES
from asr.errors import UserError
from asr.files import file_digest
from asr.records.run_folder import OFFICIAL
from asr.scoring.ctm import CtmWord, write_ctm
from asr.scoring.display import rate_cells
from asr.scoring.error_rates import ErrorRate, error_rate
from asr.scoring.estimates import percent
from asr.scoring.glm import Side, read_glm
from asr.scoring.hub5 import NO_RULES, score_segments, spread_words
from asr.scoring.hypotheses import Hypothesis
from asr.scoring.sclite import ScliteResult, find_hubscr, run_hubscr
from asr.scoring.stm import Stm, StmSegment, by_channel, channel_of, read_stm, write_stm
from asr.text.lexicon import Lexicon

SUBSETS = {"swbd": ("sw_",), "callhm": ("en_",)}  # prefixes of recording names
# In the reference these are optional or absent: omitting them is never an error, keeping them may be one.
FILLERS = frozenset(
    ["uh", "um", "eh", "mm", "hm", "ah", "huh", "ha", "er", "oof", "hee", "ach", "eee", "ew", "%hesitation"]
)
SHORTEST_S = 0.01  # CTM files have hundredths of a second, and a word needs a duration


class Place(NamedTuple):
    """Recording, channel and times of an utterance."""

    file: str
    channel: str
    start_s: float
    end_s: float


@dataclass(frozen=True)
class SubsetScore:
    """Errors in a subset: our own counts, and sclite's if it is installed.

    Attributes:
        segments: number of reference segments.
        rate: error rate with acronyms split into letters.
        as_recognised: error rate of the words as recognised.
        sclite: result of hubscr.pl for `rate`.
    """

    segments: int
    rate: ErrorRate
    as_recognised: ErrorRate
    sclite: ScliteResult | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the entry of `score.json`."""
        entry: dict[str, Any] = {**self.rate.as_dict(), "segments": self.segments, "sclite": None}
        entry["as_recognised"] = self.as_recognised.as_dict()
        if self.sclite:
            counts = self.sclite.counts
            rate = counts.rate if counts.length else None
            entry["sclite"] = {"rate": rate, **asdict(counts), "segments": self.sclite.segments}
        return entry

    @property
    def agrees(self) -> bool:
        """Whether sclite's counts are the same; true if it was not run."""
        return self.sclite is None or (self.sclite.segments, self.sclite.counts) == (
            self.segments,
            self.rate.counts,
        )


def reference_of(manifest: Path) -> Path | None:
    """Return the STM file beside a manifest, or None."""
    path = manifest.with_name(manifest.name.removesuffix(".cuts.jsonl.gz") + ".stm")
    return path if path.is_file() else None


def reference_digests(manifest: Path) -> dict[str, str]:
    """Return a hash of each file beside a manifest that its scores depend on, by name."""
    names = [WORD_RULES]
    if reference := reference_of(manifest):
        names += [reference.name, GLM, LEXICON]
    paths = [manifest.parent / name for name in names]
    return {path.name: file_digest(path) for path in paths if path.is_file()}


def official_score(
    hypotheses: Sequence[Hypothesis],
    manifest: Path,
    folder: Path,
    *,
    nist: bool = True,
    samples: int = 1000,
    seed: int = 0,
) -> dict[str, SubsetScore]:
    """Score as in NIST's Hub-5 evaluations: `all`, and its subsets if there are several.

    Noises, fillers and word fragments are not submitted, and acronyms are split into letters, as in the
    reference. The STM and CTM files go to `folder/official`.

    Args:
        hypotheses: hypotheses with words.
        manifest: manifest that was decoded, with an STM file beside it.
        folder: decode folder of the split.
        nist: also run NIST's hubscr.pl if it is installed.
        samples: number of bootstrap samples, drawn over segments.
        seed: random seed for the bootstrap.

    Raises:
        UserError: a hypothesis has no words, or a file can't be read.
    """
    reference = reference_of(manifest)
    if reference is None:
        raise UserError(f"{manifest}: expected a reference in STM format beside it, found none")
    stm = read_stm(reference)
    rules = manifest.parent / GLM
    mapped = rules.is_file()
    sides: tuple[Side, Side] = ("reference", "hypothesis")
    glms = [read_glm(rules, side) if mapped else NO_RULES for side in sides]
    whole = recognised_words(hypotheses, read_places(manifest), stm)
    lexicon = manifest.parent / LEXICON
    # MS98 transcripts, hence models, write `ibm`, the reference `I B M`.
    words = split_acronyms(whole, Lexicon.load(lexicon)) if lexicon.is_file() else whole
    scores = score_segments(stm, words, *glms, progress=True)
    unsplit = score_segments(stm, whole, *glms, progress=True) if words != whole else scores
    hubscr = find_hubscr() if nist and mapped else None
    result = {}
    for name, prefixes in subsets(stm).items():
        rate, as_recognised = (
            error_rate(
                [score.counts for score in aligned if score.segment.file.startswith(prefixes)],
                samples=samples,
                seed=seed,
            )
            for aligned in (scores, unsplit)
        )
        files = Path(folder, OFFICIAL, f"{name}.stm"), Path(folder, OFFICIAL, f"{name}.ctm")
        part = by_channel(stm.restricted(prefixes).segments)
        write_stm(files[0], Stm([x for group in part.values() for x in group], stm.comments))
        write_ctm(files[1], (word for word in words if word.file.startswith(prefixes)))
        sclite = run_hubscr(hubscr, *files, rules) if hubscr else None
        segments = sum(score.segment.file.startswith(prefixes) for score in scores)
        result[name] = SubsetScore(segments, rate, as_recognised, sclite)
    return result


def subsets(stm: Stm) -> dict[str, tuple[str, ...]]:
    """Return the recording prefixes of each subset: `all`, then the parts if there are several."""
    parts = {
        name: prefixes
        for name, prefixes in SUBSETS.items()
        if any(x.file.startswith(prefixes) for x in stm.segments)
    }
    return {"all": ("",), **(parts if len(parts) > 1 else {})}


def read_places(manifest: Path) -> dict[str, Place]:
    """Return recording, channel (A, B …) and times of every utterance of a manifest."""
    places = {}
    for entry in manifest_entries(manifest):
        try:
            end_s = entry["start"] + entry["duration"]
            channel = chr(ord("A") + entry["channel"])
            places[entry["id"]] = Place(entry["recording"]["id"], channel, entry["start"], end_s)
        except (LookupError, TypeError, ValueError):
            raise UserError(f"{manifest}: utterance {entry['id']!r}: expected a cut, found another") from None
    return places


def recognised_words(hypotheses: Iterable[Hypothesis], places: dict[str, Place], stm: Stm) -> list[CtmWord]:
    """Return the words to submit, with times clipped to the reference segment of their utterance.

    Reference segments may be shorter than the decoded utterances: a word in the margin would be assigned to
    a neighbouring segment.

    Raises:
        UserError: a hypothesis has no words, or its utterance is not in the manifest.
    """
    segments = by_channel(stm.segments)
    words = []
    for hypothesis in hypotheses:
        if hypothesis.id not in places:
            raise UserError(
                f"utterance {hypothesis.id!r}: expected it in the manifest, found it only in the hypotheses"
            )
        if hypothesis.words is None and hypothesis.text is None:
            raise UserError(
                f"utterance {hypothesis.id!r}: official scores need words, found only {hypothesis.unit}s "
                "(decode with decoder=beam)"
            )
        place = places[hypothesis.id]
        segment = _segment_of(place, segments.get(channel_of(place), []))
        for timed in hypothesis.timed_words():
            word = timed["word"]
            if is_scored(word):
                start_s, end_s = _within(
                    segment, place.start_s + timed["start_s"], place.start_s + timed["end_s"]
                )
                words.append(
                    CtmWord(place.file, place.channel, round(start_s, 3), round(end_s - start_s, 3), word)
                )
    return words


def split_acronyms(words: Iterable[CtmWord], lexicon: Lexicon) -> list[CtmWord]:
    """Split the words that the lexicon pronounces as the names of their letters: `ibm` becomes `i b m`.

    >>> said = {"i": ["ay"], "b": ["b iy"], "m": ["eh m"], "ibm": ["ay b iy eh m"], "bi": ["b iy"]}
    >>> lexicon = Lexicon({word: [tuple(x.split()) for x in listed] for word, listed in said.items()})
    >>> [word.word for word in split_acronyms([CtmWord("f", "A", 0.0, 0.3, x) for x in said], lexicon)]
    ['i', 'b', 'm', 'i', 'b', 'm', 'bi']
    """
    said = {word.lower(): pronunciations for word, pronunciations in lexicon.pronunciations.items()}
    names = {word: listed[0] for word, listed in said.items() if len(word) == 1 and word.isalpha()}
    # The first pronunciation of `a` may be the article's.
    if letter := [phones for phones in said.get("a", []) if phones in (("ey",), ("EY",))]:
        names["a"] = letter[0]

    def spelled(word: str) -> bool:
        if word not in said or not names.keys() >= set(word):
            return False
        return said[word][0] == tuple(phone for letter in word for phone in names[letter])

    return [
        x
        for word in words
        for x in spread_words(word, word.word if spelled(word.word.lower()) else [word.word])
    ]


def is_scored(word: str) -> bool:
    """Whether a recognised word is submitted: it is not a noise, a filler or a fragment."""
    bare = word.lower()
    marked = bare[:1] + bare[-1:] in ("[]", "<>")
    return not (marked or bare in FILLERS or bare.endswith("-"))


def print_official(console: Console, folder: Path, scores: dict[str, SubsetScore]) -> None:
    """Print a row per subset, with the error rate without splitting acronyms, and sclite's result."""
    names = ("subset", "WER %", "95 % interval", "sub", "del", "ins", "words", "segments", "unsplit %")
    columns: list[str | Column] = [*names, Column("sclite", number=False, wrap=False)]
    rows = []
    for name, score in scores.items():
        verdict = "–"
        if score.sclite:
            verdict = "same" if score.agrees else percent(score.sclite.counts.rate)
        cells = [*rate_cells(score.rate), score.rate.counts.length, score.segments]
        cells += [percent(score.as_recognised.rate), verdict]
        rows.append([name, *map(str, cells)])
    console.print(Table.of(f"Official score, {folder}", columns, rows, wrap=False))
    console.print(f"STM and CTM files: {escape(str(folder / OFFICIAL))}", soft_wrap=True)


def _segment_of(place: Place, segments: list[StmSegment]) -> StmSegment | None:
    """Return the segment with the largest overlap."""
    shared = {i: min(x.end_s, place.end_s) - max(x.start_s, place.start_s) for i, x in enumerate(segments)}
    best = max(shared, key=lambda i: shared[i], default=None)
    return segments[best] if best is not None and shared[best] > 0 else None


def _within(segment: StmSegment | None, start_s: float, end_s: float) -> tuple[float, float]:
    if segment is None:
        return start_s, end_s
    latest_s = max(segment.start_s, segment.end_s - 2 * SHORTEST_S)
    start_s = min(max(start_s, segment.start_s), latest_s)
    return start_s, max(min(end_s, segment.end_s), start_s + SHORTEST_S)
