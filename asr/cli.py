"""The command line: `asr <command> key=value …`."""

import importlib
import logging
import os
import sys
from collections.abc import Sequence
from types import ModuleType

from rich.console import Console
from rich.logging import RichHandler
from rich.table import Table

from asr import __version__
from asr.console import open_console
from asr.errors import UserError, did_you_mean, run_program

# Here rather than in the commands' modules, whose imports take seconds.
WIDE = 120  # columns of a terminal that shows types and defaults in columns of their own
COMMANDS = {
    "prepare": "prepare a recipe's corpus: asr prepare demo",
    "train": "train a recogniser: asr train recipe=demo attention=i-clustered-25 model=tiny",
    "lm": "train or score an n-gram language model: asr lm train text=data/demo order=3 out=lm/demo.arpa",
    "decode": "decode a split: asr decode exp/demo/full split=test attention=i-clustered-25 decoder=beam",
    "score": "score hypotheses and compare systems: asr score exp/demo/full/decode/test/full-greedy",
    "evaluate": "evaluate models of copy, language or longrange: asr evaluate exp/copy/full exp/copy/lsh-4",
    "align": "align transcripts with audio: asr align exp/demo/full recording.wav text='go on'",
    "segment": "divide a recording and its text into utterances: asr segment exp/demo/full book.wav book.txt",
    "transcribe": "transcribe audio files: asr transcribe exp/demo/full recording.wav",
    "merge": "join the shards of prepare, decode, align or transcribe: asr merge exp/demo/full/align/test",
    "bench": "time attention mechanisms: asr bench attentions=full,i-clustered-100 lengths=512,1024",
    "compare": "train, decode and time mechanisms side by side: "
    "asr compare recipe=demo attentions=full,i-clustered-25",
    "advise": "recommend a mechanism for your data on this machine: asr advise data/demo model=wsj",
    "approximate": "evaluate a fine-tuned transformers model with its attention exchanged: "
    "asr approximate model=models/rte task=rte",
    "report": "rewrite a comparison's report.html: asr report exp/compare/demo bench=exp/bench.json layer=3",
    "export": "export a model: asr export exp/demo/full out=model",
    "completion": "complete words in bash, zsh or fish: asr completion bash",
    "export-data": "convert manifests for Kaldi, NeMo, lhotse or Shar: "
    "asr export-data data/demo to=kaldi out=data/demo_kaldi",
}

# OpenMP reads these when PyTorch loads. A thread that waits by spinning starves other processes; one that
# sleeps at once gains nothing where cores are free. GNU's OpenMP spins for so many turns before it sleeps
# (docs/machines.md has the comparison).
WAITING = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "10000"}


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
    if "OMP_WAIT_POLICY" not in os.environ:
        for name, value in WAITING.items():
            os.environ.setdefault(name, value)
    handler = RichHandler(console=Console(stderr=True), show_time=False, show_path=False, markup=False)
    logging.basicConfig(
        level=logging.INFO if debug else logging.WARNING, format="%(message)s", handlers=[handler]
    )
    if not arguments:
        print_overview()
        return 2
    return run_program("asr", lambda: run_command(*arguments), debug=debug)


def run_command(name: str, *arguments: str) -> None:
    """Run one command, or print its help, the overview or the version.

    Raises:
        UserError: no such command, or the command's own errors.
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
    if (name, *arguments[:1]) == ("completion", "words"):  # called by the shells' scripts, options and all
        _, command_name, second, word, position = arguments
        found = command_module(name).candidates(COMMANDS, command_name, second, word, int(position))
        print("\n".join(found))
        return
    command = command_module(name)
    if "--help" in arguments or "-h" in arguments:
        print_help(name, command, [x for x in arguments if x not in ("--help", "-h")])
        return
    from asr.config import parse, split_arguments

    paths, overrides = split_arguments(list(arguments))
    if "" in paths:
        raise UserError("expected a path, found an empty argument")
    if paths and not command.POSITIONAL:
        raise UserError(f"asr {name} takes key=value options only, found {paths[0]!r}")
    if hasattr(command, "main"):
        command.main(paths, overrides)
    elif hasattr(command, "parse"):
        command.run(paths, command.parse(overrides))
    else:
        command.run(paths, parse(command.Options, overrides))


def command_module(name: str) -> ModuleType:
    """Import the module of a command."""
    return importlib.import_module(f"asr.commands.{name.replace('-', '_')}")


def print_overview() -> None:
    """Print the list of commands."""
    table = Table("command", "purpose and example", title="asr <command> key=value …", title_justify="left")
    for name, purpose in COMMANDS.items():
        table.add_row(name, purpose)
    console = open_console(markup=False)
    console.print(table, "asr help <command> lists a command's options; --debug shows tracebacks.")


def help_table(rows: Sequence[tuple[str, str, str, str]], width: int) -> Table:
    """Return a table of (option, type, default, meaning) for a console; names of options are never cut."""
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


def print_help(name: str, command: ModuleType, paths: list[str]) -> None:
    """Print the usage and options of a command."""
    from asr.config import describe

    schema = command.options_schema(paths) if hasattr(command, "options_schema") else command.Options
    console = open_console(markup=False)
    console.print(" ".join(["asr", name, *filter(None, [command.POSITIONAL]), "key=value …"]))
    console.print(COMMANDS[name])
    if rows := list(describe(schema)) if schema else []:
        console.print(help_table([row[:4] for row in rows], console.width))
    if hasattr(command, "details"):
        console.print(command.details(paths))
