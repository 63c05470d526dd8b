"""Official scores of a decoded split: NIST's hubscr.pl and sclite on the recipe's STM reference.

A recipe writes `<split>.stm` beside `<split>.cuts.jsonl.gz`, the mapping rules as `hub5.glm` and its lexicon
as `lexicon.txt`.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.markup import escape

from asr.console import Table
from asr.data.lines import manifest_entries
from asr.data.places import GLM, LEXICON, WORD_RULES
from asr.errors import UserError
from asr.files import file_digest
from asr.records.run_folder import OFFICIAL
from asr.scoring.ctm import CtmWord, write_ctm
from asr.scoring.display import rate_cells
from asr.scoring.error_rates import ErrorCounts, ErrorRate, error_rate
from asr.scoring.hypotheses import Hypothesis
from asr.scoring.stm import Stm, StmSegment, read_stm, write_stm
from asr.text.lexicon import Lexicon

HUBSCR = "hubscr.pl"
DEBIAN_FOLDER = "/usr/lib/sctk/bin"  # where Debian's package sctk puts its programs, outside PATH
SEGMENT = re.compile(r"^File: (\S+)\n.*\nScores: \(#C #S #D #I\) (\d+) (\d+) (\d+) (\d+)", re.MULTILINE)
SUBSETS = {"swbd": ("sw_",), "callhm": ("en_",)}  # prefixes of recording names
# The reference has these as optional or not at all: omitting them is never an error, keeping them may be.
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


class SubsetScore(NamedTuple):
    """A subset's number of reference segments, and its errors."""

    segments: int
    rate: ErrorRate

    def as_dict(self) -> dict[str, Any]:
        """Return the entry of `score.json`."""
        return {**self.rate.as_dict(), "segments": self.segments}


def find_hubscr() -> Path:
    """Return the path of `hubscr.pl`, from PATH or Debian's package `sctk`.

    Raises:
        UserError: hubscr.pl is not installed.
    """
    program = shutil.which(HUBSCR) or shutil.which(HUBSCR, path=DEBIAN_FOLDER)
    if program is None:
        raise UserError(
            f"official scores: expected NIST's {HUBSCR} in PATH or {DEBIAN_FOLDER}, found none: "
            "apt-get install sctk, or build https://github.com/usnistgov/SCTK"
        )
    return Path(program)


def reference_of(manifest: Path) -> Path | None:
    """Return the STM file beside a manifest, or None."""
    path = manifest.with_name(manifest.name.removesuffix(".cuts.jsonl.gz") + ".stm")
    return path if path.is_file() else None


def reference_digests(manifest: Path) -> dict[str, str]:
    """Return the hashes of the files beside a manifest that its official scores depend on, by name."""
    names = [WORD_RULES]
    if reference := reference_of(manifest):
        names += [reference.name, GLM, LEXICON]
    paths = [manifest.parent / name for name in names]
    return {path.name: file_digest(path) for path in paths if path.is_file()}


def official_score(
    hypotheses: Sequence[Hypothesis], manifest: Path, folder: Path, *, samples: int = 1000, seed: int = 0
) -> dict[str, SubsetScore]:
    """Return scores as in NIST's Hub-5 evaluations: `all`, and subsets if there are several.

    Noises, fillers and word fragments are not submitted, and acronyms are split into letters, as in the
    reference. The scored files and sclite's reports stay in `folder/official`.

    Args:
        hypotheses: hypotheses with words.
        manifest: decoded manifest, with an STM file and `hub5.glm` beside it.
        folder: decode folder of the split.
        samples: number of bootstrap samples, drawn over segments.
        seed: random seed for the bootstrap.

    Raises:
        UserError: sclite is not installed or fails, a hypothesis has no words, or a file can't be read.
    """
    hubscr = find_hubscr()
    reference, rules = reference_of(manifest), manifest.with_name(GLM)
    if reference is None or not rules.is_file():
        raise UserError(
            f"{manifest}: official scores need a reference in STM format and {GLM} beside it, found none"
        )
    stm = read_stm(reference)
    words = recognised_words(hypotheses, read_places(manifest), stm)
    lexicon = manifest.with_name(LEXICON)
    if lexicon.is_file():  # MS98 transcripts, and so models, write `ibm`; the reference has `I B M`
        words = split_acronyms(words, Lexicon.load(lexicon))
    place = folder / OFFICIAL
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    segments = sorted(stm.segments, key=lambda x: (x.file.lower(), x.channel.lower(), x.start_s))
    write_stm(place / "ref.stm", Stm(segments, stm.comments))
    write_ctm(place / "hyp.ctm", words)
    shutil.copyfile(rules, place / GLM)
    counts = run_hubscr(hubscr, place)
    kinds = {name: x for name, x in SUBSETS.items() if any(file.startswith(x) for file, _ in counts)}
    result = {}
    for name, prefixes in {"all": ("",), **(kinds if len(kinds) > 1 else {})}.items():
        of_subset = [count for file, count in counts if file.startswith(prefixes)]
        result[name] = SubsetScore(len(of_subset), error_rate(of_subset, samples=samples, seed=seed))
    return result


def run_hubscr(hubscr: Path, folder: Path) -> list[tuple[str, ErrorCounts]]:
    """Score `hyp.ctm` against `ref.stm` in a folder, with the rules `hub5.glm`; the folder keeps the reports.

    Returns:
        Recording and errors of each segment, except ignored ones.

    Raises:
        UserError: the script failed, or its report can't be parsed.
    """
    tools = hubscr.resolve().parent
    paths = {"PATH": f"{tools}{os.pathsep}{os.environ.get('PATH', '')}", "SCTK": str(tools.parent)}
    command = [str(hubscr), "-V", "-l", "english", "-h", "hub5", "-g", GLM, "-r", "ref.stm", "hyp.ctm"]
    done = subprocess.run(command, cwd=folder, env={**os.environ, **paths}, capture_output=True, text=True)
    report = folder / "hyp.ctm.filt.pra"
    text = report.read_text(encoding="utf-8", errors="replace") if report.exists() else ""
    segments = [(file, *map(int, row)) for file, *row in SEGMENT.findall(text)]
    if done.returncode or not segments:
        said = [line for line in done.stderr.splitlines() if "rror" in line] or ["no report written"]
        raise UserError(f"{hubscr} on {folder / 'hyp.ctm'}: expected a score, found: {said[-1].strip()}")
    return [(file, ErrorCounts(s, d, i, right + s + d)) for file, right, s, d, i in segments]


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

    Reference segments may be shorter than the decoded utterances; sclite would assign a word in the margin to
    a neighbouring segment.

    Raises:
        UserError: a hypothesis has no words, or its utterance is not in the manifest.
    """
    segments: dict[tuple[str, str], list[StmSegment]] = {}
    for segment in stm.segments:
        segments.setdefault((segment.file.lower(), segment.channel.lower()), []).append(segment)
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
        own = _segment_of(place, segments.get((place.file.lower(), place.channel.lower()), []))
        for timed in hypothesis.timed_words():
            word = timed["word"]
            if is_scored(word):
                start_s, end_s = _within(
                    own, place.start_s + timed["start_s"], place.start_s + timed["end_s"]
                )
                words.append(
                    CtmWord(place.file, place.channel, round(start_s, 3), round(end_s - start_s, 3), word)
                )
    return words


def split_acronyms(words: Iterable[CtmWord], lexicon: Lexicon) -> list[CtmWord]:
    """Split words that the lexicon pronounces as the names of their letters: `ibm` becomes `i b m`.

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

    def letters(word: str) -> list[str]:
        folded = word.lower()
        known = folded in said and names.keys() >= set(folded)
        spelled = known and said[folded][0] == tuple(phone for x in folded for phone in names[x])
        return list(word) if spelled else [word]

    split = []
    for word in words:
        parts = letters(word.word)
        share_s = word.duration_s / len(parts)
        split += [
            replace(word, word=part, start_s=word.start_s + i * share_s, duration_s=share_s)
            for i, part in enumerate(parts)
        ]
    return split


def is_scored(word: str) -> bool:
    """Whether a recognised word is submitted: it is not a noise, a filler or a fragment."""
    bare = word.lower()
    marked = bare[:1] + bare[-1:] in ("[]", "<>")
    return not (marked or bare in FILLERS or bare.endswith("-"))


def print_official(console: Console, folder: Path, scores: dict[str, SubsetScore]) -> None:
    """Print a row per subset."""
    columns = ("subset", "WER %", "95 % interval", "sub", "del", "ins", "words", "segments")
    rows = [
        [name, *rate_cells(x.rate), str(x.rate.counts.length), str(x.segments)] for name, x in scores.items()
    ]
    console.print(Table.of(f"Official score, {folder}", columns, rows, wrap=False))
    console.print(f"scored files and sclite's reports: {escape(str(folder / OFFICIAL))}", soft_wrap=True)


def _segment_of(place: Place, segments: list[StmSegment]) -> StmSegment | None:
    """Return the segment that overlaps most with an utterance; None if none does."""
    shared = {i: min(x.end_s, place.end_s) - max(x.start_s, place.start_s) for i, x in enumerate(segments)}
    best = max(shared, key=lambda i: shared[i], default=None)
    return segments[best] if best is not None and shared[best] > 0 else None


def _within(segment: StmSegment | None, start_s: float, end_s: float) -> tuple[float, float]:
    if segment is None:
        return start_s, end_s
    latest_s = max(segment.start_s, segment.end_s - 2 * SHORTEST_S)
    start_s = min(max(start_s, segment.start_s), latest_s)
    return start_s, max(min(end_s, segment.end_s), start_s + SHORTEST_S)
