"""`asr prepare`: a corpus to manifests and a lexicon."""

import importlib
import importlib.util
import pkgutil
from pathlib import Path
from types import ModuleType

from asr import config
from asr.errors import UserError, did_you_mean

HELP = "make the manifests of a recipe: asr prepare demo"
POSITIONAL = "<recipe>"


def recipes() -> list[str]:
    """Return the names of the recipes that come with the program."""
    import asr_recipes

    return sorted(module.name for module in pkgutil.iter_modules(asr_recipes.__path__) if module.ispkg)


def recipe_module(name: str) -> ModuleType:
    """Return a recipe's `prepare` module.

    Raises:
        UserError: there is no such recipe, or nothing to prepare.
    """
    if name not in recipes():
        raise UserError(f"unknown recipe {name!r}{did_you_mean(name, recipes())}")
    module = f"asr_recipes.{name}.prepare"
    if importlib.util.find_spec(module) is None:
        raise UserError(f"recipe {name} makes its data while training: there is nothing to prepare")
    return importlib.import_module(module)


def options_schema(paths: list[str]) -> type | None:
    """Return the options of the named recipe, for `--help`."""
    return recipe_module(paths[0]).Options if paths else None


def main(paths: list[str], words: list[str]) -> None:
    """Prepare one recipe; `folder=` says where to, data/<recipe> by default."""
    if len(paths) != 1:
        raise UserError(
            f"asr prepare takes one recipe, found {paths or 'none'} (known: {', '.join(recipes())})"
        )
    module = recipe_module(paths[0])
    folders = [word.partition("=")[2] for word in words if word.startswith("folder=")]
    options = config.parse(module.Options, [word for word in words if not word.startswith("folder=")])
    folder = Path(folders[-1]) if folders else Path("data", paths[0])
    module.prepare(options, folder)
    print(f"manifests: {folder}")
