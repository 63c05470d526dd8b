"""Where commands print: the terminal, or a file with room for whole tables."""

import os

from rich.console import Console

FILE_WIDTH = 160


def open_console() -> Console:
    """Return standard output's console; without a terminal 160 columns wide, or what COLUMNS says."""
    console = Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = FILE_WIDTH
    return console
