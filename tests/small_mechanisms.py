"""Small names of attention mechanisms, so that common tests take those of the table that they don't list."""

from collections.abc import Iterable, Mapping

from asr.attention import MECHANISMS, parse_name
from asr.attention.spec import Option, Schema, Value, write_value

SMALL = 4  # larger numbers become the smallest allowed one of at least this


def unlisted(names: Iterable[str]) -> list[str]:
    """Return the mechanisms of the table that none of the names stands for."""
    listed = {parse_name(name).mechanism for name in names}
    return [mechanism for mechanism in MECHANISMS if mechanism not in listed]


def small_names(mechanism: str) -> list[str]:
    """Return a name with small numbers, and a further one for every other value of each option.

    Numbers take one other value: 2, or the smallest allowed one.
    """
    schema = MECHANISMS[mechanism].schema
    head = f"{mechanism}-{_small(schema.size)}" if schema.size else mechanism
    names = [_name(head, schema, {})]
    for option in schema.options:
        case = dict([option.only]) if option.only else {}
        names += [_name(head, schema, {**case, option.name: value}) for value in _others(option)]
    return list(dict.fromkeys(names))


def _name(head: str, schema: Schema, chosen: Mapping[str, Value]) -> str:
    values: dict[str, Value] = {}
    for option in schema.options:
        if option.only is None or values[option.only[0]] == option.only[1]:
            values[option.name] = chosen.get(option.name, _small(option))
    text = ",".join(f"{name}={write_value(value)}" for name, value in values.items())
    return parse_name(f"{head}:{text}" if text else head).name


def _small(option: Option) -> Value:
    allowed, default = option.allowed, option.default
    if isinstance(allowed, range) and isinstance(default, int) and default > SMALL:
        return next(value for value in allowed if value >= SMALL)
    return default


def _others(option: Option) -> list[Value]:
    if isinstance(option.allowed, range):
        return [2 if 2 in option.allowed else option.allowed[0]]
    return [value for value in option.allowed if value != option.default]
