"""Scoring of trn and plain text files, and export of our hypotheses as CTM and STM."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from asr.errors import UserError
from asr.scoring.ctm import CtmWord, write_ctm
from asr.scoring.hypotheses import Hypothesis
from asr.scoring.options import ScoreOptions
from asr.scoring.score import Score, score
from asr.scoring.stm import Stm, StmSegment, write_stm
from asr.scoring.trn import BY_SCLITE, check_same_ids, distinct_names, ident_key, is_trn, literal, pair_trn
from asr.text.files import one_field, read_text
from asr.text.normalise import plain_text

CHANNEL = "A"
IDENT = re.compile(r"[\d_-]|.\.\w{2,5}$")  # distinguishes ids from the first words of a perfect hypothesis


def are_plain(paths: Sequence[Path]) -> bool:
    """Whether the paths are files in NIST's formats or plain text, rather than decode folders."""
    return any(path.suffix in (".trn", ".ctm", ".stm", ".txt") for path in paths) or all(
        path.is_file() and path.suffix != ".jsonl" for path in paths
    )


def score_files(paths: Sequence[Path], options: ScoreOptions, console: Console) -> Score:
    """Score two files, `hyp.trn ref.trn`; or `ref hyp` of plain text, and print how these are read.

    Files named `.hyp` and `.ref` may be in any order. trn is always scored with sclite's costs.

    Raises:
        UserError: the files are CTM and STM, which sclite scores; they are malformed; or an utterance is in
            one file only.
    """
    hypothesis, reference = in_order(paths)
    trn = hypothesis.suffix == ".trn"
    layout = ""
    if not trn and is_trn(reference) and is_trn(hypothesis):
        layout, trn = "as trn, `text (id)`", True
    if trn:
        hypotheses = pair_trn(hypothesis, reference)
    else:
        hypotheses, layout = pair_text(reference, hypothesis)
    if layout:
        line = f"reference {reference}, hypotheses {hypothesis}: read {layout}"
        console.print(line, soft_wrap=True, markup=False)
    try:
        return score(hypotheses, replace(options, align="sclite") if trn else options)
    except UserError as error:
        raise UserError(f"{reference}: {error}") from error


def in_order(paths: Sequence[Path]) -> tuple[Path, Path]:
    """Return hypothesis file and reference file; raise UserError for files of other types."""
    suffixes = [path.suffix for path in paths]
    if {".ctm", ".stm"} & {*suffixes}:
        raise UserError(f"{paths[0]}: {BY_SCLITE}: sclite -r ref.stm stm -h hyp.ctm ctm")
    text = ".trn" not in suffixes
    if len(paths) != 2 or not (text or suffixes[0] == suffixes[1]):
        found = " ".join(map(str, paths))
        raise UserError(f"expected `hyp.trn ref.trn` or `ref.txt hyp.txt`, found `{found}`")
    one, other = paths
    named = suffixes[0] == ".hyp" or suffixes[1] == ".ref"
    return (one, other) if named or not text else (other, one)


def pair_text(reference: Path, hypothesis: Path) -> tuple[list[Hypothesis], str]:
    """Read two text files with an utterance per line; return the utterances and a description of the layout.

    First fields are ids if all of them contain a digit, `-`, `_` or a suffix, and at least half of them are
    in both files, in any order, compared as by `ident_key`. Otherwise, ids are line numbers.

    Raises:
        UserError: a file is missing or not UTF-8, the files differ in length, or an id is repeated or in one
            file only.
    """
    files = (read_text(path).removesuffix("\n").split("\n") for path in (reference, hypothesis))
    spoken, heard = ([plain_text(line) for line in lines] for lines in files)
    first, other = ([(line.split() or [""])[0] for line in lines] for lines in (spoken, heard))
    key = ident_key(first, other)
    shared = len({*map(key, first)} & {*map(key, other)})
    if all(map(IDENT.search, [*first, *other])) and 2 * shared >= max(len(first), len(other)):
        for path, fields in ((reference, first), (hypothesis, other)):
            if repeated := [ident for ident, count in Counter(fields).items() if count > 1]:
                raise UserError(f"{path}: expected each utterance once, found {repeated[0]!r} again")
        check_same_ids(first, other, str(reference), str(hypothesis), key=key)
        idents, layout = first, "as `id text`"
        spoken, heard = ([" ".join(line.split()[1:]) for line in lines] for lines in (spoken, heard))
        hypotheses = dict(zip(map(key, other), heard, strict=True))
        heard = [hypotheses[key(ident)] for ident in first]
    elif len(spoken) != len(heard):
        raise UserError(
            f"{hypothesis}: expected a line for each of the {len(spoken)} in {reference}, found {len(heard)}"
        )
    else:
        idents, layout = [str(number) for number in range(1, len(spoken) + 1)], "line by line"
    utterances = [
        Hypothesis(ident, "unknown", 0.0, text, None, [], [], recognised, "piece")
        for ident, text, recognised in zip(idents, spoken, heard, strict=True)
    ]
    return utterances, layout


def write_ctm_and_stm(folder: Path, hypotheses: Sequence[Hypothesis]) -> None:
    """Write hyp.ctm and ref.stm for other scoring programs, with each utterance as a separate recording.

    Words without times are spread evenly over their utterance; markup is escaped by `literal`.

    Raises:
        UserError: an utterance has no reference or recognised words, or sclite couldn't tell two ids apart.
    """
    words, segments = [], []
    distinct_names({hypothesis.id: one_field(hypothesis.id) for hypothesis in hypotheses})
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
                literal(word["word"]),
                word.get("confidence"),
            )
            for word in hypothesis.timed_words()
        ]
        speaker = "_".join(hypothesis.speaker.split()) or "unknown"
        segment = StmSegment(
            hypothesis.id, CHANNEL, speaker, 0.0, hypothesis.duration_s, "", literal(hypothesis.reference)
        )
        segments.append(segment)
    write_ctm(folder / "hyp.ctm", words)
    write_stm(folder / "ref.stm", Stm(sorted(segments, key=lambda segment: segment.file), []))
