"""`asr prepare`: make manifests and a lexicon from a corpus."""

from contextlib import nullcontext
from pathlib import Path

from asr import config
from asr.errors import UserError
from asr.files import locked
from asr.preparation.division import ShardDone
from asr.preparation.recipes import preparation_module, prepared_recipes
from asr.records.options import ShardOptions


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
