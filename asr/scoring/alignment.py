"""Minimum-cost alignment of references with hypotheses, and its display."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import jiwer
import numpy as np
from rich.cells import cell_len
from rich.text import Text

Operation = Literal["=", "S", "D", "I"]
SUBSTITUTION, INDEL = 4, 3  # sclite's costs
UNCHANGED = jiwer.Compose([])
OPERATIONS: dict[str, Operation] = {"equal": "=", "substitute": "S", "delete": "D", "insert": "I"}
STYLES: dict[Operation, str] = {"=": "", "S": "bold yellow", "D": "bold red", "I": "bold magenta"}


@dataclass(frozen=True)
class Edit:
    """One column of an alignment: a reference token, a hypothesis token and their relation."""

    operation: Operation
    reference: str | None  # None for an insertion
    hypothesis: str | None  # None for a deletion


def align_all(
    references: list[list[str]], hypotheses: list[list[str]], costs: str = "unit"
) -> list[list[Edit]]:
    """Align the references and hypotheses of a corpus; tokens may contain spaces.

    Args:
        references: tokens of each reference.
        hypotheses: tokens of each hypothesis, in the same order.
        costs: `unit` (all errors cost the same, computed by jiwer) or `sclite` (see `align_sclite`).

    Example:
        >>> [edit.operation for edit in align_all([["go", "to", "New York"]], [["go", "New York"]])[0]]
        ['=', 'D', '=']
    """
    if costs == "sclite":
        return [align_sclite(*pair) for pair in zip(references, hypotheses, strict=True)]
    chunks = levenshtein(references, hypotheses).alignments
    return [_edits(*utterance) for utterance in zip(references, hypotheses, chunks, strict=True)]


def levenshtein(references: list[list[str]], hypotheses: list[list[str]]) -> jiwer.WordOutput:
    """Return jiwer's alignments and counts of a corpus; tokens are compared without any normalisation."""
    # jiwer declares strings, which its transforms would turn into the lists of tokens that are passed here.
    return jiwer.process_words(references, hypotheses, UNCHANGED, UNCHANGED)  # type: ignore[arg-type]


def _edits(reference: list[str], hypothesis: list[str], chunks: Iterable[jiwer.AlignmentChunk]) -> list[Edit]:
    return [
        Edit(OPERATIONS[chunk.type], spoken, recognised)
        for chunk in chunks
        for spoken, recognised in itertools.zip_longest(
            reference[chunk.ref_start_idx : chunk.ref_end_idx],
            hypothesis[chunk.hyp_start_idx : chunk.hyp_end_idx],
        )
    ]


def align_sclite(reference: Sequence[str], hypothesis: Sequence[str]) -> list[Edit]:
    """Align two token sequences as NIST's sclite does, with the same error counts.

    A substitution costs 4, a deletion or an insertion 3. Ties are broken from the end: a match or
    substitution before an insertion, an insertion before a deletion. The number of errors may exceed the
    Levenshtein distance, because two deletions and two insertions cost as much as three substitutions.
    For R reference and H hypothesis tokens, time is O(R·H) (vectorised over H) and memory R·H/4 bytes.

    Example:
        >>> [edit.operation for edit in align_sclite("a b c d e".split(), "a c d f e".split())]
        ['=', 'D', '=', '=', 'I', '=']
    """
    index: dict[str, int] = {}
    spoken = [index.setdefault(token, len(index)) for token in reference]
    numbers = np.array([index.setdefault(token, len(index)) for token in hypothesis], dtype=np.int64)
    inserted = INDEL * np.arange(len(numbers) + 1)
    cost = inserted
    pairs, insertions = [], []
    for token in spoken:
        above = cost
        pair = above[:-1] + np.where(numbers == token, 0, SUBSTITUTION)
        cost = above + INDEL
        cost[1:] = np.minimum(cost[1:], pair)
        # Insertions in the whole row at once: cost[h] = min over k ≤ h of cost[k] + 3(h − k).
        cost = np.minimum.accumulate(cost - inserted) + inserted
        pairs.append(np.packbits(pair == cost[1:]))
        insertions.append(np.packbits(cost[:-1] + INDEL == cost[1:]))
    edits: list[Edit] = []
    r, h = len(reference), len(hypothesis)
    while r or h:
        if r and h and _bit(pairs[r - 1], h - 1):
            r, h = r - 1, h - 1
            same = reference[r] == hypothesis[h]
            edits.append(Edit("=" if same else "S", reference[r], hypothesis[h]))
        elif h and (not r or _bit(insertions[r - 1], h - 1)):
            h -= 1
            edits.append(Edit("I", None, hypothesis[h]))
        else:
            r -= 1
            edits.append(Edit("D", reference[r], None))
    return edits[::-1]


def _bit(packed: np.ndarray, position: int) -> int:
    return int(packed[position >> 3]) >> (7 - (position & 7)) & 1


def render(edits: Sequence[Edit], width: int | None = None) -> Text:
    """Lay out REF, HYP and the operations (S, D, I) on three lines as sclite does, with errors coloured.

    Asterisks stand for a missing token. `render(edits).plain` is the text without colours.

    Args:
        edits: alignment of one utterance.
        width: columns of the terminal; a longer alignment wraps into further blocks of three lines.
    """
    blocks: list[list[Edit]] = [[]]
    used = len("REF:")
    for edit in edits:
        if width is not None and blocks[-1] and used + 1 + _width(edit) > width:
            blocks.append([])
            used = len("REF:")
        blocks[-1].append(edit)
        used += 1 + _width(edit)
    return Text("\n").join(_render_block(block) for block in blocks)


def _render_block(edits: Sequence[Edit]) -> Text:
    lines = [Text("REF:"), Text("HYP:"), Text("    ")]
    for edit in edits:
        width = _width(edit)
        cells = (
            "*" * width if edit.reference is None else edit.reference,
            "*" * width if edit.hypothesis is None else edit.hypothesis,
            "" if edit.operation == "=" else edit.operation,
        )
        for line, cell in zip(lines, cells, strict=True):
            line.append(" ")
            line.append(cell + " " * (width - cell_len(cell)), STYLES[edit.operation])
    for line in lines:
        line.rstrip()
    return Text("\n").join(lines)


def _width(edit: Edit) -> int:
    return max(cell_len(token) for token in (edit.reference, edit.hypothesis) if token is not None)
