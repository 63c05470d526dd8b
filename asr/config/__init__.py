"""Options: fields of dataclasses, set by YAML files and `key=value` overrides."""

from typing import TYPE_CHECKING

from asr.config.keys import (
    as_overrides,
    config_groups,
    configurations,
    flat,
    in_home,
    is_file_choice,
    nested,
    search_path,
    split_arguments,
)
from asr.config.schema import (
    Range,
    accepted,
    affecting,
    check,
    check_effect,
    describe,
    option,
    options_of,
    refuse,
)

if TYPE_CHECKING:
    from asr.config.overrides import (
        compose,
        divide,
        from_dict,
        from_stored,
        group_overrides,
        load_yaml,
        parse,
        save,
        to_dict,
        values_affecting,
    )

__all__ = [
    "Range",
    "accepted",
    "affecting",
    "as_overrides",
    "check",
    "check_effect",
    "compose",
    "config_groups",
    "configurations",
    "describe",
    "divide",
    "flat",
    "from_dict",
    "from_stored",
    "group_overrides",
    "in_home",
    "is_file_choice",
    "load_yaml",
    "nested",
    "option",
    "options_of",
    "parse",
    "refuse",
    "save",
    "search_path",
    "split_arguments",
    "to_dict",
    "values_affecting",
]


def __getattr__(name: str) -> object:
    """Import readers and writers of values on first use: they load OmegaConf, which `--help` doesn't need."""
    if name in __all__:
        from asr.config import overrides

        return getattr(overrides, name)
    raise AttributeError(f"module 'asr.config' has no attribute {name!r}")
