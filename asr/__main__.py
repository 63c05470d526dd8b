"""Entry point of `asr` and `python -m asr`."""

import sys


def main() -> int:
    """Run a command; even during imports, Ctrl-C ends it with one line."""
    try:
        from asr.cli import main

        return main()
    except KeyboardInterrupt:
        print("asr: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
