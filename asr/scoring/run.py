"""Scoring of folders: hypotheses to error rates, alignments and tables."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from asr.config import option
from asr.console import open_console
from asr.errors import UserError
from asr.files import write_text
from asr.scoring.alignment import render
from asr.scoring.display import counts_line, print_comparison, print_pairs, print_score, short_names
from asr.scoring.error_rates import ErrorCounts
from asr.scoring.hypotheses import Hypothesis, read_hypotheses
from asr.scoring.official import official_score, print_official, reference_of
from asr.scoring.plain_files import are_plain, score_files, write_ctm_and_stm
from asr.scoring.score import HEADLINES, Score, UtteranceScore, WordFilter, by_length, confusions, score
from asr.scoring.significance import compare_systems
from asr.scoring.trn import write_trn
from asr.scoring.word_filter import WordFilterRules
from asr.text.files import write_lines

HYPOTHESES = "hyp.jsonl"
FILES = ("alignments.txt", "speakers.tsv", "lengths.tsv", "confusions.tsv")
FIELDS = ("rate", "errors", "substitutions", "deletions", "insertions", "length")


@dataclass
class ScoreOptions:
    """How to score, and what to print and write."""

    details: bool = option(True, help="print each system's speakers and worst utterances; false: one table")
    worst: int = option(5, help="number of worst utterances to print")
    samples: int = option(
        1000, help="number of bootstrap samples for the 95 % intervals", minimum=1, maximum=1_000_000
    )
    seed: int = option(0, help="random seed for the bootstrap", maximum=2**32 - 1)
    ignore_case: bool = option(True, help="compare words and characters case-insensitively, as sclite does")
    word_filter: bool = option(True, help="apply the recipe's scoring rules to references and hypotheses")
    confusions: int = option(10, help="number of most frequent errors to print")
    trn: bool = option(False, help="also write ref.trn and hyp.trn for NIST sclite")
    ctm: bool = option(False, help="also write hyp.ctm and ref.stm with word times")
    glm: str = option("", help="mapping rules (GLM) for <hyp.ctm> <ref.stm>; empty: none")
    save: str = option("", help="JSON file for the significance tests between systems; empty: print only")
    nist: bool = option(True, help="official scores: also run NIST's hubscr.pl if it is installed")


def score_paths(
    paths: Sequence[str | Path],
    options: ScoreOptions,
    *,
    filter_words: WordFilter | None = None,
    console: Console | None = None,
) -> list[Score]:
    """Score every folder (or its hyp.jsonl) and write score.json, alignments.txt and tables into it.

    Each further system is compared with the first one that recognised the same utterances. The files
    `hyp.trn ref.trn` or `hyp.ctm ref.stm` are only scored and printed.

    If decode.json lies beside the hypotheses, it provides `decode_s`, `lexicon` (a digest) and `word_filter`
    (the recipe's scoring rules, copied to score.json).

    Args:
        paths: decode folders or hyp.jsonl files, or two files in NIST's formats.
        options: options of `asr score`.
        filter_words: function that filters a list of words, in place of the recipe's rules.
        console: console to print to.

    Raises:
        UserError: a folder has no hypotheses, or its hypotheses can't be scored.
    """
    if not paths:
        raise UserError(f"nothing to score: expected folders with a {HYPOTHESES}, found none")
    if options.samples < 1:
        raise UserError(f"samples={options.samples}: expected at least 1")
    console = console or open_console()
    files = [Path(path) for path in paths]
    if are_plain(files):
        result = score_files(
            files,
            glm=options.glm,
            ignore_case=options.ignore_case,
            filter_words=filter_words,
            samples=options.samples,
            seed=options.seed,
        )
        print_score(console, files[0], result, options.worst if options.details else 0, options.confusions)
        return [result]
    folders = [path.parent if path.name == HYPOTHESES else path for path in files]
    scores = []
    for folder in folders:
        result = _score_folder(folder, options, filter_words, console)
        scores.append(result)
        if options.details:
            print_score(console, folder, result, options.worst, options.confusions)
            console.print(f"score.json, {', '.join(FILES)}: {folder}", soft_wrap=True, markup=False)
    if len(scores) > 1 or not options.details:
        names = short_names(folders)
        print_comparison(console, names, scores)
        pairs = compare_systems(names, scores, samples=options.samples, seed=options.seed)
        print_pairs(console, pairs)
        if options.save:
            text = json.dumps([pair.as_dict() for pair in pairs], indent=2, allow_nan=False)
            write_text(text + "\n", options.save)
    return scores


def _score_folder(
    folder: Path, options: ScoreOptions, filter_words: WordFilter | None, console: Console
) -> Score:
    path = folder / HYPOTHESES
    hypotheses = read_hypotheses(path)
    record = _read_decode_record(folder / "decode.json")
    if filter_words is None and options.word_filter and (rules := record.get("word_filter")):
        filter_words = WordFilterRules.from_dict(rules, str(folder / "decode.json"))
    try:
        result = score(
            hypotheses,
            filter_words=filter_words,
            ignore_case=options.ignore_case,
            samples=options.samples,
            seed=options.seed,
        )
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    result = replace(result, decode_s=record.get("decode_s"), lexicon=record.get("lexicon"))
    write_text("\n".join(_alignment_text(entry) for entry in result.utterances), folder / "alignments.txt")
    for name, rows in _tables(result).items():
        write_lines(folder / name, ("\t".join(map(str, row)) for row in rows))
    if options.trn:
        write_trn(folder, hypotheses)
    if options.ctm:
        write_ctm_and_stm(folder, hypotheses)
    # Written last: if score.json exists, the other files are complete.
    summary = result.as_dict()
    if isinstance(filter_words, WordFilterRules):
        summary["word_filter"] = asdict(filter_words)
    if official := _official(folder, hypotheses, record.get("manifest") or "", options, console):
        summary["official"] = official
    write_text(json.dumps(summary, indent=2, allow_nan=False) + "\n", folder / "score.json")
    return result


def _official(
    folder: Path, hypotheses: list[Hypothesis], decoded: str, options: ScoreOptions, console: Console
) -> dict[str, object]:
    """Return the official scores by subset, if the manifest has a reference in NIST's formats beside it."""
    manifest = Path(decoded)
    if not manifest.is_file() or reference_of(manifest) is None:
        return {}
    if hypotheses[0].text is None:
        console.print(f"no official score: expected words (decoder=beam), found {hypotheses[0].unit}s")
        return {}
    scores = official_score(
        hypotheses, manifest, folder, nist=options.nist, samples=options.samples, seed=options.seed
    )
    print_official(console, folder, scores)
    return {name: subset.as_dict() for name, subset in scores.items()}


def _read_decode_record(path: Path) -> dict[str, Any]:
    """Return the contents of decode.json; empty if there is no file."""
    if not path.exists():
        return {}
    try:
        record = json.loads(path.read_text())
        decode_s, lexicon = record["decode_s"], record.get("lexicon")
        if not isinstance(decode_s, int | float | None) or not isinstance(lexicon, str | None):
            raise TypeError(f"decode_s={decode_s!r}, lexicon={lexicon!r}")
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{path}: expected decode_s (seconds) and lexicon (digest), found {error}") from error
    return dict(record)


def _alignment_text(entry: UtteranceScore) -> str:
    lines = [f"{entry.id}  speaker {entry.speaker}"]
    for metric in HEADLINES:
        if metric in entry.counts:
            lines.append(f"{metric.upper()}  {counts_line(entry.counts[metric])}")
            lines.append(render(entry.alignments[metric]).plain)
    return "\n".join(lines) + "\n"


def _tables(result: Score) -> dict[str, list[list[Any]]]:
    """Return the rows of each table by file name, column names first."""
    names = [f"{metric}_{name}" for metric in result.rates for name in FIELDS]
    speakers: list[list[Any]] = [["speaker", "utterances", *names]]
    for speaker in result.speakers:
        values = [value for metric in result.rates for value in _values(speaker.counts[metric])]
        speakers.append([speaker.speaker, speaker.utterances, *values])
    lengths: list[list[Any]] = [["metric", "shortest", "longest", "utterances", *FIELDS]]
    errors: list[list[Any]] = [["metric", "times", "reference", "hypothesis"]]
    for metric in result.rates:
        for group in by_length(result.utterances, metric):
            span = (group.shortest, group.longest)
            lengths.append([metric, *span, group.utterances, *_values(group.counts)])
        for pair in confusions(result.utterances, metric):
            errors.append([metric, pair.times, pair.reference, pair.hypothesis])
    return {"speakers.tsv": speakers, "lengths.tsv": lengths, "confusions.tsv": errors}


def _values(counts: ErrorCounts) -> list[Any]:
    return [getattr(counts, name) for name in FIELDS]
