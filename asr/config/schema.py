"""Options as fields of dataclasses: meaning, unit, range and default in one place."""

import dataclasses
import inspect
import re
import typing
from collections.abc import Iterable, Iterator
from typing import Any

import omegaconf

from asr.errors import UserError

LARGEST = 1e9  # default maximum of a number; lower ones are shown by --help


@dataclasses.dataclass(frozen=True)
class Range:
    """Values that an option accepts: numbers in [minimum, maximum], or one of the choices."""

    minimum: float = 0
    maximum: float = LARGEST
    choices: tuple[Any, ...] = ()

    def describe(self) -> str:
        """Return the range of numbers in words, e.g. `0 … 1` or `≥ 1`."""
        if self.maximum < LARGEST:
            return f"{self.minimum:.12g} … {self.maximum:.12g}"
        return f"≥ {self.minimum:.12g}" if self.minimum > -LARGEST else ""

    def expected(self, value: Any) -> str:
        """Return what is expected instead of `value`; empty if it is accepted."""
        if self.choices:
            known = ", ".join(str(choice) or "nothing" for choice in self.choices)
            return "" if value in self.choices else f"one of {known}"
        if isinstance(value, bool) or not isinstance(value, int | float):
            return ""
        if self.minimum <= value <= self.maximum:  # false for NaN
            return ""
        whole = f"{self.minimum:.12g} … {self.maximum:.12g}"
        return f"a number {whole if value > self.maximum else self.describe() or whole}"


def option(
    default: Any,
    *,
    help: str,
    unit: str = "",
    minimum: float = 0,
    maximum: float = LARGEST,
    choices: Iterable[Any] = (),
) -> Any:
    """Return a dataclass field for an option.

    Args:
        default: default value; None is written `null`.
        help: meaning, for `--help`.
        unit: unit of the value, for `--help`.
        minimum: smallest number accepted, also within lists.
        maximum: largest number accepted, also within lists.
        choices: values accepted; empty: all of the type.
    """
    metadata = {"help": help, "unit": unit, "range": Range(minimum, maximum, tuple(choices))}
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=lambda: type(default)(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def describe(schema: Any, prefix: str = "") -> Iterator[tuple[str, str, str, str]]:
    """Yield (key, type, default, help) of every option, inherited ones last; nested keys have dots."""
    defaults = schema() if isinstance(schema, type) else schema
    hints = typing.get_type_hints(type(defaults))
    own = inspect.get_annotations(type(defaults))
    for field in sorted(dataclasses.fields(defaults), key=lambda field: field.name not in own):
        kind, default = hints[field.name], getattr(defaults, field.name)
        key = prefix + field.name
        if dataclasses.is_dataclass(default):
            yield from describe(default, key + ".")
            continue
        shown = "required" if default == omegaconf.MISSING else str(default)
        text = field.metadata.get("help", "")
        unit = field.metadata.get("unit", "")
        name = kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", "")
        if re.search(r"\b(int|float)\b", name) and not accepted(field).choices:
            name = f"{name} {accepted(field).describe()}".strip()
        yield key, name, shown, f"{text} [{unit}]" if unit else text


def accepted(field: "dataclasses.Field[Any]") -> Range:
    """Return the values that an option accepts."""
    return typing.cast(Range, field.metadata.get("range", Range()))


def check(options: Any, prefix: str = "") -> None:
    """Check the range of every option, then call `check(self)` of the schema and its bases, if defined.

    Raises:
        UserError: a value is out of its range, or options don't fit together.
    """
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if dataclasses.is_dataclass(value):
            check(value, f"{prefix}{field.name}.")
            continue
        for item in value if isinstance(value, list) else [value]:
            # OmegaConf accepts a mapping as an item of a typed list.
            if isinstance(item, dict | list) and "Any" not in str(field.type):
                raise UserError(f"{prefix}{field.name}={item}: expected a single value")
            if item is not None and (expected := accepted(field).expected(item)):
                raise UserError(f"{prefix}{field.name}={item}: expected {expected}")
    names = {field.name for field in dataclasses.fields(options)}
    for schema in reversed(type(options).__mro__):
        if rule := vars(schema).get("check"):
            try:
                rule(options)
            except UserError as error:
                if error.line.partition("=")[0] not in names:
                    raise
                raise UserError(f"{prefix}{error.line}") from None  # a rule names its options without prefix


def refuse(options: Any, names: Iterable[str], why: str) -> None:
    """Raise UserError if an option without effect differs from its default.

    Args:
        options: options dataclass.
        names: keys of the options, e.g. `chunk_s`.
        why: situation, for the message, e.g. `with mode=onepass`.
    """
    defaults = type(options)()
    for name in names:
        if getattr(options, name) != getattr(defaults, name):
            raise UserError(f"{name}={getattr(options, name)}: has no effect {why}")
