"""Where commands print: the terminal, or a file with room for whole tables."""

from rich.console import Console

FILE_WIDTH = 160


def open_console() -> Console:
    """Return standard output's console; without a terminal it is at least 160 columns wide."""
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, FILE_WIDTH)
    return console
