"""`asr segment`: divide a long recording and its text into utterances to train on."""

import sys
from functools import partial
from pathlib import Path

from asr.console import counted, duration, grouped_warnings, progress
from asr.library.segmenting import LEFT_OUT, Segmentation
from asr.transcription.options import SegmentOptions


def run(paths: list[Path], options: SegmentOptions) -> None:
    """Write a FLAC and a text file per utterance, and list the utterances left out."""
    model, recording, text = map(Path, paths)
    work = Segmentation(model, recording, text, options)
    if work.unsaid:
        signs = " ".join(sorted(set(work.unsaid)))
        print(
            f"{work.text}: left out {counted(len(work.unsaid), 'sign')} without words: {signs}",
            file=sys.stderr,
        )
    with grouped_warnings(), progress(counts=False) as bars:
        task = bars.add_task("encoding", total=1.0)
        align = partial(bars.update, task, description="aligning", total=None)
        result = work.run(partial(bars.advance, task), align)
    kept_s = sum(x.end_s - x.start_s for x in result.kept)
    print(
        f"{work.folder}: {counted(len(result.kept), 'utterance')}, {duration(kept_s)} of "
        f"{duration(result.duration_s)}"
    )
    if result.left_out:
        print(f"left out {len(result.left_out)} that don't fit: {work.folder / LEFT_OUT}", file=sys.stderr)
    print(f"next: asr prepare folder audio={work.folder}")
