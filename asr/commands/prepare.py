"""`asr prepare`: make manifests and a lexicon from a corpus."""

from asr.errors import UserError
from asr.library import prepare_recipe
from asr.preparation.recipes import prepared_recipes


def main(paths: list[str], overrides: list[str]) -> None:
    """Prepare one recipe; `folder=` sets the output folder and defaults to data/<recipe>."""
    if len(paths) != 1:
        known = ", ".join(prepared_recipes())
        raise UserError(f"asr prepare takes one recipe, found {paths or 'none'} (known: {known})")
    prepare_recipe(paths[0], overrides)
