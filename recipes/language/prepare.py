"""Recipe `language`: prepares the default text, from a Debian package."""

from pathlib import Path

from asr_recipes.language.options import PACKAGE, Options

from asr.console import open_console
from asr.preparation.download import debian_packages
from asr.text.files import write_lines

from .bible import DATA, read_verses

TEXT = "bible.txt"


def prepare(options: Options, folder: Path) -> None:
    """Write `bible.txt`, a verse per line.

    Raises:
        UserError: the package can't be downloaded, or its text can't be read.
    """
    console = open_console()
    source = Path(options.source)
    if not options.source:
        hint = "or name a folder with its content: source=…"
        packages = debian_packages([PACKAGE], folder / "packages", console, "2 MB", hint)
        source = packages / PACKAGE
    verses = read_verses(source / DATA)
    write_lines(folder / TEXT, verses)
    console.print(f"{folder / TEXT}: {len(verses)} verses of the King James Bible, public domain")
