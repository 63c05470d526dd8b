"""Scoring of trn, CTM and STM files, and export of our hypotheses as CTM and STM."""

from collections.abc import Sequence
from pathlib import Path

from asr.errors import UserError
from asr.scoring.ctm import CtmWord, read_ctm, write_ctm
from asr.scoring.glm import read_glm
from asr.scoring.hub5 import NO_RULES, score_segments
from asr.scoring.hypotheses import Hypothesis
from asr.scoring.score import Score, UtteranceScore, WordFilter, pooled, score
from asr.scoring.stm import Stm, StmSegment, read_stm, write_stm
from asr.scoring.trn import pair_trn

REFERENCE_OF = {".trn": ".trn", ".ctm": ".stm"}  # suffix of the reference by that of the hypothesis
CHANNEL = "A"


def are_plain(paths: Sequence[Path]) -> bool:
    """Whether the paths are files in NIST's formats rather than decode folders."""
    return any(path.suffix in (".trn", ".ctm", ".stm") for path in paths)


def score_files(
    paths: Sequence[Path],
    *,
    glm: str = "",
    ignore_case: bool = True,
    filter_words: WordFilter | None = None,
    samples: int = 1000,
    seed: int = 0,
) -> Score:
    """Score `hyp.trn ref.trn` or `hyp.ctm ref.stm` with sclite's costs, the latter with the rules of `glm`.

    Raises:
        UserError: the files are of other types or malformed, or an utterance is in one file only.
    """
    if len(paths) != 2 or REFERENCE_OF.get(paths[0].suffix) != paths[1].suffix:
        found = " ".join(map(str, paths))
        raise UserError(f"expected `hyp.trn ref.trn` or `hyp.ctm ref.stm`, found `{found}`")
    heard, reference = paths
    if heard.suffix == ".trn":
        if glm:
            raise UserError(f"glm={glm}: mapping rules apply to hyp.ctm and ref.stm, found {heard}")
        hypotheses = pair_trn(heard, reference, ignore_case=ignore_case)
        try:
            return score(
                hypotheses,
                align="sclite",
                filter_words=filter_words,
                ignore_case=ignore_case,
                samples=samples,
                seed=seed,
            )
        except UserError as error:
            raise UserError(f"{reference}: {error}") from error
    rules = [read_glm(glm, side) if glm else NO_RULES for side in ("reference", "hypothesis")]
    segments = score_segments(read_stm(reference), read_ctm(heard), *rules, progress=True)
    utterances = [
        UtteranceScore(x.segment.name, x.segment.speaker, {"wer": x.edits}, {"wer": x.counts})
        for x in segments
    ]
    if not utterances:
        raise UserError(f"{reference}: expected segments to score, found only ignored ones")
    return pooled(utterances, align="sclite", samples=samples, seed=seed)


def write_ctm_and_stm(folder: Path, hypotheses: Sequence[Hypothesis]) -> None:
    """Write hyp.ctm and ref.stm for other scoring programs, with each utterance as a separate recording.

    Words without times are spread evenly over their utterance.

    Raises:
        UserError: an utterance has no reference or recognised words.
    """
    words, segments = [], []
    for hypothesis in hypotheses:
        if hypothesis.text is None or hypothesis.reference is None:
            raise UserError(
                f"utterance {hypothesis.id!r}: CTM and STM files need words, found only {hypothesis.unit}s"
            )
        words += [
            CtmWord(
                hypothesis.id,
                CHANNEL,
                word["start_s"],
                word["end_s"] - word["start_s"],
                word["word"],
                word.get("confidence"),
            )
            for word in hypothesis.timed_words()
        ]
        speaker = "_".join(hypothesis.speaker.split()) or "unknown"
        segment = StmSegment(
            hypothesis.id, CHANNEL, speaker, 0.0, hypothesis.duration_s, "", hypothesis.reference
        )
        segments.append(segment)
    write_ctm(folder / "hyp.ctm", words)
    write_stm(folder / "ref.stm", Stm(sorted(segments, key=lambda segment: segment.file), []))
