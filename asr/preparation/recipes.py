"""Finds recipes: included ones by name, the user's by folder."""

import importlib
import importlib.util
import os
import pkgutil
import sys
from pathlib import Path
from types import ModuleType
from typing import cast

from asr.errors import UserError, did_you_mean


def recipes() -> list[str]:
    """Return the names of the included recipes."""
    import asr_recipes

    return sorted(module.name for module in pkgutil.iter_modules(asr_recipes.__path__) if module.ispkg)


def folder_of_recipes() -> Path:
    """Return the folder of the included recipes."""
    import asr_recipes

    return Path(asr_recipes.__path__[0])


def is_own(name: str) -> bool:
    """Return whether a recipe is a folder of the user, `./my_corpus`, rather than included, `demo`."""
    return "/" in name or os.sep in name or name.startswith(".")


def default_folder(name: str) -> Path:
    """Return the default output folder of a recipe."""
    return Path("data", Path(name).resolve().name if is_own(name) else name)


def preparation_module(name: str) -> ModuleType:
    """Return a recipe's `prepare` module.

    Raises:
        UserError: there is no such recipe, it has nothing to prepare, or the user's can't be imported.
    """
    if is_own(name):
        module = _own_module(name, "prepare")
        for part in ("Options", "prepare"):
            if not hasattr(module, part):
                raise UserError(
                    f"{module.__file__}: expected a dataclass Options and a function prepare(options, "
                    f"folder), found no {part}"
                )
        return module
    if name not in recipes():
        if Path(name, "prepare.py").is_file():
            raise UserError(f"unknown recipe {name!r}: write ./{name} for the folder")
        raise UserError(f"unknown recipe {name!r}{did_you_mean(name, prepared_recipes())}")
    if not has_preparation(name):
        raise UserError(f"recipe {name} has nothing to prepare: training makes or reads its data")
    return importlib.import_module(f"asr_recipes.{name}.prepare")


def preparation_options(name: str) -> type:
    """Return a recipe's options: `Options` in its module `options`, if it has one, else in `prepare`.

    A module `options` avoids loading the recipe's code and libraries.

    Raises:
        UserError: see `preparation_module`.
    """
    if is_own(name):
        light = Path(name, "options.py").is_file() and Path(name, "prepare.py").is_file()
        module = _own_module(name, "options") if light else preparation_module(name)
    elif name in recipes() and has_preparation(name) and _has_module(name, "options"):
        module = importlib.import_module(f"asr_recipes.{name}.options")
    else:
        module = preparation_module(name)
    return cast(type, module.Options)


def recipe_summary(name: str) -> str:
    """Return the first line of a recipe's docstring, from its package or from the user's module."""
    if is_own(name):
        package = importlib.import_module(preparation_options(name).__module__)
    else:
        package = importlib.import_module(f"asr_recipes.{name}")
    return (package.__doc__ or "").strip().partition("\n")[0]


def prepared_recipes() -> list[str]:
    """Return the names of the included recipes that have something to prepare."""
    return [name for name in recipes() if has_preparation(name)]


def has_preparation(name: str) -> bool:
    """Return whether an included recipe has something to prepare."""
    return _has_module(name, "prepare")


def _has_module(name: str, part: str) -> bool:
    return importlib.util.find_spec(f"asr_recipes.{name}.{part}") is not None


def _own_module(name: str, part: str) -> ModuleType:
    """Import a module of the user's recipe."""
    from asr.errors import in_words
    from asr.files import contents_digest, digest
    from asr.parallel import import_folder

    folder = Path(name).resolve()
    if not (folder / "prepare.py").is_file():
        found = "a folder without it" if folder.is_dir() else "no folder"
        raise UserError(f"recipe {name}: expected a folder with prepare.py, found {found}")
    # Edited code gets another package name, so that a notebook that prepares again imports it again.
    files = sorted(folder.glob("*.py"))
    package = f"own_recipe_{digest(f'{folder} {contents_digest(files)}', 12)}"
    # No bytecode: a file edited within a second, to the same length, would keep its old bytecode.
    writes_none, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        if package not in sys.modules:
            import_folder(package, folder)
        return importlib.import_module(f"{package}.{part}")
    except UserError:
        raise
    except Exception as error:  # whatever the user's code raises
        raise UserError(f"{folder / part}.py: {type(error).__name__}: {in_words(error)}") from error
    finally:
        sys.dont_write_bytecode = writes_none
