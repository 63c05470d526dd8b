"""Options as dataclasses: type, unit and default in one place; unknown keys are errors."""

import dataclasses
from typing import Any


def option(default: Any, *, help: str, unit: str = "") -> Any:
    """Return a dataclass field that carries its help text and unit for `--help`."""
    metadata = {"help": help, "unit": unit}
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=lambda: type(default)(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)
