"""The included recipes by name."""

import importlib
import importlib.util
import pkgutil
from types import ModuleType
from typing import cast

from asr.errors import UserError, did_you_mean


def recipes() -> list[str]:
    """Return the names of the included recipes."""
    import asr_recipes

    return sorted(module.name for module in pkgutil.iter_modules(asr_recipes.__path__) if module.ispkg)


def preparation_module(name: str) -> ModuleType:
    """Return a recipe's `prepare` module.

    Raises:
        UserError: there is no such recipe, or it has nothing to prepare.
    """
    if name not in recipes():
        raise UserError(f"unknown recipe {name!r}{did_you_mean(name, prepared_recipes())}")
    if not has_preparation(name):
        raise UserError(f"recipe {name} has nothing to prepare: training makes or reads its data")
    return importlib.import_module(f"asr_recipes.{name}.prepare")


def preparation_options(name: str) -> type:
    """Return a recipe's options: `Options` in its module `options`, if it has one, else in `prepare`.

    The first loads neither the recipe's code nor its libraries.

    Raises:
        UserError: see `preparation_module`.
    """
    package = f"asr_recipes.{name}"
    if name in recipes() and has_preparation(name) and importlib.util.find_spec(f"{package}.options"):
        return cast(type, importlib.import_module(f"{package}.options").Options)
    return cast(type, preparation_module(name).Options)


def prepared_recipes() -> list[str]:
    """Return the names of the recipes that have something to prepare."""
    return [name for name in recipes() if has_preparation(name)]


def has_preparation(name: str) -> bool:
    """Return whether a recipe has something to prepare."""
    return importlib.util.find_spec(f"asr_recipes.{name}.prepare") is not None
