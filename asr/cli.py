"""The command line: `asr <command> key=value …`."""

import importlib
import logging
import sys
import traceback
from types import ModuleType

from rich.console import Console
from rich.logging import RichHandler
from rich.table import Table

from asr import __version__
from asr.config import describe, parse, split_words
from asr.errors import UserError, did_you_mean

COMMANDS = [
    "prepare",
    "train",
    "lm",
    "decode",
    "score",
    "align",
    "transcribe",
    "bench",
    "compare",
    "advise",
    "report",
    "export",
    "export-data",
]


def main(words: list[str] | None = None) -> int:
    """Run a command.

    Args:
        words: the command line without the program's name; None: this process's.

    Returns:
        Exit status: 0, 1 for a user's error (one line on stderr), 2 for a wrong call, 130 when interrupted.
    """
    words = list(sys.argv[1:] if words is None else words)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    handler = RichHandler(console=Console(stderr=True), show_time=False, show_path=False, markup=False)
    logging.basicConfig(
        level=logging.INFO if debug else logging.WARNING, format="%(message)s", handlers=[handler]
    )
    if words[:1] == ["--version"]:
        print(__version__)
        return 0
    if not words or words[0] in ("--help", "-h", "help"):
        print_overview()
        return 0 if words else 2
    try:
        name, *rest = words
        if name not in COMMANDS:
            raise UserError(f"unknown command {name!r}{did_you_mean(name, COMMANDS)}")
        command = command_module(name)
        if "--help" in rest or "-h" in rest:
            print_help(name, command, [word for word in rest if word not in ("--help", "-h")])
            return 0
        paths, options = split_words(rest)
        if paths and not command.POSITIONAL:
            raise UserError(f"asr {name} takes key=value options only, found {paths[0]!r}")
        run = getattr(command, "main", None)
        if run:
            run(paths, options)
        else:
            reader = getattr(command, "parse", lambda rest: parse(command.Options, rest))
            command.run(paths, reader(options))
        return 0
    except UserError as error:
        if debug:
            traceback.print_exc()
        print(f"asr: {error.line}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("asr: interrupted", file=sys.stderr)
        return 130


def command_module(name: str) -> ModuleType:
    """Return the module of a command."""
    return importlib.import_module(f"asr.commands.{name.replace('-', '_')}")


def print_overview() -> None:
    """Print the commands."""
    table = Table("command", "what it does", title="asr <command> key=value …", title_justify="left")
    for name in COMMANDS:
        table.add_row(name, command_module(name).HELP)
    Console().print(table, "asr <command> --help lists a command's options; --debug shows tracebacks.")


def print_help(name: str, command: ModuleType, paths: list[str]) -> None:
    """Print the options of a command."""
    schema = command.options_schema(paths) if hasattr(command, "options_schema") else command.Options
    console = Console()
    console.print(f"asr {name} {command.POSITIONAL} key=value …\n{command.HELP}", markup=False)
    table = Table("option", "type", "default", "meaning")
    for row in describe(schema) if schema else []:
        table.add_row(*row)
    if table.row_count:
        console.print(table)
    if hasattr(command, "details"):
        console.print(command.details(paths))


if __name__ == "__main__":
    sys.exit(main())
