"""Minimum-cost alignment of a reference and a hypothesis, and how it is shown."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from rich.cells import cell_len
from rich.text import Text

Operation = Literal["=", "S", "D", "I"]
SUBSTITUTION, INDEL = 4, 3  # costs, as in sclite
STYLES: dict[Operation, str] = {"=": "", "S": "bold yellow", "D": "bold red", "I": "bold magenta"}


@dataclass(frozen=True)
class Edit:
    """One column of an alignment: the reference's token, the hypothesis' token, what became of it."""

    operation: Operation
    reference: str | None  # None for an insertion
    hypothesis: str | None  # None for a deletion


def align(reference: Sequence[str], hypothesis: Sequence[str]) -> list[Edit]:
    """Align two token sequences as NIST's sclite does, so that the counts are its counts.

    Costs are 4 for a substitution, 3 for a deletion or an insertion; of alignments of the same cost a pair
    is preferred to an insertion, an insertion to a deletion, from the end. The number of errors may be
    higher than the Levenshtein distance: two deletions and two insertions cost what three substitutions do.
    Time is that of the R × H table, a row at a time; R·H/4 bytes are held.

    Example:
        >>> [edit.operation for edit in align("a b c d e".split(), "a c d f e".split())]
        ['=', 'D', '=', '=', 'I', '=']
    """
    index: dict[str, int] = {}
    spoken = [index.setdefault(token, len(index)) for token in reference]
    heard = np.array([index.setdefault(token, len(index)) for token in hypothesis], dtype=np.int64)
    inserted = INDEL * np.arange(len(heard) + 1)
    cost = inserted
    pairs, insertions = [], []
    for token in spoken:
        above = cost
        pair = above[:-1] + np.where(heard == token, 0, SUBSTITUTION)
        cost = above + INDEL
        cost[1:] = np.minimum(cost[1:], pair)
        # What cells hand on to the right, all at once: cost[h] = min over k ≤ h of cost[k] + 3(h − k).
        cost = np.minimum.accumulate(cost - inserted) + inserted
        pairs.append(np.packbits(pair == cost[1:]))
        insertions.append(np.packbits(cost[:-1] + INDEL == cost[1:]))
    return _trace(reference, hypothesis, pairs, insertions)


def _trace(
    reference: Sequence[str],
    hypothesis: Sequence[str],
    pairs: list[np.ndarray],
    insertions: list[np.ndarray],
) -> list[Edit]:
    edits: list[Edit] = []
    r, h = len(reference), len(hypothesis)
    while r or h:
        if r and h and _bit(pairs[r - 1], h - 1):
            r, h = r - 1, h - 1
            spoken, heard = reference[r], hypothesis[h]
            edits.append(Edit("=" if spoken == heard else "S", spoken, heard))
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
    """Set REF, HYP and the operations (S, D, I) below each other as sclite does, erroneous tokens coloured.

    Asterisks stand where one side has no token. `render(edits).plain` is the text without colours.

    Args:
        edits: an alignment.
        width: columns of the terminal; a longer alignment goes on in further blocks of three lines.
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
