"""Options as fields of dataclasses: meaning, unit, range, default and effect in one place."""

import dataclasses
import inspect
import re
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from asr.errors import UserError, not_text

LARGEST = 1e9  # default maximum of a number; --help shows lower ones
MISSING = "???"  # OmegaConf's mark of an option without default

# What an option affects decides where its value counts:
#
# * result: weights, hypotheses, figures. The option is part of every key under which work is stored.
# * plan: the result, but only through the course of a training: its length, its processes, what it keeps. The
#   run stays the same, so the value may change when it resumes. Without `plan`, resuming would need a list of
#   such options.
# * cost: time, memory and progress display. A run may resume with another value. A comparison, which measures
#   cost, has the option in its keys.
# * place: none of these measurably: where files are, how often they are written, which part of the work this
#   process does. The option is in no key.
Affects = Literal["result", "plan", "cost", "place"]


@dataclasses.dataclass(frozen=True)
class Range:
    """Values that an option accepts: numbers from minimum to maximum in steps, or one of the choices."""

    minimum: float = 0
    maximum: float = LARGEST
    choices: tuple[Any, ...] = ()
    step: int = 1  # between whole numbers

    def describe(self) -> str:
        """Return the range of numbers in words, e.g. `0 … 1` or `≥ 1`."""
        if self.maximum < LARGEST:
            steps = f" in steps of {self.step}" if self.step > 1 else ""
            return f"{self.minimum:.12g} … {self.maximum:.12g}{steps}"
        return f"≥ {self.minimum:.12g}" if self.minimum > -LARGEST else ""

    def expected(self, value: Any) -> str:
        """Return, in words, what is expected instead of `value`; empty if it is accepted."""
        if self.choices:
            known = ", ".join(str(choice) or "nothing" for choice in self.choices)
            return "" if value in self.choices else f"one of {known}"
        if isinstance(value, bool) or not isinstance(value, int | float):
            return ""
        in_range = self.minimum <= value <= self.maximum  # false for NaN
        if in_range and (self.step == 1 or (value - self.minimum) % self.step == 0):
            return ""
        if self.step > 1:
            return f"a number {self.describe()}"
        whole = f"{self.minimum:.12g} … {self.maximum:.12g}"
        return f"a number {whole if value > self.maximum else self.describe() or whole}"


@dataclasses.dataclass(frozen=True)
class Condition:
    """When an option has an effect.

    Attributes:
        option: another option, in the same dataclass or an enclosing one; or `paths`, which isn't an option
            but the kind of the command's arguments.
        values: values of that option with which this one has an effect; empty: any that is set.
    """

    option: str
    values: tuple[Any, ...] = ()

    def holds(self, value: Any) -> bool:
        """Return whether the option has an effect if the other has the value, or list of values, `found`."""
        if not self.values:
            return bool(value)
        return any(x in self.values for x in (value if isinstance(value, list) else [value]))

    def expectation(self, name: str) -> str:
        """Return the condition in words, e.g. `with loss=mmi`; `name` is the other option's full name."""
        if self.values == ("",):
            return f"without {name}"
        values = " | ".join(map(written, self.values))
        if self.option == PATHS:
            return f"for {values}"
        return f"with {name}={values}" if self.values else f"with {name}"

    def contradiction(self, name: str, value: Any) -> str:
        """Return, in words, why the condition fails, e.g. `with loss=ctc, only with loss=mmi`."""
        if not self.values or (self.option != PATHS and (not value or isinstance(value, list))):
            return self.expectation(name).replace("with", "without", 1)
        if self.values == ("",):
            return f"with {name}"
        at = f"for {value}" if self.option == PATHS else f"with {name}={written(value)}"
        return f"{at}, only {self.expectation(name)}"


PATHS = "paths"
Only = tuple[str] | tuple[str, Any]
Scope = tuple[tuple[str, Any], ...]  # dataclasses and their prefixes, innermost first


def option(
    default: Any,
    *,
    help: str,
    affects: Affects,
    only: Only | Sequence[Only] = (),
    unit: str = "",
    minimum: float = 0,
    maximum: float = LARGEST,
    choices: Iterable[Any] = (),
    step: int = 1,
    letter: str = "",
    suggested: Iterable[str] | Callable[[], Iterable[str]] = (),
    before: Any = None,
) -> Any:
    """Return a dataclass field for an option. The field `global_` is the option `global`, a Python keyword.

    Args:
        default: default value; None is written `null`.
        help: meaning, for `--help`.
        affects: what changes with the value: result | plan | cost | place.
        only: condition under which the option has an effect: another option and its value or values,
            `("name", "mmi")`, `("decoder", ("beam", "prefix"))`; another option that has to be set,
            `("tune",)`; or a list of conditions, which all have to hold.
        unit: unit of the value, for `--help`.
        minimum: smallest number accepted, also within lists.
        maximum: largest number accepted, also within lists.
        choices: values accepted; empty: all of the type.
        step: distance between accepted numbers, counted from `minimum`.
        letter: letter for the value in a mechanism's name, if the name contains it: C in `clustered-C`.
        suggested: some of the accepted values, for completion.
        before: value to assume for stored options that lack this one, because it was a constant then.
    """
    metadata = {
        "help": help,
        "affects": affects,
        "only": conditions(only),
        "unit": unit,
        "range": Range(minimum, maximum, tuple(choices), step),
        "letter": letter,
        "suggested": suggested,
        "before": before,
    }
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=lambda: type(default)(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def options_of(schema: type, *, only: Only | Sequence[Only]) -> Any:
    """Return a dataclass field for a group of options with a common condition; `only` as in `option`."""
    return dataclasses.field(default_factory=schema, metadata={"only": conditions(only)})


def conditions(only: Only | Sequence[Only]) -> tuple[Condition, ...]:
    """Return the conditions in `only`; see `option`."""
    pairs = [only] if only and isinstance(only[0], str) else only
    parsed = []
    for name, *values in typing.cast(Sequence[Only], pairs):
        one_of = values[0] if values and isinstance(values[0], tuple) else tuple(values)
        parsed.append(Condition(name, one_of))
    return tuple(parsed)


class Described(NamedTuple):
    """An option for `--help` and completion.

    Attributes:
        key: dotted name.
        kind: type and range, as text.
        default: default value.
        help: meaning, unit and condition.
        values: values to offer for completion.
    """

    key: str
    kind: str
    default: str
    help: str
    values: tuple[str, ...]


class Setting(NamedTuple):
    """An option's value in a dataclass.

    Attributes:
        key: dotted name.
        field: field of the dataclass.
        kind: type of the value.
        value: present value.
        conditions: conditions of the option and of its enclosing groups, each with the dataclasses in which
            the condition's option is looked up.
    """

    key: str
    field: "dataclasses.Field[Any]"
    kind: Any
    value: Any
    conditions: tuple[tuple[Condition, Scope], ...]

    @property
    def affects(self) -> Affects:
        """What changes with the value."""
        return typing.cast(Affects, self.field.metadata["affects"])

    @property
    def letter(self) -> str:
        """Letter for the value in a mechanism's name; empty if the name doesn't contain it."""
        return str(self.field.metadata.get("letter", ""))

    def contradiction(self, facts: Mapping[str, Any] = MappingProxyType({})) -> str:
        """Return why the option has no effect; empty if it has one.

        Args:
            facts: known facts besides options: the kind of the command's arguments as `paths`.
        """
        for only, scope in self.conditions:
            name, value, _ = _other(only, scope, facts)
            if value is not MISSING and not only.holds(value):
                return only.contradiction(name, value)
        return ""


def settings(
    options: Any,
    prefix: str = "",
    around: Scope = (),
    outer: tuple[tuple[Condition, Scope], ...] = (),
) -> Iterator[Setting]:
    """Yield every option of a dataclass and those within it, inherited ones last."""
    hints = typing.get_type_hints(type(options))
    declared = list(inspect.get_annotations(type(options)))
    scope = ((prefix, options), *around)
    # A field that overrides an inherited one has that one's place in `fields`.
    place = {name: index for index, name in enumerate(declared)}
    for field in sorted(dataclasses.fields(options), key=lambda field: place.get(field.name, len(declared))):
        value = getattr(options, field.name)
        these = (*outer, *((only, scope) for only in field.metadata.get("only", ())))
        if dataclasses.is_dataclass(value):
            yield from settings(value, f"{prefix}{field.name}.", scope, these)
        else:
            yield Setting(prefix + field.name.removesuffix("_"), field, hints[field.name], value, these)


def describe(schema: Any) -> Iterator[Described]:
    """Yield the description of every option, inherited ones last; `schema` is a dataclass or its defaults."""
    for setting in settings(schema() if isinstance(schema, type) else schema):
        field, default = setting.field, setting.value
        if isinstance(schema, type) and default_of(field) is None:  # not what it stands for
            default = None
        unit = field.metadata.get("unit", "")
        text = field.metadata.get("help", "") + (f" [{unit}]" if unit else "")
        others = [(only, _other(only, scope, {})) for only, scope in setting.conditions]
        needed = [only.expectation(x.name) for only, x in others if not (x.fixed and only.holds(x.value))]
        if needed:
            text += f"; only {' and '.join(needed)}"
        kind = setting.kind
        type_name = kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", "")
        if re.search(r"\b(int|float)\b", type_name) and not accepted(field).choices:
            type_name = f"{type_name} {accepted(field).describe()}".strip()
        suggested = accepted(field).choices or field.metadata.get("suggested", ())
        values = suggested() if callable(suggested) else suggested
        yield Described(
            setting.key,
            type_name,
            "required" if default == MISSING else written(default),
            text,
            ("true", "false") if kind is bool else tuple(filter(None, map(written, values))),
        )


def affecting(schema: Any, *kinds: Affects, paths: str | None = None) -> list[str]:
    """Return the dotted names of the options that affect one of `kinds`, in the order of `settings`.

    Args:
        schema: dataclass with options, or an object of it.
        kinds: effects: result, plan, cost, place.
        paths: kind of the command's arguments; options for other kinds are left out.

    Example:
        >>> @dataclasses.dataclass
        ... class Options:
        ...     beam: int = option(9, help="size of the beam", affects="result")
        ...     jobs: int = option(1, help="processes", affects="cost")
        >>> affecting(Options, "result")
        ['beam']
    """
    values = schema() if isinstance(schema, type) else schema
    return [
        setting.key
        for setting in settings(values)
        if setting.affects in kinds
        and not any(only.option == PATHS and not only.holds(paths) for only, _ in setting.conditions if paths)
    ]


def accepted(field: "dataclasses.Field[Any]") -> Range:
    """Return the values that an option accepts."""
    return typing.cast(Range, field.metadata.get("range", Range()))


def check(options: Any, prefix: str = "") -> None:
    """Check the range of every option, then call `check(self)` of the schema and its bases, if defined.

    Raises:
        UserError: a value is out of range, or options contradict each other.
    """
    for field in dataclasses.fields(options):
        value, key = getattr(options, field.name), prefix + field.name.removesuffix("_")
        if dataclasses.is_dataclass(value):
            check(value, f"{key}.")
            continue
        for item in value if isinstance(value, list) else [value]:
            # OmegaConf accepts a mapping as an item of a typed list.
            if isinstance(item, dict | list) and "Any" not in str(field.type):
                raise UserError(f"{key}={item}: expected a single value")
            if item is not None and (expected := accepted(field).expected(item)):
                raise UserError(f"{key}={item}: expected {expected}")
            # Such a path can be opened, but not stored in results or shown on a page. `output` is exempt: the
            # results don't contain it.
            if isinstance(item, str) and key != "output" and not_text(item):
                raise UserError(f"{key}={item}: expected UTF-8 without null characters")
    names = {field.name for field in dataclasses.fields(options)}
    for schema in reversed(type(options).__mro__):
        if rule := vars(schema).get("check"):
            try:
                rule(options)
            except UserError as error:
                if error.line.partition("=")[0] not in names:
                    raise
                raise UserError(f"{prefix}{error.line}") from None  # `check` names options without prefix


def check_effect(
    options: Any, given: Collection[str] | None = None, *, paths: str | None = None, defaults: bool = False
) -> None:
    """Raise UserError if a given option has no effect, because the condition in `only` does not hold.

    Args:
        options: options dataclass.
        given: names of the options to check: a recipe may set others that certain models ignore. None: all
            options that differ from their defaults.
        paths: kind of the command's arguments, for conditions on `paths`.
        defaults: also check default values, except zero, false and empty ones, which switch something off.
    """
    facts = {} if paths is None else {PATHS: paths}
    for setting in settings(options):
        if given is not None and setting.key not in given:
            continue
        if setting.value == default_of(setting.field) and not (defaults and setting.value):
            continue
        if where := setting.contradiction(facts):
            raise UserError(f"{setting.key}={written(setting.value)}: has no effect {where}")


def default_of(field: "dataclasses.Field[Any]") -> Any:
    """Return the default value of an option."""
    made = field.default_factory
    return field.default if made is dataclasses.MISSING else made()


class Other(NamedTuple):
    """The other side of a condition: an option or constant of an enclosing dataclass, or the arguments.

    Attributes:
        name: full name; a group's option `name`, which a configuration sets, is written as the group.
        value: present value; MISSING if no enclosing dataclass has it.
        fixed: whether it is a constant.
    """

    name: str
    value: Any
    fixed: bool = False


def _other(only: Condition, scope: Scope, facts: Mapping[str, Any]) -> Other:
    for prefix, options in scope:
        if any(field.name == only.option for field in dataclasses.fields(options)):
            return Other(f"{prefix}{only.option}".removesuffix(".name"), getattr(options, only.option))
        if hasattr(options, only.option):
            return Other(only.option, getattr(options, only.option), fixed=True)
    return Other(only.option, facts.get(only.option, MISSING))


def written(value: Any) -> str:
    """Return a value as a user writes it.

    Example:
        >>> written(True), written(None), written([1, 2]), written(0.5)
        ('true', 'null', '[1,2]', '0.5')
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(map(written, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def refuse(options: Any, names: Iterable[str], why: str) -> None:
    """Raise UserError if an option without effect differs from its default, or from its `before`.

    For conditions that don't depend on an option, such as a recipe with its own task; see `check_effect`.

    Args:
        options: options dataclass.
        names: keys of the options without effect, e.g. `chunk_s`.
        why: reason, for the message, e.g. `with mode=onepass`.
    """
    defaults = {setting.key: setting.value for setting in settings(type(options)())}
    named = tuple(names)
    for setting in settings(options):
        if setting.key.partition(".")[0] in named:
            default = defaults.get(setting.key)
            if setting.value not in (default, setting.field.metadata.get("before", default)):
                raise UserError(f"{setting.key}={written(setting.value)}: has no effect {why}")
