"""Descriptions of attention mechanisms; parses names such as `i-clustered-100:topk=16` into options."""

import difflib
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from asr import config
from asr.config import option
from asr.config.keys import attribute
from asr.config.names import split_source
from asr.config.schema import Described, Setting, default_of, settings, written
from asr.errors import UserError

COUNT = 65_536  # maximum number of clusters, keys or positions in an option


@dataclass
class NoOptions:
    """Options of a mechanism that has none."""


def causal_option() -> Any:
    """Return the field `causal` of mechanisms that can exclude later positions."""
    return option(False, help="exclude later positions", affects="result")


@dataclass
class CausalOptions:
    """Options of mechanisms that can be causal, and have no others."""

    causal: bool = causal_option()


def number_of_keys(letter: str = "", meaning: str = "keys of each cluster with exact weights, K") -> Any:
    """Return the field of a number of keys."""
    return option(32, help=meaning, affects="result", letter=letter, minimum=1, maximum=COUNT)


class Description:
    """Description of a mechanism by its class, for names, tables, reports and advice.

    Attributes:
        options: dataclass of the options in the mechanism's names; unless it has no fields, the class takes
            an object of it as an argument. The value of the field with a `letter` is part of the name itself.
        source: paper, as a Markdown link.
        time, memory: complexity for N positions.
        family: `softmax`, `linear` (a kernel without parameters) or `own parameters`.
    """

    options: ClassVar[type] = NoOptions
    source: ClassVar[str]
    time: ClassVar[str]
    memory: ClassVar[str]
    family: ClassVar[str]

    @classmethod
    def is_causal(cls, options: Any) -> bool:
        """Return whether no position sees later ones, with these options."""
        return bool(getattr(options, "causal", False))

    @classmethod
    def latest_seen(cls, options: Any, position: int) -> int | None:
        """Return the latest position that a layer's output at `position` depends on; None: the last.

        Args:
            options: options of the mechanism.
            position: position of the output, from 0.
        """
        return position if cls.is_causal(options) else None

    @classmethod
    def period(cls, options: Any) -> int:
        """Return P with `latest_seen(position + P) = latest_seen(position) + P`."""
        return 1


@dataclass(frozen=True)
class Spec:
    """A parsed name.

    Attributes:
        name: canonical name, with options in order, without those that have the same value if omitted.
        mechanism: part before the number, e.g. `i-clustered`.
        options: options of the mechanism.
    """

    name: str
    mechanism: str
    options: Any

    def __str__(self) -> str:
        return self.name

    @property
    def arguments(self) -> dict[str, Any]:
        """Values of all options that have an effect, the number in the name first."""
        return {x.key: x.value for x in effective(self.options)}

    def keywords(self) -> dict[str, Any]:
        """Return the argument of the mechanism's class; none if there are no options."""
        return {"options": self.options} if fields(self.options) else {}


def effective(options: Any) -> list[Setting]:
    """Return the options that have an effect, the number in the name first."""
    active = [x for x in settings(options) if not x.contradiction()]
    return sorted(active, key=lambda x: not x.letter)


@functools.cache
def number(schema: type) -> Setting | None:
    """Return the option whose value is the number in a mechanism's name, or None."""
    return next((x for x in settings(schema()) if x.letter), None)


@functools.cache
def described(schema: type) -> tuple[Described, ...]:
    """Return the options after the colon of a mechanism's name, in canonical order."""
    size = number(schema)
    return tuple(x for x in config.describe(schema) if not (size and x.key == size.key))


def pattern(mechanism: str, schema: type) -> str:
    """Return the pattern of a mechanism's names, e.g. `i-clustered-C`."""
    size = number(schema)
    return f"{mechanism}-{size.letter}" if size else mechanism


def parse(name: str, mechanisms: Mapping[str, type[Description]]) -> Spec:
    """Parse a mechanism's name.

    Args:
        name: e.g. `full`, `i-clustered-100`, `lsh-4:chunk=32,buckets=64`.
        mechanisms: class of each mechanism.

    Raises:
        UserError: an unknown mechanism or option, or a value out of range; the message lists what is allowed.

    Example:
        >>> @dataclass
        ... class Options:
        ...     rounds: int = option(1, help="rounds", affects="result", letter="R", minimum=1)
        ...     chunk: int = option(32, help="positions of a chunk", affects="result", minimum=1)
        ...     buckets: int = option(64, help="buckets", affects="result", minimum=2, step=2)
        >>> class Hashed(Description):
        ...     options = Options
        >>> str(parse("lsh-4:buckets=8,chunk=32", {"lsh": Hashed}))
        'lsh-4:buckets=8'
    """
    source, rest = split_source(name)
    head, colon, tail = rest.partition(":")
    head = f"{source}:{head}" if source else head
    mechanism, digits = _split_head(head, name, mechanisms)
    schema = mechanisms[mechanism].options
    size = number(schema)
    if ":" in tail:
        raise UserError(f"attention {name!r}: expected options separated by commas, found {tail!r}")
    given: dict[str, str] = {}
    for item in tail.split(",") if colon else []:
        key, equals, text = item.partition("=")
        if not equals or key not in {x.key for x in described(schema)} or key in given:
            problem = "option given twice" if key in given else "unknown option"
            raise UserError(f"attention {name!r}: {problem} {item!r}, {_allowed(schema)}")
        given[key] = text
    if size:
        given[size.key] = digits
    try:
        options, number_text, tail = _read(schema, tuple(given.items()))
    except UserError as error:
        raise UserError(f"attention {name!r}: {error}") from None
    head = f"{mechanism}-{number_text}" if size else head
    return Spec(f"{head}:{tail}" if tail else head, mechanism, options)


@functools.lru_cache(maxsize=1000)  # the names of a model's layers are parsed many times
def _read(schema: type, given: tuple[tuple[str, str], ...]) -> tuple[Any, str, str]:
    """Return options, the number in the name, and the options after the colon that can't be omitted."""
    options: Any = config.parse(schema, dict(given))
    size = number(schema)
    values = {x.key: x.value for x in settings(options) if x.key in dict(given)}
    for name in [x for x in values if not (size and x == size.key)]:
        others = {key: value for key, value in values.items() if key != name}
        if schema(**{attribute(key): value for key, value in others.items()}) == options:
            values = others
    number_text = written(values.pop(size.key)) if size else ""
    return options, number_text, ",".join(f"{key}={written(value)}" for key, value in values.items())


def _split_head(head: str, name: str, mechanisms: Mapping[str, type[Description]]) -> tuple[str, str]:
    """Split `i-clustered-100` into mechanism and digits."""
    if head in mechanisms and number(mechanisms[head].options) is None:
        return head, ""
    mechanism, _, digits = head.rpartition("-")
    numbered = mechanism in mechanisms and number(mechanisms[mechanism].options)
    if numbered and digits.isascii() and digits.isdigit():
        return mechanism, digits
    if head.endswith(".py"):
        raise UserError(f"attention {name!r}: expected a class of the file, e.g. {head}:Nystrom-32")
    known = ", ".join(pattern(key, row.options) for key, row in mechanisms.items())
    raise UserError(
        f"unknown attention {name!r}{_near(head, mechanisms)}: expected one of {known} (capital letters "
        "stand for numbers)"
    )


def _near(head: str, mechanisms: Mapping[str, type[Description]]) -> str:
    """Return `` (did you mean 'i-clustered-25'?)``, with the given number or the default one."""
    mechanism = re.sub(r"-?[0-9]+$", "", head)
    digits = head.removeprefix(mechanism).strip("-")
    close = difflib.get_close_matches(mechanism, mechanisms, n=1)
    if not close:
        return ""
    size = number(mechanisms[close[0]].options)
    return f" (did you mean '{close[0]}{f'-{digits or default_of(size.field)}' if size else ''}'?)"


def _allowed(schema: type) -> str:
    allowed = ", ".join(f"{x.key}={allowed_values(x)}" for x in described(schema))
    return f"expected {allowed}" if allowed else "none is allowed"


def allowed_values(described_option: Described) -> str:
    """Return the values of an option as text, e.g. `1 … 63` or `topk | single`."""
    return " | ".join(described_option.values) or re.sub(r"^int( \| None)? ", "", described_option.kind)
