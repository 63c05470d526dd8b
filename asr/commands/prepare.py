"""`asr prepare`: make manifests and a lexicon from a corpus."""

import importlib
from contextlib import nullcontext
from pathlib import Path

from rich.table import Table

from asr import config
from asr.errors import UserError
from asr.files import locked
from asr.preparation.division import ShardDone
from asr.preparation.recipes import preparation_module, prepared_recipes
from asr.records.shards import ShardOptions

POSITIONAL = "<recipe>"


def options_schema(paths: list[str]) -> type | None:
    """Return the options of the named recipe, for `--help`."""
    return preparation_module(paths[0]).Options if paths else None


def details(paths: list[str]) -> Table | str:
    """Return what `--help` prints below the options: a table of recipes, or a recipe's summary."""
    if paths:
        return f"folder=… sets the output folder (data/{paths[0]}). {recipe_summary(paths[0])}"
    table = Table("recipe", "corpus", title="asr prepare <recipe> --help lists a recipe's options")
    for name in prepared_recipes():
        table.add_row(name, recipe_summary(name))
    return table


def recipe_summary(name: str) -> str:
    """Return the first line of the docstring of a recipe's package."""
    package = importlib.import_module(f"asr_recipes.{name}")
    return (package.__doc__ or "").strip().partition("\n")[0]


def main(paths: list[str], overrides: list[str]) -> None:
    """Prepare one recipe; `folder=` sets the output folder and defaults to data/<recipe>."""
    if len(paths) != 1:
        known = ", ".join(prepared_recipes())
        raise UserError(f"asr prepare takes one recipe, found {paths or 'none'} (known: {known})")
    module = preparation_module(paths[0])
    folders = [x.partition("=")[2] for x in overrides if x.startswith("folder=")]
    options = config.parse(module.Options, [x for x in overrides if not x.startswith("folder=")])
    folder = Path(folders[-1]) if folders else Path("data", paths[0])
    try:
        divided = isinstance(options, ShardOptions) and options.shard
        with nullcontext() if divided else locked(folder, "asr prepare"):
            module.prepare(options, folder)
    except ShardDone:
        return
    print(f"output: {folder}")
