"""Hypotheses and references in files of other programs (trn, CTM and STM), and ours in theirs."""

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

REFERENCE_OF = {".trn": ".trn", ".ctm": ".stm"}  # by the suffix of the hypothesis
CHANNEL = "A"


def are_plain(paths: Sequence[Path]) -> bool:
    """Whether these are a hypothesis and a reference in NIST's formats, rather than folders of ours."""
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
    """Score `hyp.trn ref.trn` or `hyp.ctm ref.stm`; the latter with mapping rules, where there are some.

    Raises:
        UserError: other files, what they hold can't be read, or utterances that one of them lacks (listed).
    """
    if len(paths) != 2 or REFERENCE_OF.get(paths[0].suffix) != paths[1].suffix:
        found = " ".join(map(str, paths))
        raise UserError(f"expected `hyp.trn ref.trn` or `hyp.ctm ref.stm`, found `{found}`")
    heard, reference = paths
    if heard.suffix == ".trn":
        if glm:
            raise UserError(f"glm={glm}: mapping rules go with hyp.ctm and ref.stm, found {heard}")
        hypotheses = pair_trn(heard, reference)
        try:
            return score(
                hypotheses, filter_words=filter_words, ignore_case=ignore_case, samples=samples, seed=seed
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
        raise UserError(f"{reference}: expected segments to score, found none that isn't ignored")
    return pooled(utterances, samples=samples, seed=seed)


def write_ctm_and_stm(folder: Path, hypotheses: Sequence[Hypothesis]) -> None:
    """Write hyp.ctm and ref.stm, every utterance a recording of its own, for sclite or other programs.

    Words without times share their utterance evenly.

    Raises:
        UserError: an utterance without reference or recognised words.
    """
    words, segments = [], []
    for hypothesis in hypotheses:
        if hypothesis.text is None or hypothesis.reference is None:
            raise UserError(
                f"utterance {hypothesis.id!r}: CTM and STM files need words, found {hypothesis.unit}s alone"
            )
        words += _ctm_words(hypothesis)
        speaker = "_".join(hypothesis.speaker.split()) or "unknown"
        segment = StmSegment(
            hypothesis.id, CHANNEL, speaker, 0.0, hypothesis.duration_s, "", hypothesis.reference
        )
        segments.append(segment)
    write_ctm(folder / "hyp.ctm", words)
    write_stm(folder / "ref.stm", Stm(sorted(segments, key=lambda segment: segment.file), []))


def _ctm_words(hypothesis: Hypothesis) -> list[CtmWord]:
    if hypothesis.words is not None:
        return [
            CtmWord(
                hypothesis.id,
                CHANNEL,
                word["start_s"],
                word["end_s"] - word["start_s"],
                word["word"],
                word.get("confidence"),
            )
            for word in hypothesis.words
        ]
    texts = (hypothesis.text or "").split()
    share_s = hypothesis.duration_s / max(len(texts), 1)
    return [CtmWord(hypothesis.id, CHANNEL, i * share_s, share_s, text, None) for i, text in enumerate(texts)]
