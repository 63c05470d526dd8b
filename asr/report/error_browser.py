"""Data for the error browser: the worst utterances of every system with alignments and audio."""

import io
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import soundfile

from asr.console import counted
from asr.data.audio import load_cut
from asr.data.manifest import read_cuts
from asr.errors import UserError
from asr.experiment.options import OFFICIAL
from asr.experiment.records import Evaluation
from asr.experiment.results import Results
from asr.records.run_folder import HYPOTHESES, SCORE
from asr.report.figure import data_uri
from asr.scoring.alignment import Edit
from asr.scoring.hypotheses import read_hypotheses
from asr.scoring.options import ScoreOptions
from asr.scoring.run import read_score
from asr.scoring.score import Metric, Score, UtteranceScore, badness, score
from asr.scoring.word_filter import WordFilterRules

log = logging.getLogger(__name__)

TOKENS = 60_000  # aligned tokens over all systems, about a megabyte
AT_LEAST = 5  # utterances per system, however long
PER_SPEAKER = 3  # worst utterances of every speaker, if there is space
CONFUSIONS = 10  # the most frequent edits to list, of each kind
AUDIO_RATE = 16000  # Hz
AUDIO_BYTES = 6_000_000  # total size of all players


def browse(results: Results, folder: Path, audio: int) -> dict[str, Any] | None:
    """Return all systems with their worst utterances, some with audio; None without hypotheses.

    The result is plain data; the page displays every string in it as text, never as markup.

    Args:
        results: results of the comparison.
        folder: base of the evaluations' relative folders.
        audio: number of each system's worst utterances with an audio player.
    """
    decoded = first_seeds(results) if results.data and "exchange" not in results.protocol else []
    evaluations = [x for x in decoded if (folder / x.folder / HYPOTHESES).exists()]
    if missing := len(decoded) - len(evaluations):
        which = f"{HYPOTHESES} is missing for {missing} of {counted(len(decoded), 'system')}"
        log.warning("report: %s: %s; their worst utterances are left out", folder, which)
    scores = [(evaluation, _score(folder / evaluation.folder)) for evaluation in evaluations]
    systems = [
        _system(results, evaluation, *score, TOKENS // len(scores)) for evaluation, score in scores if score
    ]
    if not systems:
        return None
    return {"systems": systems, "audio": _audio(results, systems, audio)}


def first_seeds(results: Results) -> list[Evaluation]:
    """Return the finished evaluations of every candidate's first seed, as trained before exchanged."""
    first: dict[str, int] = {}
    for evaluation in results.evaluations:
        if evaluation.status == "done":
            first.setdefault(evaluation.candidate, evaluation.seed)
    chosen = [x for x in results.evaluations if x.status == "done" and x.seed == first[x.candidate]]
    return sorted(chosen, key=lambda x: not results.is_own(x))


def _score(folder: Path) -> tuple[Score, dict[str, str]] | None:
    """Return the score of a decode folder and the words of each reference; None if it can't be scored."""
    try:
        hypotheses = read_hypotheses(folder / HYPOTHESES)
        summary = read_score(folder) if (folder / SCORE).exists() else {}
        rules = summary.get("word_filter")
        word_filter = WordFilterRules.from_dict(rules, str(folder / SCORE)) if rules else None
        spoken = {x.id: x.reference or "" for x in hypotheses}
        return score(hypotheses, ScoreOptions(samples=1), word_filter), spoken
    except UserError as error:
        log.warning("report: %s", error)
        return None


def _system(
    results: Results, evaluation: Evaluation, score: Score, spoken: dict[str, str], tokens: int
) -> dict[str, Any]:
    metric = _metric(results, score)
    name = evaluation.candidate
    if not results.is_own(evaluation):
        name += f", run with {evaluation.variant}"
    ordered = sorted(score.utterances, key=lambda entry: badness(entry, metric))
    chosen = _choose(ordered, metric, tokens)
    return {
        "name": name,
        "own": results.is_own(evaluation),
        "split": evaluation.split,
        "metric": metric.upper(),
        "of": len(score.utterances),
        "confusions": _confusions(score, metric),
        "utterances": [_utterance(entry, metric, spoken[entry.id]) for entry in chosen],
    }


def _metric(results: Results, score: Score) -> Metric:
    """Return the metric to align by: the main one, but words instead of characters."""
    heading = next(iter(results.metrics()), "")
    wanted = "wer" if heading.startswith(OFFICIAL) else heading
    legible = [metric for metric in score.rates if metric != "cer"]
    return next((metric for metric in legible if metric == wanted), legible[0])


def _choose(ordered: list[UtteranceScore], metric: Metric, tokens: int) -> list[UtteranceScore]:
    """Return the worst utterances, then the worst of every speaker, then the next worst, as space allows."""
    seen: Counter[str] = Counter()
    priority = {}
    for rank, entry in enumerate(ordered):
        seen[entry.speaker] += 1
        group = 0 if rank < AT_LEAST else 1 if seen[entry.speaker] <= PER_SPEAKER else 2
        priority[entry.id] = (group, rank)
    kept: list[UtteranceScore] = []
    used = 0
    for entry in sorted(ordered, key=lambda entry: priority[entry.id]):
        used += len(entry.alignments[metric])
        if used > tokens and len(kept) >= AT_LEAST:
            break
        kept.append(entry)
    return sorted(kept, key=lambda entry: priority[entry.id][1])


def _utterance(entry: UtteranceScore, metric: Metric, spoken: str) -> dict[str, Any]:
    """Return an utterance's alignment; if of phones, also the alignment of words, or the reference words."""
    counts = entry.counts[metric]
    words = entry.alignments.get("wer") if metric == "per" else None
    return {
        "id": entry.id,
        "speaker": entry.speaker,
        "counts": [counts.substitutions, counts.deletions, counts.insertions, counts.length],
        "edits": [_edit(edit) for edit in entry.alignments[metric]],
        "words": [_edit(edit) for edit in words or ()],
        "spoken": spoken if metric == "per" and not words else "",
    }


def _edit(edit: Edit) -> list[str | None] | str:
    # Most tokens are correct, so those are stored as plain strings.
    if edit.operation == "=" and edit.reference == edit.hypothesis and edit.reference is not None:
        return edit.reference
    return [edit.operation, edit.reference, edit.hypothesis]


def _confusions(score: Score, metric: Metric) -> dict[str, list[list[str | int | None]]]:
    """Return the most frequent substitutions, deletions and insertions over all utterances."""
    kinds: dict[str, Counter[tuple[str | None, str | None]]] = {kind: Counter() for kind in "SDI"}
    for entry in score.utterances:
        for edit in entry.alignments[metric]:
            if edit.operation != "=":
                kinds[edit.operation][edit.reference, edit.hypothesis] += 1
    return {
        kind: [[reference, heard, times] for (reference, heard), times in counts.most_common(CONFUSIONS)]
        for kind, counts in kinds.items()
    }


def _audio(results: Results, systems: list[dict[str, Any]], count: int) -> dict[str, str]:
    """Return data URIs by `<split>/<utterance>` for the `count` worst utterances of each system."""
    wanted = {
        (system["split"], system["utterances"][rank]["id"]): None
        for rank in range(count)  # each system's worst first, in case space runs out
        for system in systems
        if system["own"] and rank < len(system["utterances"])
    }
    cuts = {split: _cuts(results, split) for split in dict.fromkeys(split for split, _ in wanted)}
    players: dict[str, str] = {}
    used = 0
    for split, ident in wanted:
        if ident not in cuts[split]:
            continue
        try:
            uri = _sound(cuts[split][ident])
        except UserError as error:
            log.warning("report: no audio for %s: %s", ident, error)
            continue
        used += len(uri)
        if used > AUDIO_BYTES:
            break
        players[f"{split}/{ident}"] = uri
    return players


def _cuts(results: Results, split: str) -> dict[str, Any]:
    if split not in results.data:
        return {}
    try:
        return {cut.id: cut for cut in read_cuts(results.data[split].manifest)}
    except UserError as error:
        log.warning("report: no audio for %s: %s", split, error)
        return {}


def _sound(cut: Any) -> str:
    """Return an utterance as a data URI of MP3 audio, 5 KB per second before base64."""
    buffer = io.BytesIO()
    soundfile.write(
        buffer,
        load_cut(cut, AUDIO_RATE),
        AUDIO_RATE,
        format="MP3",
        subtype="MPEG_LAYER_III",
        bitrate_mode="CONSTANT",
        compression_level=0.8,
    )
    return data_uri(buffer.getvalue(), "audio/mpeg")
