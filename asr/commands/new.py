"""`asr new`: create a recipe of your own."""

from pathlib import Path

from asr.commands import COMMANDS, NoOptions
from asr.errors import UserError
from asr.preparation.skeleton import write_recipe


def run(paths: list[Path], options: NoOptions) -> None:
    """Write a recipe's skeleton, and print the commands that run it."""
    if len(paths) != 2 or str(paths[0]) != "recipe":
        found = " ".join(map(str, paths)) or "none"
        raise UserError(f"asr new takes {COMMANDS['new'].takes}, found {found}")
    folder = Path(paths[1])
    write_recipe(folder)
    place = folder if folder.is_absolute() else f"./{folder}"
    print(f"asr prepare {place}\nasr train recipe={place}/{folder.resolve().name}.yaml trainer.max_steps=5")
