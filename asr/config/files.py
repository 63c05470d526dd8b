"""YAML files with options: in conf/, in folders like it, and the user's files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from asr.config.keys import config_groups, configurations, folder, is_file_choice
from asr.errors import UserError, did_you_mean
from asr.files import near_path, require_file

RECIPE = "recipe"  # the group whose configurations set options of all groups
DEFAULTS = "defaults"  # key of the configurations that a file starts from, `{recipe: wsj, optimizer: adamw}`
# libyaml's parser takes a tenth of the time; PyYAML's wheels contain it.
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Layer(NamedTuple):
    """Options of a file.

    Attributes:
        source: path of the file.
        values: nested options.
    """

    source: str
    values: dict[str, Any]


def layers(name: str, chosen: Mapping[str, Any], searched: Sequence[Path] = ()) -> list[Layer]:
    """Return the options of one configuration of each group; later layers win. See `asr.config.compose`.

    Args:
        name: configuration file in conf/, without its suffix; its `defaults` name one of each group.
        chosen: configurations that the user chooses, by group.
        searched: the user's folders like conf/.

    Raises:
        UserError: no such configuration or file, or one that can't be read.
    """
    path = folder() / f"{name}.yaml"
    groups = _defaults(load_yaml(path), path, searched)
    others, recipe = _chain(RECIPE, chosen.get(RECIPE, groups.pop(RECIPE)), searched)
    taken = {group: choice for group, choice in chosen.items() if group != RECIPE}
    stack = []
    for group, choice in (groups | others | taken).items():
        stack += [Layer(source, {group: values}) for source, values in _chain(group, choice, searched)[1]]
    for source, values in recipe:
        stack.append(Layer(source, {key: value for key, value in values.items() if key not in taken}))
    return stack


def recipe_name(choice: str, searched: Sequence[Path] = ()) -> str:
    """Return the name that a configuration of a recipe sets, or its own.

    Example:
        >>> recipe_name("wsj_4layers")
        'wsj_4layers'
    """
    set_here = (layer.values.get(RECIPE) for layer in reversed(_chain(RECIPE, choice, searched)[1]))
    return next((str(x["name"]) for x in set_here if isinstance(x, dict) and x.get("name")), choice)


def group_values(group: str, name: str) -> dict[str, Any]:
    """Return the options in `conf/<group>/<name>.yaml`, nested.

    Raises:
        UserError: no such configuration.
    """
    return load_yaml(_place(group, name, ()))


def load_yaml(path: Path) -> dict[str, Any]:
    """Return the content of a YAML file with options at its top level.

    Raises:
        OSError: the file can't be read.
        UserError: the file isn't YAML, or isn't a mapping.
    """
    if path.exists():
        require_file(path, "a YAML file")
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), LOADER)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        reason = str(error).strip().splitlines()[0]
        if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
            reason = f"in line {error.problem_mark.line + 1}: {error.problem}"
        raise UserError(f"{path}: expected YAML, found {reason}") from None
    if not isinstance(values, dict):
        raise UserError(f"{path}: expected options, found {str(values)[:60]!r}")
    _check_keys(values, path)
    return values


def _check_keys(values: dict[Any, Any], path: Path) -> None:
    """Raise UserError for a key that isn't text: YAML reads `1:`, `on:` and `null:` as other types."""
    for key, value in values.items():
        if not isinstance(key, str):
            raise UserError(f"{path}: expected names of options, found {key!r}")
        if isinstance(value, dict):
            _check_keys(value, path)


def _chain(
    group: str, choice: Any, searched: Sequence[Path], after: tuple[Path, ...] = ()
) -> tuple[dict[str, str], list[Layer]]:
    """Return the configurations that a file names for other groups, and its options, after its base's."""
    path = _place(group, choice, searched)
    if path in after:
        raise UserError(
            f"{path}: defaults: expected another configuration, found one that starts from this one"
        )
    values = load_yaml(path)
    named = _defaults(values, path, searched)
    start = named.pop(group, None)
    if named and group != RECIPE:
        raise UserError(f"{path}: defaults: expected {group} alone, found {', '.join(named)}")
    others, layers = _chain(group, start, searched, (*after, path)) if start else ({}, [])
    return others | named, [*layers, Layer(str(path), values)]


def _defaults(values: dict[str, Any], path: Path, searched: Sequence[Path]) -> dict[str, str]:
    """Remove `defaults` from a file's values, and return the configurations that it names, by group."""
    named = values.pop(DEFAULTS, {})
    groups = list(config_groups(searched))
    if not isinstance(named, dict) or not all(isinstance(x, str) for x in named.values()):
        raise UserError(
            f"{path}: defaults: expected configurations by group, {{recipe: demo, model: wsj}}, found {named}"
        )
    for group, choice in named.items():
        if group not in groups:
            raise UserError(f"{path}: defaults: unknown group {group!r}{did_you_mean(group, groups)}")
        try:
            _place(group, choice, searched)
        except UserError as error:
            raise UserError(f"{path}: defaults: {error}") from None
    return named


def _place(group: str, choice: Any, searched: Sequence[Path]) -> Path:
    """Return the file of a configuration, given by its name or as a path."""
    name = str(choice)
    if not is_file_choice(name):
        known = configurations(group, searched)
        if name not in known:
            raise UserError(f"{group}={name}: no such configuration{did_you_mean(name, list(known))}")
        return known[name]
    path = Path(name)
    if not path.is_file():
        inside = path / f"{path.name}.yaml"
        found = f"none{near_path(path)}"
        if (path / "config.yaml").is_file():
            found = "a run: init_from=<run> starts from it, asr compare model=<run> data=<folder> runs it"
        elif inside.is_file():
            found = f"a folder: use {group}={inside}"
        raise UserError(f"{group}={name}: expected a YAML file, found {found}")
    return path
