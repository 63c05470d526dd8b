"""GLUE's tasks: their files, columns, classes and scores (Wang et al. 2019)."""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asr_recipes.questions.files import RawExample, find_data, read_records

from asr.errors import UserError

logger = logging.getLogger(__name__)

ENTAILMENT = ("entailment", "not_entailment")
SHOWN = 5  # number of left-out lines that a warning names


@dataclass(frozen=True)
class Format:
    """A task of GLUE.

    Attributes:
        folder: folder in the public archive.
        first, second: columns of the text or texts, in the public table and in `datasets`; `second` may be
            empty.
        label: columns of the label.
        classes: names of the classes in GLUE's order; empty: the label is a number.
        metrics: scores, see `asr_recipes.questions.metrics`; the first is that of Table 4.
        files: names of the evaluation set, without suffix.
        header: names of the columns where the public table has no header line.
    """

    folder: str
    first: tuple[str, ...]
    second: tuple[str, ...]
    label: tuple[str, ...]
    classes: tuple[str, ...]
    metrics: tuple[str, ...]
    files: tuple[str, ...] = ("dev", "validation")
    header: tuple[str, ...] = ()


def _mnli(name: str) -> Format:
    return Format(
        "MNLI",
        ("sentence1", "premise"),
        ("sentence2", "hypothesis"),
        ("gold_label", "label"),
        ("entailment", "neutral", "contradiction"),
        ("accuracy",),
        (f"dev_{name}", f"validation_{name}", f"multinli_1.0_dev_{name}"),
    )


ONE, TWO, LABEL, ACCURACY = ("sentence1",), ("sentence2",), ("label",), ("accuracy",)
TASKS: dict[str, Format] = {
    "cola": Format(
        "CoLA",
        ("sentence",),
        (),
        LABEL,
        ("unacceptable", "acceptable"),
        ("matthews", "accuracy"),
        header=("source", "label", "mark", "sentence"),
    ),
    "sst2": Format("SST-2", ("sentence",), (), LABEL, ("negative", "positive"), ACCURACY),
    "mrpc": Format(
        "MRPC",
        ("#1 String", "sentence1"),
        ("#2 String", "sentence2"),
        ("Quality", "label"),
        ("not_equivalent", "equivalent"),
        ("accuracy", "f1"),
        ("dev", "validation", "msr_paraphrase_test"),
    ),
    "stsb": Format("STS-B", ONE, TWO, ("score", "label"), (), ("pearson", "spearman")),
    "qqp": Format(
        "QQP",
        ("question1",),
        ("question2",),
        ("is_duplicate", "label"),
        ("not_duplicate", "duplicate"),
        ("accuracy", "f1"),
    ),
    "mnli": _mnli("matched"),
    "mnli-mm": _mnli("mismatched"),
    "qnli": Format("QNLI", ("question",), ("sentence",), LABEL, ENTAILMENT, ACCURACY),
    "rte": Format("RTE", ONE, TWO, LABEL, ENTAILMENT, ACCURACY),
    "wnli": Format("WNLI", ONE, TWO, LABEL, ("not_entailment", "entailment"), ACCURACY),
}


@dataclass(frozen=True)
class Example:
    """A text or a pair of texts, with its class (index into `Format.classes`) or number."""

    first: str
    second: str | None
    label: float


def find_glue(task: str, data: Path) -> Path:
    """Return the file of a task's evaluation set; see `find_data`."""
    form = TASKS[task]
    return find_data(data, (form.folder, task), form.files, f"{form.folder}/{form.files[0]}.tsv")


def read_glue(task: str, path: Path) -> list[Example]:
    """Return the examples of a task.

    As in GLUE's own reader, a row that lacks a column is left out; so is one whose annotators didn't agree
    (`-` in MultiNLI). A warning counts them.

    Raises:
        UserError: no example, a column that no row has, or a label that the task doesn't have.
    """
    form = TASKS[task]
    columns = [names for names in (form.first, form.second, form.label) if names]
    examples, left_out = [], []
    for record in read_records(path, form.header, form.files):
        values = [record.get(names) for names in columns]
        if None in values or values[-1] == "-":
            left_out.append((record, columns[[*values, None].index(None) % len(columns)]))
            continue
        first, *second = (
            _text(value, names, record) for value, names in zip(values[:-1], columns, strict=False)
        )
        examples.append(Example(first, second[0] if second else None, _label(values[-1], form, record)))
    if not examples and left_out:
        record, names = left_out[0]
        found = ", ".join(record.fields)[:80] or "none"
        raise UserError(f"{record.where}: expected a column {' or '.join(names)}, found {found}")
    if not examples:
        raise UserError(f"{path}: expected examples of {task}, found none")
    if left_out:
        lines = ", ".join(record.where.removeprefix(f"{path}:").strip() for record, _ in left_out[:SHOWN])
        more = ", …" if len(left_out) > SHOWN else ""
        rows = len(left_out) + len(examples)
        logger.warning(f"{path}: left out {len(left_out)} of {rows} rows, which lack a field: {lines}{more}")
    return examples


def _text(value: Any, names: Sequence[str], record: RawExample) -> str:
    if not isinstance(value, str):
        raise UserError(f"{record.where}: expected text as {names[0]}, found {str(value)[:60]!r}")
    return value


def _label(value: Any, form: Format, record: RawExample) -> float:
    """Return a label, given as a number or as the name of a class."""
    if value in form.classes:
        return form.classes.index(value)
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if form.classes and number not in range(len(form.classes)):
        raise UserError(
            f"{record.where}: expected a label {', '.join(form.classes)} or 0 … {len(form.classes) - 1}, "
            f"found {str(value)[:60]!r}"
        )
    if not math.isfinite(number):
        raise UserError(f"{record.where}: expected a number as label, found {str(value)[:60]!r}")
    return number


def output_of_classes(classes: Sequence[str], names: Sequence[str], source: str) -> list[int]:
    """Return the model's output of each class.

    Args:
        classes: names of the task's classes in GLUE's order.
        names: names of the model's outputs in their order; `LABEL_0`, … stand for GLUE's order.
        source: file or option with the names, for the message.

    Raises:
        UserError: the names aren't those of the classes.

    Example:
        >>> output_of_classes(("entailment", "neutral"), ("NEUTRAL", "ENTAILMENT"), "config.json")
        [1, 0]
    """
    outputs = [name.lower().replace("-", "_").replace(" ", "_") for name in names]
    if outputs == [f"label_{index}" for index in range(len(classes))]:
        return list(range(len(classes)))
    if sorted(outputs) != sorted(classes):
        raise UserError(
            f"{source}: expected outputs {', '.join(classes)}, found {', '.join(names)[:80]}; "
            "name them with recipe.labels="
        )
    return [outputs.index(name) for name in classes]
