"""Options as Python gives them: keywords, dictionaries, dataclasses and OmegaConf's configurations."""

from collections.abc import Mapping
from dataclasses import is_dataclass
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from asr import config
from asr.errors import UserError

if TYPE_CHECKING:
    from asr.training.options import TrainConfig

Options = Any  # a dictionary, an OmegaConf configuration, a dataclass or None: see `overrides_of`


def training_options(options: Options, keywords: Mapping[str, Any]) -> "TrainConfig":
    """Return the options of a training, composed or complete; see `train`."""
    from asr.training.config import train_options, train_options_from

    values = _values(options)
    if not isinstance(values.get("recipe"), Mapping):
        return train_options(overrides_of(options, keywords))
    complete = train_options_from(config.nested(config.flat(values)), "options")
    overrides = overrides_of(None, keywords)
    for override in overrides:
        group, _, name = override.partition("=")
        if group in config.config_groups():
            raise UserError(
                f"{group}={name}: expected single options such as {group}.name beside complete options"
            )
    return config.parse(complete, overrides) if overrides else complete


def overrides_of(options: Options, keywords: Mapping[str, Any]) -> list[str]:
    """Return options as `key=value` overrides, those of the command line.

    Args:
        options: a dataclass, an OmegaConf configuration, a dictionary or None. Groups are nested, or their
            names dotted: `{"model": {"layers": 6}}` or `{"model.layers": 6}`.
        keywords: further options, which replace those in `options`.

    Example:
        >>> overrides_of({"recipe": "demo", "model.layers": 4}, {"model": {"layers": 6}, "seeds": (0, 1)})
        ['recipe=demo', 'model.layers=6', 'seeds=[0,1]']
    """
    values = config.flat(_values(options)) | config.flat(_plain(keywords))
    return config.in_home(config.as_overrides(values))


def _values(options: Options) -> dict[str, Any]:
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
    """Return a value with paths as texts, tuples as lists, and arrays and NumPy's numbers as Python's.

    Raises:
        UserError: it is something else, e.g. a set, which has no order.
    """
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | range):
        return [_plain(item) for item in value]
    if isinstance(value, PathLike):
        return fspath(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    if not isinstance(value, str | int | float | None):
        raise UserError(f"options: expected texts, numbers, lists or dictionaries, found {value!r}")
    return value
