"""The command line of programs with several measurements: `<program> <measurement> key=value …`."""

import sys
from collections.abc import Callable, Mapping
from typing import Any

from asr import config
from asr.cli import help_table
from asr.config import describe
from asr.console import open_console
from asr.errors import UserError, did_you_mean, run_program

Measurements = Mapping[str, tuple[type, Callable[[Any], None]]]


def run_measurement(
    name: str, document: str, measurements: Measurements, arguments: list[str] | None = None
) -> int:
    """Run the measurement that the first argument names, or print the help; return the exit status.

    Args:
        name: name of the program.
        document: purpose of the program, for the help.
        measurements: options and function of each measurement.
        arguments: command-line arguments; defaults to those of this process.
    """
    given = sys.argv[1:] if arguments is None else arguments
    return run_program(name, lambda: _run(document, measurements, given))


def _run(document: str, measurements: Measurements, arguments: list[str]) -> None:
    if not arguments or "--help" in arguments:
        console = open_console(markup=False)
        console.print(document)
        for name, (schema, _) in measurements.items():
            console.print(name, help_table([row[:4] for row in describe(schema)], console.width))
        return
    name, *overrides = arguments
    if name not in measurements:
        raise UserError(f"{name}: unknown measurement{did_you_mean(name, list(measurements))}")
    schema, function = measurements[name]
    function(config.parse(schema, overrides))
