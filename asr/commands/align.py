"""`asr align`: forced alignment of known transcripts with their audio."""

import logging
from pathlib import Path

from asr.console import counted, first_of, track
from asr.library.aligning import Alignment
from asr.transcription.options import AlignOptions

log = logging.getLogger(__name__)


def run(paths: list[Path], options: AlignOptions) -> None:
    """Align the transcripts, write the times and report the utterances that can't be aligned."""
    work = Alignment(Path(paths[0]), Path(paths[1]) if len(paths) == 2 else None, options)
    for _ in track(work.run(), "aligning", total=work.left):
        pass
    if fits := work.fits():
        fit, worst = min(fits)
        least = f"fit {fit:.2f}" if work.total == 1 else f"least fit {fit:.2f} ({worst})"
        place = work.folder / f"{work.name}.*" if len(paths) == 2 else work.folder
        print(f"aligned {len(fits)} of {counted(work.total, 'utterance')}: {place}; {least}")
    if unknown := work.unknown():
        log.warning(
            "unreliable times for words outside the model's vocabulary (%d): %s",
            unknown.total(),
            first_of(sorted(unknown)),
        )
    work.results.report()
