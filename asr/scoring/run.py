"""Scores folders: from hypotheses to error rates, alignments and tables."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from asr.config import affecting, as_overrides, check_effect
from asr.console import counted, open_console
from asr.errors import UserError
from asr.files import (
    check_writable,
    file_digest,
    locked,
    near_path,
    read_as,
    read_record,
    write_record,
    write_text,
)
from asr.records.run_folder import (
    DECODING,
    HYPOTHESES,
    SCORE,
    TABLES,
    DecodeRecord,
    RunFolder,
)
from asr.scoring.display import print_comparison, print_pairs, print_score, short_names
from asr.scoring.hypotheses import Hypothesis, read_hypotheses
from asr.scoring.listed_words import ListedWords
from asr.scoring.official import official_score, print_official
from asr.scoring.options import FOLDER, FOLDERS, TEXT, TRN, ScoreOptions
from asr.scoring.plain_files import are_plain, in_order, score_files, write_ctm_and_stm
from asr.scoring.score import Score, pooled, score, scored_words
from asr.scoring.significance import compare_systems, group_systems
from asr.scoring.statistics import percent
from asr.scoring.tables import write_tables
from asr.scoring.trn import check_same_ids, write_trn
from asr.scoring.word_filter import WordFilterRules
from asr.text.hotwords import read_hotwords
from asr.text.known_words import KnownWords
from asr.text.pronunciation import WordCounts


def score_paths(
    paths: Sequence[str | Path], options: ScoreOptions, *, console: Console | None = None
) -> list[Score]:
    """Score every folder (or its hyp.jsonl) and write score.json, alignments.txt and tables into it.

    Each further system is compared with the first one that recognised the same utterances. The files
    `hyp.trn ref.trn` or `ref.txt hyp.txt` are only scored and printed.

    If decode.json lies beside the hypotheses, it provides `decode_s`, `lexicon` (a digest) and `word_filter`
    (the recipe's scoring rules, copied to score.json).

    Args:
        paths: decode folders, folders that contain some, such as runs, or hyp.jsonl files; or two files in
            NIST's formats or plain text.
        options: options of `asr score`.
        console: console to print to.

    Raises:
        UserError: a folder has no hypotheses, hypotheses can't be scored, or systems recognised different
            utterances and `common` isn't set.
    """
    if not paths:
        raise UserError(f"nothing to score: expected folders with a {HYPOTHESES}, found none")
    if options.samples < 1:
        raise UserError(f"samples={options.samples}: expected at least 1")
    console = console or open_console()
    files = [Path(path) for path in paths]
    if are_plain(files):
        check_effect(options, paths=TRN if files[0].suffix == ".trn" else TEXT)
        result = score_files(files, options, console)
        hypothesis, _ = in_order(files)
        print_score(console, hypothesis, result, details=options.details)
        return [result]
    folders = decode_folders(files)
    check_effect(options, paths=FOLDER if len(folders) == 1 else FOLDERS)
    names = short_names(folders)
    systems = [read_hypotheses(folder / HYPOTHESES) for folder in folders]
    kept = common_utterances(names, systems, options.common)
    if options.save:
        check_writable(options.save)
    scores = []
    for folder, hypotheses in zip(folders, systems, strict=True):
        with locked(folder, "asr score"):
            result = _score_folder(folder, hypotheses, options, console)
        scores.append(result)
        if options.details or len(folders) == 1:
            print_score(console, folder, result, details=options.details)
            console.print(f"{SCORE}, {', '.join(TABLES)}: {folder}", soft_wrap=True, markup=False)
    if len(scores) > 1:
        shared = [_restricted(result, idents, options) for result, idents in zip(scores, kept, strict=True)]
        for name, result, rest in zip(names, scores, shared, strict=True):
            if left_out := len(result.utterances) - len(rest.utterances):
                console.print(
                    f"{name}: {left_out} of {counted(len(result.utterances), 'utterance')} left out, which "
                    "other systems lack",
                    soft_wrap=True,
                    markup=False,
                )
        print_comparison(console, names, shared)
        pairs = compare_systems(names, shared, samples=options.samples, seed=options.seed)
        print_pairs(console, pairs)
        if options.save:
            text = json.dumps([pair.as_dict() for pair in pairs], indent=2, allow_nan=False)
            write_text(text + "\n", options.save)
    return scores


def decode_folders(paths: Sequence[Path]) -> list[Path]:
    """Return the decode folders that paths stand for: the paths themselves, or folders below, as in runs.

    Raises:
        UserError: a path doesn't exist, or a run has no hypotheses yet.
    """
    folders: list[Path] = []
    for path in paths:
        places = [path.parent] if path.name == HYPOTHESES else [path]
        if near := near_path(path):
            raise UserError(f"{path}: expected a folder of hypotheses, found none{near}")
        if path.is_dir() and not (path / HYPOTHESES).is_file():
            places = sorted(x.parent for x in path.rglob(HYPOTHESES)) or places
            if places == [path] and RunFolder(path).options.exists():
                raise UserError(f"{path}: expected hypotheses, found none: run asr decode {path}")
        folders += places
    return list(dict.fromkeys(folders))


def common_utterances(
    names: Sequence[str], systems: Sequence[Sequence[Hypothesis]], restrict: bool
) -> list[set[str]]:
    """Return the ids on which each system is compared: all, or those that it shares with its group.

    Systems without common utterances, e.g. on two splits, belong to different groups.

    Raises:
        UserError: two systems share only some of their utterances, and `restrict` is false.
    """
    kept: list[set[str]] = [{hypothesis.id for hypothesis in system} for system in systems]
    for group in group_systems(kept):
        common = set.intersection(*(kept[index] for index in group))
        if not restrict:
            for index in group:
                try:
                    check_same_ids(kept[group[0]], kept[index], names[group[0]], names[index])
                except UserError as error:
                    raise UserError(f"{error}; common=true compares what they share") from None
        if len(group) > 1 and not common:
            raise UserError(f"{', '.join(names[index] for index in group)}: no utterance in common")
        for index in group:
            kept[index] = common
    return kept


def _restricted(result: Score, idents: set[str], options: ScoreOptions) -> Score:
    """Return the score of some of the utterances."""
    utterances = [utterance for utterance in result.utterances if utterance.id in idents]
    if len(utterances) == len(result.utterances):
        return result
    return pooled(utterances, options)


def rates_line(folder: Path) -> str:
    """Return the error rates of a decode folder with their intervals: `PER 5.41 % (4.90 … 5.93), WER …`.

    Without references, return why there are no rates.
    """
    try:
        result, _ = _scored(folder, read_hypotheses(folder / HYPOTHESES), ScoreOptions())
    except UserError as error:
        return f"none ({error})"
    shown = [(metric, result.rates[metric].estimate) for metric in result.shown]
    rates = [
        f"{metric.upper()} {percent(rate.value)} %" + (f" ({rate.ends(percent)})" if rate.interval else "")
        for metric, rate in shown
    ]
    closed = " (closed vocabulary)" if result.known_words and result.known_words.closed else ""
    return f"{', '.join(rates)}{closed}; details: asr score {folder}"


def _scored(
    folder: Path, hypotheses: list[Hypothesis], options: ScoreOptions
) -> tuple[Score, WordFilterRules | None]:
    """Return the score of hypotheses, and the recipe's scoring rules if they were applied."""
    path = folder / HYPOTHESES
    about = _read_decoding(folder)
    rules = None
    if options.word_filter and about.word_filter:
        rules = WordFilterRules.from_dict(about.word_filter, str(folder / DECODING))
    try:
        result = score(hypotheses, options, rules)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    counts = None
    if about.pronunciations:
        counts = WordCounts(**about.pronunciations)
    known = None
    if about.known_words:
        known = KnownWords(**about.known_words)
    result = replace(
        result, decode_s=about.decode_s, lexicon=about.lexicon, pronunciations=counts, known_words=known
    )
    return result, rules


def _score_folder(
    folder: Path, hypotheses: list[Hypothesis], options: ScoreOptions, console: Console
) -> Score:
    result, rules = _scored(folder, hypotheses, options)
    if options.trn:
        write_trn(folder, hypotheses)
    if options.ctm:  # first, so that an error leaves the previous score
        write_ctm_and_stm(folder, hypotheses)
    (folder / SCORE).unlink(missing_ok=True)
    if result.pronunciations:
        result.pronunciations.warn(str(folder))
    write_tables(folder, result)
    # Written last: if score.json exists, the other files are complete.
    used = {name: getattr(options, name) for name in affecting(ScoreOptions, "result", paths=FOLDER)}
    summary = result.as_dict() | {"hypotheses": file_digest(folder / HYPOTHESES), "options": used}
    if rules:
        summary["word_filter"] = asdict(rules)
    if options.hotwords and "wer" in result.rates:
        phrases = [" ".join(x.words) for x in read_hotwords(options.hotwords)]
        listed = scored_words(phrases, None, options.text, options.language)
        hits = ListedWords.of(result.utterances, {word for words in listed for word in words})
        summary["hotwords"] = hits.as_dict()
        console.print(f"{folder}: {options.hotwords}: {hits}", soft_wrap=True, markup=False, highlight=False)
    if options.official:
        manifest = Path(_read_decoding(folder).manifest or "")
        subsets = official_score(hypotheses, manifest, folder, samples=options.samples, seed=options.seed)
        print_official(console, folder, subsets)
        summary["official"] = {name: subset.as_dict() for name, subset in subsets.items()}
    write_record(summary, folder / SCORE)
    return result


def read_score(folder: Path) -> dict[str, Any]:
    """Read the score.json of a decode folder.

    Raises:
        UserError: the file is missing or damaged, doesn't belong to the hypotheses in the folder, or was
            written with other than the default options.
    """
    summary = read_record(folder / SCORE)
    digest = file_digest(folder / HYPOTHESES)
    defaults, used = vars(ScoreOptions()), summary.get("options", {})
    changed = {name: x for name, x in used.items() if name in defaults and x != defaults[name]}
    if summary.get("hypotheses", digest) != digest:
        found = "one of other hypotheses"
    elif changed:
        found = "one with " + " ".join(sorted(as_overrides(changed)))
    else:
        return summary
    raise UserError(
        f"{folder / SCORE}: expected the score of {HYPOTHESES}, found {found}: run asr score {folder}"
    )


def _read_decoding(folder: Path) -> DecodeRecord:
    """Return the content of decode.json; an empty record without the file."""
    path = folder / DECODING
    return read_as(DecodeRecord, path) if path.exists() else DecodeRecord(decode_s=None)
