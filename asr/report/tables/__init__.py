"""The tables of the page and of the terminal, one per file: results → tables."""
