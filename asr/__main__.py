"""Entry point of `asr` and `python -m asr`."""

import sys


def main() -> int:
    """Run a command; Ctrl-C during imports ends it in one line, too."""
    try:
        from asr.cli import main

        return main()
    except KeyboardInterrupt:
        print("asr: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
