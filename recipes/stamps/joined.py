"""Joins held-out recordings with pauses, as in training (`data.concatenate_s`)."""

import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import soundfile

from asr.data.audio import load_cut
from asr.data.concatenate import PAUSE_S, join
from asr.preparation.cuts import recording, utterance_cut
from asr.preparation.splits import hash_position

if TYPE_CHECKING:  # lhotse loads PyTorch, which takes seconds
    from lhotse import MonoCut


def joined_cuts(cuts: "Iterable[MonoCut]", limit_s: float, folder: Path) -> "Iterator[MonoCut]":
    """Write `<language>-<number>.wav` to a new `folder` and yield their cuts.

    Args:
        cuts: recordings with one sample rate; each is used once, in an order that depends on the ids.
        limit_s: maximum duration in seconds, with the longest pauses; a longer recording stays alone.
        folder: folder for the files; replaced if it exists.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    by_language: dict[str, list[MonoCut]] = {}
    for cut in sorted(cuts, key=lambda cut: hash_position(cut.id)):
        by_language.setdefault(cut.supervisions[0].language, []).append(cut)
    for language, members in by_language.items():
        for number, group in enumerate(_groups(members, limit_s)):
            name, rate = f"{language}-{number:03d}", members[0].sampling_rate
            parts = [load_cut(cut, rate) for cut in group]
            samples = join(parts, rate, seed=0, epoch=0, group=(number,))
            path = folder / f"{name}.wav"
            soundfile.write(path, samples, rate, subtype="PCM_16")
            text = " ".join(cut.supervisions[0].text for cut in group)
            whole = recording(f"{folder.name}-{name}", path, len(samples), rate)
            yield utterance_cut(whole.id, whole, text, speaker=language, language=language)


def _groups(cuts: "Sequence[MonoCut]", limit_s: float) -> "Iterator[list[MonoCut]]":
    group: list[MonoCut] = []
    room_s = limit_s
    for cut in cuts:
        needed_s = cut.duration + PAUSE_S[1]
        if group and needed_s > room_s:
            yield group
            group, room_s = [], limit_s
        group.append(cut)
        room_s -= needed_s
    yield group
