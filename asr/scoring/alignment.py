"""Minimum-edit alignment of a reference and a hypothesis, and how it is shown."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import jiwer
from rich.cells import cell_len
from rich.text import Text

Operation = Literal["=", "S", "D", "I"]
STYLES: dict[Operation, str] = {"=": "", "S": "bold yellow", "D": "bold red", "I": "bold magenta"}


@dataclass(frozen=True)
class Edit:
    """One column of an alignment: the reference's token, the hypothesis' token, what became of it."""

    operation: Operation
    reference: str | None  # None for an insertion
    hypothesis: str | None  # None for a deletion


def align(reference: Sequence[str], hypothesis: Sequence[str]) -> list[Edit]:
    """Align two token sequences at unit costs for substitution, deletion and insertion.

    Among alignments of the same cost jiwer's choice is taken; the number of errors doesn't depend on it.

    Example:
        >>> [edit.operation for edit in align("a b c d e".split(), "a c d f e".split())]
        ['=', 'D', '=', '=', 'I', '=']
    """
    index: dict[str, int] = {}
    spoken = "".join(_stand_in(index.setdefault(token, len(index))) for token in reference)
    heard = "".join(_stand_in(index.setdefault(token, len(index))) for token in hypothesis)
    characters = jiwer.ReduceToListOfListOfChars()
    edits: list[Edit] = []
    for chunk in jiwer.process_characters([spoken], [heard], characters, characters).alignments[0]:
        r = reference[chunk.ref_start_idx : chunk.ref_end_idx]
        h = hypothesis[chunk.hyp_start_idx : chunk.hyp_end_idx]
        match chunk.type:
            case "equal":
                edits += [Edit("=", *pair) for pair in zip(r, h, strict=True)]
            case "substitute":
                edits += [Edit("S", *pair) for pair in zip(r, h, strict=True)]
            case "delete":
                edits += [Edit("D", token, None) for token in r]
            case "insert":
                edits += [Edit("I", None, token) for token in h]
    return edits


def _stand_in(index: int) -> str:
    # jiwer takes sentences, in which a token that holds a space (or is one, in CER) would be lost:
    # every distinct token is handed over as one character, above the surrogates and all white space.
    return chr(0x10000 + index)


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
