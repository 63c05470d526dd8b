"""Options by dotted key: on the command line, in nested values, and in the files of conf/."""

import json
import keyword
import os
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from asr.errors import UserError

# Folders in conf/ with options of asr bench and asr compare; all others are config groups.
OPTION_FILES = ("figure", "plan")
CONFIGS = "configs"  # the option that names folders like conf/
KEY_VALUE = re.compile(r"[A-Za-z_][\w./@-]*=")
# Characters that JSON doesn't escape, and that YAML refuses or reads as line breaks.
NOT_IN_YAML = re.compile(r"[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufffe\uffff]")

# Options as given: `key=value`, as on a command line, or values by dotted key.
Given: TypeAlias = Iterable[str] | Mapping[str, Any]


def split_arguments(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Split command-line arguments into paths and `key=value` overrides; an existing file is a path.

    A leading `~` in paths and values is expanded, because few shells expand it in values.

    Raises:
        UserError: an argument contains a null character, which no path can have, or is an option with dashes.
    """
    for argument in arguments:
        if "\0" in argument:
            raise UserError(f"{argument!r}: expected no null character")
        if argument.startswith("-") and KEY_VALUE.match(plain := argument.lstrip("-")):
            raise UserError(f"{argument}: options have no dashes: {plain}")
    overrides = [x for x in arguments if KEY_VALUE.match(x) and not os.path.exists(x)]
    paths = [os.path.expanduser(x) for x in arguments if x not in overrides]
    pairs = (x.partition("=") for x in overrides)
    return paths, [f"{key}={os.path.expanduser(value)}" for key, _, value in pairs]


def by_key(given: Given) -> dict[str, Any]:
    """Return options by dotted key; later ones win, and values from a command line stay text.

    Example:
        >>> by_key(["recipe=demo", "seed=0", "seed=1"])
        {'recipe': 'demo', 'seed': '1'}
    """
    if isinstance(given, Mapping):
        return dict(given)
    pairs = (x.partition("=") for x in given)
    return {key: value for key, _, value in pairs}


def attribute(key: str) -> str:
    """Return a dotted key with the dataclass's names: `global_` for `global`, which Python reserves."""
    return f"{key}_" if keyword.iskeyword(key) else key


def flat(values: Mapping[str, Any], prefix: str = "", whole: Container[str] = ()) -> dict[str, Any]:
    """Return nested options with dotted names.

    Args:
        values: nested options.
        prefix: beginning of all names, with its dot.
        whole: dotted names whose dictionaries are values, not groups.

    Example:
        >>> flat({"seed": 0, "model": {"layers": 6}})
        {'seed': 0, 'model.layers': 6}
    """
    leaves: dict[str, Any] = {}
    for key, value in values.items():
        inside = isinstance(value, dict) and prefix + key not in whole
        leaves |= flat(value, f"{prefix}{key}.", whole) if inside else {prefix + key: value}
    return leaves


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with dotted names as nested dictionaries: the inverse of `flat`."""
    tree: dict[str, Any] = {}
    for key, value in values.items():
        *path, last = key.split(".")
        place = tree
        for part in path:
            place = place.setdefault(part, {})
        place[last] = value
    return tree


def as_overrides(values: Mapping[str, Any]) -> list[str]:
    """Return nested options as `key=value` overrides.

    Example:
        >>> as_overrides({"recipe": "demo", "model": {"layers": 6}, "seeds": [0, 1]})
        ['recipe=demo', 'model.layers=6', 'seeds=[0,1]']
    """
    return [f"{key}={x if isinstance(x, str) else _as_yaml(x)}" for key, x in flat(values).items()]


def _as_yaml(value: Any) -> str:
    """Return a value as JSON that YAML reads as the same value."""
    # For a character beyond U+FFFF, JSON writes two escapes, which YAML would read as two characters.
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return NOT_IN_YAML.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def configurations(group: str, searched: Sequence[Path] = ()) -> dict[str, Path]:
    """Return the files in `conf/<group>/` and in this group of further folders, by name.

    Args:
        group: group of configurations, or another folder in conf/.
        searched: folders like conf/; see `search_path`.

    Raises:
        UserError: a further folder has a configuration with the name of an included one.
    """
    paths: dict[str, Path] = {}
    for root in (folder(), *searched):
        for path in sorted((root / group).glob("*.yaml")):
            if path.stem in paths:
                raise UserError(f"{path}: expected another name, found that of {paths[path.stem]}")
            paths[path.stem] = path
    return paths


def config_groups(searched: Sequence[Path] = ()) -> dict[str, list[str]]:
    """Return the names of the configurations in each config group; `searched` as in `configurations`."""
    return {name: list(configurations(name, searched)) for name in _groups()}


def search_path(given: Given) -> list[Path]:
    """Return the user's folders of configurations, `configs=my_conf` or several: `configs=[my_conf,ours]`.

    Raises:
        UserError: one is not a folder with config groups.
    """
    value = by_key(given).get(CONFIGS) or []
    words = value.strip("[]").split(",") if isinstance(value, str) else value
    folders = [Path(str(word).strip(" '\"")).expanduser() for word in words]
    for place in folders:
        if not any((place / group).is_dir() for group in _groups()):
            found = "a folder without them" if place.is_dir() else "none"
            groups = ", ".join(f"{group}/" for group in sorted(_groups()))
            raise UserError(f"{CONFIGS}={place}: expected a folder with {groups}, found {found}")
    return folders


def is_file_choice(value: str) -> bool:
    """Return whether the value of a config group is a file, not a name: `recipe=./mine/mine.yaml`."""
    return value.endswith((".yaml", ".yml")) or "/" in value or os.sep in value


def _groups() -> list[str]:
    folders = (x for x in folder().iterdir() if x.is_dir() and not x.name.startswith("__"))
    return [x.name for x in folders if x.name not in OPTION_FILES]


def folder() -> Path:
    """Return the folder conf/, without `importlib.resources`, whose import would cost completion 6 ms."""
    import asr_conf

    return Path(asr_conf.__path__[0])
