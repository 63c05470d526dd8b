"""`asr merge`: join the shards of prepare, decode, transcribe or align."""

from pathlib import Path

from asr.commands import NoOptions
from asr.library.merging import merge
from asr.scoring.run import rates_line


def run(paths: list[Path], options: NoOptions) -> None:
    """Join the shards; errors of single items are reported at the end."""
    folder, recipe = Path(paths[0]), str(paths[1]) if len(paths) == 2 else ""
    work = merge(folder, recipe)
    print(f"joined: {folder}")
    if work.job.identity["command"] == "decode":
        print(f"error rates: {rates_line(folder)}")
    work.report()
