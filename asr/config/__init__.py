"""Options: fields of dataclasses, set by YAML files and `key=value` overrides."""

from typing import TYPE_CHECKING

from asr.config.keys import (
    CONFIGS,
    Given,
    as_overrides,
    by_key,
    config_groups,
    configurations,
    flat,
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
    from asr.config.build import (
        compose,
        divide,
        from_dict,
        from_stored,
        lost,
        parse,
        save,
        to_dict,
        values_affecting,
    )
    from asr.config.files import group_values, load_yaml, recipe_name

__all__ = [
    "CONFIGS",
    "Given",
    "Range",
    "accepted",
    "affecting",
    "as_overrides",
    "by_key",
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
    "group_values",
    "is_file_choice",
    "load_yaml",
    "lost",
    "nested",
    "option",
    "options_of",
    "parse",
    "recipe_name",
    "refuse",
    "save",
    "search_path",
    "split_arguments",
    "to_dict",
    "values_affecting",
]
FILES = ("group_values", "load_yaml", "recipe_name")


def __getattr__(name: str) -> object:
    """Import readers and writers of values on first use: they load OmegaConf, which `--help` doesn't need."""
    if name in FILES:
        from asr.config import files

        return getattr(files, name)
    if name in __all__:
        from asr.config import build

        return getattr(build, name)
    raise AttributeError(f"module 'asr.config' has no attribute {name!r}")
