"""A corpus of tones that a tiny model learns in seconds, and the options for training that model."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import soundfile
from lhotse import Recording, SupervisionSegment
from lhotse.cut import MonoCut
from numpy.typing import NDArray

from asr.data.manifest import cut_entries, write_entries
from asr.text.lexicon import Lexicon

PITCH_HZ = {"AA": 300, "B": 550, "K": 900, "S": 1400, "IY": 2100, "T": 3000}
LEXICON = Lexicon(
    {
        "a": [("AA",)],
        "be": [("B", "IY")],
        "cat": [("K", "AA", "T")],
        "sea": [("S", "IY")],
        "tea": [("T", "IY")],
        "back": [("B", "AA", "K")],
    }
)
TINY = [
    "model=tiny",
    "model.layers=1",
    "model.heads=2",
    "model.head_dim=16",
    "model.feedforward=64",
    "model.subsampling=2",
    "features.mel_bins=40",
    "data.frames_per_batch=1500",
    "data.workers=0",
    "optimizer.warmup_steps=10",
    "optimizer.learning_rate=5e-3",
    "trainer.accelerator=cpu",
]


def tones(text: str, rate: int, random: np.random.Generator) -> NDArray[np.float32]:
    """Return the audio of an utterance in which every phone is a tone of 60 to 100 ms."""
    parts = []
    for word in text.split():
        for phone in LEXICON.first(word):
            seconds = random.uniform(0.06, 0.1)
            time_s = np.arange(int(seconds * rate)) / rate
            parts.append(0.3 * np.sin(2 * np.pi * PITCH_HZ[phone] * time_s))
        parts.append(np.zeros(int(0.03 * rate)))
    audio = np.concatenate(parts)
    return (audio + 0.003 * random.standard_normal(len(audio))).astype(np.float32)


def make_cut(wav: Path, text: str, name: str, speaker: str = "s1") -> MonoCut:
    """Return a cut of a whole wav file."""
    recording = Recording.from_file(wav, recording_id=name)
    supervision = SupervisionSegment(
        name, name, 0.0, recording.duration, text=text, speaker=speaker, language="en"
    )
    return MonoCut(name, 0.0, recording.duration, 0, [supervision], recording=recording)


def save_cuts(cuts: Iterable[MonoCut], path: Path) -> None:
    """Write a manifest whose folder can be moved with the audio files in it."""
    write_entries((entry for _, entry in cut_entries(cuts, path.parent)), path)


def make_corpus(
    folder: Path, sizes: dict[str, int], rate: int = 16000, seed: int = 0, words: Sequence[str] = ()
) -> Path:
    """Write WAV files, manifests and a lexicon; return the folder."""
    random = np.random.default_rng(seed)
    words = words or list(LEXICON.pronunciations)
    (folder / "wav").mkdir(parents=True)
    for split, count in sizes.items():
        cuts = []
        for i in range(count):
            text = " ".join(random.choice(words, random.integers(2, 6)))
            wav = folder / "wav" / f"{split}-{i}.wav"
            soundfile.write(wav, tones(text, rate, random), rate, subtype="PCM_16")
            cuts.append(make_cut(wav, text, f"{split}-{i}", f"s{i % 3}"))
        save_cuts(cuts, folder / f"{split}.cuts.jsonl.gz")
    LEXICON.save(folder / "lexicon.txt")
    return folder
