"""Descriptions of attention mechanisms, and their names: `i-clustered-100:topk=16` parsed into options."""

import difflib
import keyword
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from asr.config.names import split_source
from asr.errors import UserError

Value = int | str | bool


@dataclass(frozen=True)
class Option:
    """One option of a mechanism.

    Attributes:
        name: key after the colon; the option `Schema.size` is part of the name instead.
        default: default value.
        allowed: range of numbers, or tuple of values.
        help: description.
        only: earlier option and the value that it must have for this one to apply; None: always applies.
        same: earlier option whose value is the default, instead of `default`; empty: none.
    """

    name: str
    default: Value
    allowed: range | tuple[Value, ...]
    help: str
    only: tuple[str, Value] | None = None
    same: str = ""

    def default_beside(self, arguments: Mapping[str, Value]) -> Value:
        """Return the default value, given those of the earlier options."""
        return arguments[self.same] if self.same else self.default

    def written_default(self) -> str:
        """Return the default as text, e.g. `32`, or the name of the option whose value it is."""
        return self.same or write_value(self.default)

    def describe(self) -> str:
        """Return the allowed values as text, e.g. `1 … 63` or `topk | single`."""
        if isinstance(self.allowed, range):
            step = f" in steps of {self.allowed.step}" if self.allowed.step > 1 else ""
            return f"{self.allowed.start} … {self.allowed[-1]}{step}"
        return " | ".join(write_value(value) for value in self.allowed)

    def parse(self, text: str, name: str) -> Value:
        """Parse a value; `name` is the full name, for error messages."""
        for value in self.allowed if isinstance(self.allowed, tuple) else ():
            if text == write_value(value):
                return value
        if isinstance(self.allowed, range) and re.fullmatch(r"\d{1,9}", text) and int(text) in self.allowed:
            return int(text)
        raise UserError(f"attention {name!r}: {self.name}={text}, expected {self.describe()}")


@dataclass(frozen=True)
class Schema:
    """The form of a mechanism's names.

    Attributes:
        letter: letter that stands for the number in the name, C in `clustered-C`; empty without a number.
        size: option that this number sets; None without a number.
        options: options allowed after the colon, in canonical order. A name may recur with another `only`.
    """

    letter: str = ""
    size: Option | None = None
    options: tuple[Option, ...] = ()


COUNT = range(1, 65_537)
CAUSAL = Option("causal", False, (False, True), "exclude later positions")
TOPK = Option("topk", 32, COUNT, "keys of each cluster with exact weights, K")


class Description:
    """What a mechanism's class says about itself, for names, tables, reports and advice.

    Attributes:
        schema: number and options of its names; each is an argument of the class.
        source: paper.
        time, memory: cost for N positions.
        family: `softmax`, `linear` (a kernel without parameters) or `own parameters`.
    """

    schema: ClassVar[Schema] = Schema()
    source: ClassVar[str]
    time: ClassVar[str]
    memory: ClassVar[str]
    family: ClassVar[str]

    @classmethod
    def is_causal(cls, arguments: Mapping[str, Value]) -> bool:
        """Return whether no position sees later ones, with these values of the options."""
        return bool(arguments.get("causal"))

    @classmethod
    def latest_seen(cls, arguments: Mapping[str, Value], position: int) -> int | None:
        """Return the latest position that one layer's output at a position depends on; None: the last.

        Args:
            arguments: values of the options.
            position: position of the output, from 0.
        """
        return position if cls.is_causal(arguments) else None

    @classmethod
    def period(cls, arguments: Mapping[str, Value]) -> int:
        """Return after how many positions `latest_seen` repeats itself, that much later."""
        return 1


@dataclass(frozen=True)
class Spec:
    """A parsed name.

    Attributes:
        name: canonical name, with options in order and without those at their default.
        mechanism: part before the number, e.g. `i-clustered`.
        arguments: value of every option, including the number.
    """

    name: str
    mechanism: str
    arguments: Mapping[str, Value]

    def __str__(self) -> str:
        return self.name

    def keywords(self, taken: Collection[str] = ()) -> dict[str, Any]:
        """Return the arguments as those of a Python call: `global` becomes `global_`, and so do taken names.

        Args:
            taken: names of the call's other arguments.
        """
        return {
            f"{key}_" if keyword.iskeyword(key) or key in taken else key: value
            for key, value in self.arguments.items()
        }


def pattern(mechanism: str, schema: Schema) -> str:
    """Return the pattern of a mechanism's names, e.g. `i-clustered-C`."""
    return f"{mechanism}-{schema.letter}" if schema.size else mechanism


def parse(name: str, schemas: Mapping[str, Schema]) -> Spec:
    """Parse a mechanism's name.

    Args:
        name: e.g. `full`, `i-clustered-100`, `lsh-4:chunk=32,buckets=64`.
        schemas: schema of each mechanism.

    Raises:
        UserError: an unknown mechanism or option, or a value out of range, with what is allowed.

    Example:
        >>> schemas = {"lsh": Schema("R", Option("rounds", 1, range(1, 9), ""), (
        ...     Option("chunk", 32, range(1, 999), ""), Option("buckets", 64, range(2, 999, 2), "")))}
        >>> str(parse("lsh-4:buckets=8,chunk=32", schemas))
        'lsh-4:buckets=8'
    """
    source, rest = split_source(name)
    head, colon, tail = rest.partition(":")
    head = f"{source}:{head}" if source else head
    mechanism, number = _split_head(head, name, schemas)
    schema = schemas[mechanism]
    arguments: dict[str, Value] = {}
    if schema.size:
        arguments[schema.size.name] = schema.size.parse(number, name)
        head = f"{mechanism}-{arguments[schema.size.name]}"

    if ":" in tail:
        raise UserError(f"attention {name!r}: expected options separated by commas, found {tail!r}")
    given: dict[str, str] = {}
    for item in tail.split(",") if colon else []:
        key, equals, text = item.partition("=")
        if not equals or key not in {option.name for option in schema.options} or key in given:
            problem = "option given twice" if key in given else "unknown option"
            raise UserError(f"attention {name!r}: {problem} {item!r}, {_describe_options(schema)}")
        given[key] = text
    written = []
    for option in schema.options:
        if option.only and arguments[option.only[0]] != option.only[1]:
            continue
        value = default = option.default_beside(arguments)
        if option.name in given:
            value = option.parse(given.pop(option.name), name)
        arguments[option.name] = value
        if value != default:
            written.append(f"{option.name}={write_value(value)}")
    for key, text in given.items():
        needed = next(option.only for option in schema.options if option.name == key and option.only)
        raise UserError(f"attention {name!r}: {key}={text} needs {needed[0]}={write_value(needed[1])}")
    canonical = head + (":" + ",".join(written) if written else "")
    return Spec(canonical, mechanism, arguments)


def write_value(value: Value) -> str:
    """Return a value as written in a name; booleans are `true` and `false`."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _split_head(head: str, name: str, schemas: Mapping[str, Schema]) -> tuple[str, str]:
    """Split `i-clustered-100` into mechanism and digits."""
    if head in schemas and schemas[head].size is None:
        return head, ""
    mechanism, _, number = head.rpartition("-")
    if mechanism in schemas and schemas[mechanism].size and number.isascii() and number.isdigit():
        return mechanism, number
    if head.endswith(".py"):
        raise UserError(f"attention {name!r}: expected a class of the file, e.g. {head}:Nystrom-32")
    known = ", ".join(pattern(mechanism, schema) for mechanism, schema in schemas.items())
    raise UserError(
        f"unknown attention {name!r}{_near(head, schemas)}: expected one of {known} (capital letters stand "
        "for numbers)"
    )


def _near(head: str, schemas: Mapping[str, Schema]) -> str:
    """Return `` (did you mean 'i-clustered-25'?)``, with the number of `iclustered-25` or the usual one."""
    mechanism, _, number = head.rpartition("-")
    given = number.isascii() and number.isdigit()
    close = difflib.get_close_matches(mechanism if given else head, schemas, n=1)
    if not close:
        return ""
    size = schemas[close[0]].size
    return f" (did you mean '{close[0]}{f'-{number if given else size.default}' if size else ''}'?)"


def _describe_options(schema: Schema) -> str:
    allowed = ", ".join(dict.fromkeys(f"{option.name}={option.describe()}" for option in schema.options))
    return f"expected {allowed}" if allowed else "none is allowed"
