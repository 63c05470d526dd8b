"""Documents drawn from schemas, and mutants: other types, missing, extra, huge, nested, damaged bytes."""

import copy
import dataclasses
import json
import random
import types
import typing
from collections.abc import Iterator
from typing import Any

DEEP: Any = []
for _ in range(300):
    DEEP = [DEEP]
VALUES: list[Any] = [
    None,
    "x",
    "",
    "a\0b",
    "../../x",
    "/x",
    "a\nb",
    "${x}",
    "a${b}",
    -1,
    0,
    1,
    3,
    10**12,
    10**400,
    0.5,
    1e308,
    float("nan"),
    float("inf"),
    True,
    False,
    [],
    [0],
    ["x"],
    [[]],
    [None, {"a": 1}],
    {},
    {"a": 1},
    {"": None},
    "long" * 100_000,
    DEEP,
]


def draw(kind: Any, source: random.Random) -> Any:
    """Return random JSON data of an annotated type."""
    parts = typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        optional = {x.name for x in dataclasses.fields(kind) if x.default is not dataclasses.MISSING}
        return {
            name: draw(x, source)
            for name, x in hints.items()
            if name not in optional or source.random() < 0.7
        }
    match typing.get_origin(kind) or kind:
        case types.UnionType | typing.Union:
            return draw(source.choice(parts), source)
        case typing.Literal:
            return source.choice(parts)
        case builtin if builtin is tuple:
            return [draw(part, source) for part in parts]
        case builtin if builtin is list:
            return [draw(parts[0], source) for _ in range(source.randint(0, 3))]
        case builtin if builtin is dict:
            keys = [str(i) if parts[0] is int else f"key{i}" for i in range(source.randint(0, 3))]
            return {key: draw(parts[1], source) for key in keys}
        case builtin if builtin is Any:
            return source.choice([1, "text", [1], {"a": None}])
        case builtin if builtin is types.NoneType:
            return None
        case builtin:
            return {str: "text", int: source.randint(0, 9), float: source.random(), bool: True}[builtin]


def paths(values: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the place of each value in nested dictionaries and lists, the outermost first."""
    yield path
    items: Any = (
        values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    )
    for key, value in items:
        yield from paths(value, (*path, key))


def mutant(values: Any, source: random.Random, others: list[Any] = VALUES) -> tuple[str, Any]:
    """Return a copy of nested values with one thing wrong, and what it is."""
    values = copy.deepcopy(values)
    places = list(paths(values))
    # By depth first, so that a long list doesn't hide the entries of a document.
    depth = source.choice(sorted({len(x) for x in places}))
    path = source.choice([x for x in places if len(x) == depth])
    place = values
    for key in path[:-1]:
        place = place[key]
    found = place[path[-1]] if path else values
    what = ["other", "other", "other"]
    if path:
        what += ["missing", "renamed"]
    if isinstance(found, dict | list):
        what += ["extra", "emptied"]
    action = source.choice(what)
    new = source.choice(others)
    match action:
        case "missing":
            del place[path[-1]]
        case "renamed" if isinstance(place, dict):
            place[source.choice(["x", "a\0b", "../x", "", "ü" * 300])] = place.pop(path[-1])
        case "renamed":
            place.append(place.pop(path[-1]))
        case "extra" if isinstance(found, dict):
            found[source.choice(["x", "a\0b", "../x", ""])] = new
        case "extra":
            found.insert(source.randint(0, len(found)), new)
        case "emptied":
            found.clear()
        case _:
            if not path:
                return f"all={str(new)[:30]}", new
            place[path[-1]] = new
    return f"{'.'.join(map(str, path))[:60]} {action} {str(new)[:30]!r}", values


def damaged(content: bytes, source: random.Random) -> tuple[str, bytes]:
    """Return the bytes of a file with something wrong, and what it is."""
    at = source.randrange(len(content) + 1)
    action = source.choice(
        ["truncated", "bit", "bit", "nul", "not UTF-8", "nothing", "twice", "deep", "cut out"]
    )
    match action:
        case "truncated":
            return f"{action} {at}", content[:at]
        case "bit":
            flipped = bytearray(content)
            for _ in range(source.choice([1, 1, 10])):
                flipped[source.randrange(len(flipped))] ^= 1 << source.randrange(8)
            return action, bytes(flipped)
        case "nul":
            return f"{action} {at}", content[:at] + b"\0" + content[at:]
        case "not UTF-8":
            return f"{action} {at}", content[:at] + b"\xff\xfe" + content[at:]
        case "nothing":
            return action, b""
        case "twice":
            return action, content + content
        case "deep":
            return action, b"[" * 100_000
        case _:
            return f"{action} {at}", content[:at] + content[at + source.randint(1, 30) :]


def written(values: Any) -> bytes:
    """Return values as JSON."""
    return json.dumps(values, ensure_ascii=False).encode("utf-8", "surrogatepass")
