"""The command line: `asr <command> key=value …`."""

import ctypes
import os
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from asr import __version__
from asr.commands import COMMANDS, NoOptions, command_module
from asr.errors import UserError, did_you_mean, not_text, run_program

if TYPE_CHECKING:
    from rich.table import Table

CODE = "--code"
OVERVIEW = (
    "asr help <command> lists a command's options; --debug shows tracebacks; --code <file or module> loads "
    "code of your own that a model or report needs."
)
WIDE = 120  # width of a terminal, in characters, from which types and defaults have separate columns
# OpenMP reads these when PyTorch loads. Threads that wait by spinning starve other processes; threads that
# sleep at once are slower on free cores. GNU's OpenMP spins this many times before it sleeps (comparison:
# docs/machines.md).
WAITING = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "10000"}
# glibc gives large freed blocks back to the system, which clears each page before it hands it out again. To
# keep them saves a third of the time of a long recording in one pass (docs/machines.md).
KEPT_BYTES = 2_000_000_000
KEEPING = {"MALLOC_MMAP_THRESHOLD_": -3, "MALLOC_TRIM_THRESHOLD_": -1}  # with their numbers in malloc.h


def main(arguments: list[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: command-line arguments; defaults to those of this process.

    Returns:
        Exit status; see `run_program`. 2 without a command.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in arguments
    arguments = [x for x in arguments if x != "--debug"]
    code, arguments = named_code(arguments)
    if "OMP_WAIT_POLICY" not in os.environ:
        for name, value in WAITING.items():
            os.environ.setdefault(name, value)
    if sys.platform == "linux" and not {*KEEPING, "GLIBC_TUNABLES"} & os.environ.keys():
        keep_freed_memory()
    if arguments[:1] != ["completion"]:  # it runs at each key press, and logs nothing
        log_to_terminal(debug)
    if not arguments:
        print_overview()
        return 2

    def work() -> None:
        if code:
            from asr.config import user_code

            user_code.load_all(code)
        run_command(*arguments)

    return run_program("asr", work, debug=debug)


def keep_freed_memory() -> None:
    """Let this process and its children keep the memory that they free, where malloc is glibc's."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    for name, number in KEEPING.items():
        os.environ[name] = str(KEPT_BYTES)  # for children, whose malloc reads it at their start
        if mallopt:
            mallopt(number, KEPT_BYTES)


def named_code(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split `--code <file or module>` off the arguments of any command.

    Example:
        >>> named_code(["report", "exp/compare/demo", "--code", "./nystrom.py"])
        (['./nystrom.py'], ['report', 'exp/compare/demo'])
    """
    code, others = [], list(arguments)
    while CODE in others:
        at = others.index(CODE)
        code += others[at + 1 : at + 2] or [""]
        del others[at : at + 2]
    return code, others


def log_to_terminal(debug: bool) -> None:
    """Show warnings on standard error; with `debug`, the whole log."""
    import logging

    from rich.console import Console
    from rich.logging import RichHandler

    handler = RichHandler(console=Console(stderr=True), show_time=False, show_path=False, markup=False)
    logging.basicConfig(
        level=logging.INFO if debug else logging.WARNING, format="%(message)s", handlers=[handler]
    )


def run_command(name: str, *arguments: str) -> None:
    """Run one command, or print its help, the overview or the version.

    Raises:
        UserError: no such command, or an error of the command.
    """
    if name == "--version":
        print(__version__)
        return
    if name in ("--help", "-h", "help"):
        if arguments:  # asr help train
            run_command(arguments[0], "--help", *arguments[1:])
        else:
            print_overview()
        return
    if name not in COMMANDS:
        raise UserError(f"unknown command {name!r}{did_you_mean(name, list(COMMANDS))}")
    if (name, *arguments[:1]) == ("completion", "words"):  # called by the shells' scripts, with partial words
        if len(arguments) != 5 or not re.fullmatch(r"\d{1,9}", arguments[-1]):
            raise UserError("asr completion words takes command, second word, word and position")
        _, command_name, second, word, position = arguments
        found = command_module(name).candidates(command_name, second, word, int(position))
        print("\n".join(found))
        return
    command = COMMANDS[name]
    if "--help" in arguments or "-h" in arguments:
        print_help(name, [x for x in arguments if x not in ("--help", "-h")])
        return
    from asr import config

    paths, overrides = config.split_arguments(list(arguments))
    if "" in paths:
        raise UserError("expected a path, found an empty argument")
    for path in paths[:1] if name == "transcribe" else paths:  # recordings may have any name
        if not_text(path):
            raise UserError(f"{path}: expected a path in UTF-8")
    least, most = command.count
    if paths and (most == 0 or not command.takes):
        raise UserError(f"asr {name} takes key=value options only, found {paths[0]!r}")
    if len(paths) < least or (most is not None and len(paths) > most):
        raise UserError(f"asr {name} takes {command.takes}, found {len(paths) or 'none'}")
    if command.reads:
        command_module(name).main(paths, overrides)
        return
    # Options first, so that a mistake is reported before PyTorch is loaded.
    options = command.parse(overrides) if command.parse else config.parse(command.options, overrides)
    config.check_effect(options, {x.partition("=")[0] for x in overrides}, defaults=True)
    command_module(name).run(paths, options)


def print_overview() -> None:
    """Print the list of commands."""
    from rich.table import Table

    from asr.console import open_console

    table = Table("command", "purpose and example", title="asr <command> key=value …", title_justify="left")
    for name, command in COMMANDS.items():
        table.add_row(name, command.purpose)
    console = open_console(markup=False)
    console.print(table, OVERVIEW)


def help_table(rows: Sequence[tuple[str, str, str, str]], width: int) -> "Table":
    """Return a table of (option, type, default, meaning) for a console; option names are never cut."""
    from rich.table import Table

    table = Table()
    table.add_column("option", no_wrap=True, min_width=max(len(key) for key, *_ in rows))
    if width < WIDE:
        table.add_column("meaning (type; default)")
        for key, kind, default, text in rows:
            table.add_row(key, f"{text} ({kind}; {default or 'empty'})")
        return table
    for name in ("type", "default", "meaning"):
        table.add_column(name)
    for row in rows:
        table.add_row(*row)
    return table


def print_help(name: str, arguments: list[str]) -> None:
    """Print the usage and options of a command, given its other arguments."""
    from asr.config import describe
    from asr.console import open_console

    command = COMMANDS[name]
    schema = command.defaults(arguments) if command.defaults else command.schema(arguments)
    console = open_console(markup=False)
    rows = [row[:4] for row in describe(schema)] if schema else []
    options = "" if schema is NoOptions else "key=value …"
    console.print(" ".join(filter(None, ["asr", name, command.takes, options])))
    console.print(command.purpose)
    if command.about and (sentence := command.about(arguments)):
        console.print(f"{arguments[0]}: {sentence}")
    if rows:
        console.print(help_table(rows, console.width))
    if command.details:
        console.print(command.details(arguments))
