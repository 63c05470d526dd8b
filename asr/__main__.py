"""Entry point of `python -m asr`."""

import sys

from asr.cli import main

sys.exit(main())
