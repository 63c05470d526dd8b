"""Options given in Python: keywords, dictionaries, dataclasses and OmegaConf configurations."""

import os
from collections.abc import Mapping
from dataclasses import is_dataclass
from os import PathLike, fspath
from typing import Any

from asr import config
from asr.config.keys import flat
from asr.config.schema import settings
from asr.errors import UserError

Options = Any  # a dictionary, an OmegaConf configuration, a dataclass or None: see `values_of`


def values_of(
    options: Options, keywords: Mapping[str, Any] | None = None, schema: type | None = None
) -> dict[str, Any]:
    """Return options by dotted key.

    Args:
        options: a dataclass, an OmegaConf configuration, a dictionary or None. Groups are nested, or names
            are dotted: `{"model": {"layers": 6}}` or `{"model.layers": 6}`.
        keywords: further options, which replace those in `options`.
        schema: dataclass of the options; its options of type text take no numbers: `run=5` would be a folder.

    Raises:
        UserError: a value whose type no option has, or another type where a text or path belongs.

    Example:
        >>> values_of({"recipe": "demo", "model.layers": 4}, {"model": {"layers": 6}, "seeds": (0, 1)})
        {'recipe': 'demo', 'model.layers': 6, 'seeds': [0, 1]}
    """
    first, others = nested_values(options), nested_values(keywords)
    values = flat(first) | flat(others)
    # `flat` drops an empty dictionary, which isn't a text either. A filled one may be a group: `model` of a
    # comparison is both a text and a group.
    whole = {key: x for key, x in (first | others).items() if x == {}} | values
    for x in settings(schema()) if schema else ():
        given = whole.get(x.key)
        if x.kind is str and not isinstance(given, str | None):
            what = "a path" if x.affects == "place" else "text"
            raise UserError(f"{x.key}={given!r:.60}: expected {what}")
        if x.kind == list[str] and isinstance(given, list) and not all(isinstance(y, str) for y in given):
            raise UserError(f"{x.key}={given!r:.60}: expected a list of texts")
    return values


def nested_values(options: Options) -> dict[str, Any]:
    """Return options as nested dictionaries, lists and scalars."""
    from omegaconf import OmegaConf

    if OmegaConf.is_config(options):
        options = OmegaConf.to_container(options, resolve=True)
    elif is_dataclass(options) and not isinstance(options, type):
        options = config.to_dict(options)
    if not isinstance(options, Mapping | None):
        raise UserError(
            f"options: expected a dictionary, an OmegaConf configuration or a dataclass, found {options!r}"
        )
    return dict(_plain(options or {}))


def _plain(value: Any) -> Any:
    """Return a value as plain data: paths become text; tuples and arrays, lists; NumPy numbers, Python's.

    Raises:
        UserError: another type, e.g. a set, which has no order.
    """
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | range):
        return [_plain(item) for item in value]
    if isinstance(value, str | PathLike):
        return os.path.expanduser(fspath(value))
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(config.to_dict(value))
    if hasattr(value, "tolist"):
        return value.tolist()
    if not isinstance(value, int | float | None):
        raise UserError(f"options: expected texts, numbers, lists or dictionaries, found {value!r}")
    return value
