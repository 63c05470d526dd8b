"""The skeleton of a recipe that `asr new recipe` copies: prepare.py and recipe.yaml run as they are."""

import re
from pathlib import Path

import numpy as np
import soundfile

from asr.errors import UserError
from asr.files import write_text

NAME = "my_corpus"  # name of the recipe in the skeleton's files
RATE = 16_000
UTTERANCES = (("train", "low low high"), ("dev", "high low"), ("test", "low high"))
HERTZ = {"low": 220.0, "high": 880.0}
WORD_S = 0.5


def write_recipe(folder: Path) -> None:
    """Write a recipe that can be prepared and trained: code, configuration and three recordings.

    Args:
        folder: folder of the recipe, which must not exist; its name becomes the recipe's.

    Raises:
        UserError: the folder exists, or its name has characters besides letters, digits, _ and -.
    """
    name = folder.resolve().name
    if not re.fullmatch(r"\w[\w-]*", name):
        raise UserError(f"{folder}: expected a name of letters, digits, _ and -")
    if folder.exists():
        raise UserError(f"{folder}: expected no such file or folder, found one")
    for file, target in (("prepare.py", "prepare.py"), ("recipe.yaml", f"{name}.yaml")):
        text = Path(__file__).with_name(file).read_text(encoding="utf-8")
        write_text(text.replace(NAME, name), folder / target)
    recordings = folder / "recordings"
    recordings.mkdir()
    lines = []
    for split, text in UTTERANCES:
        soundfile.write(recordings / f"{split}-1.wav", _tones(text), RATE)
        lines.append(f"{split}\tspeaker1\t{split}-1.wav\t{text}\n")
    write_text("".join(lines), recordings / "transcripts.tsv")


def _tones(text: str) -> np.ndarray:
    """Return a tone for each word."""
    time_s = np.arange(round(WORD_S * RATE)) / RATE
    fade = np.hanning(len(time_s))
    return np.concatenate([0.5 * fade * np.sin(2 * np.pi * HERTZ[word] * time_s) for word in text.split()])
