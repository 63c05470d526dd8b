"""Recipe `prompts`: convert the recorded English prompts of Asterisk to manifests and a lexicon."""

import hashlib
import shutil
import subprocess
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import soundfile
from rich.console import Console

from asr.config import option
from asr.errors import UserError
from asr.preparation import (
    Preparation,
    PreparationOptions,
    audio_facts,
    read_lines,
    recording,
    utterance_cut,
)
from asr.text.cmudict import cmudict_lexicon
from asr.text.lexicon import Lexicon

from .transcripts import Prompt, parse_transcripts

if TYPE_CHECKING:  # lhotse loads PyTorch, which takes seconds
    from lhotse import MonoCut

PACKAGES = ["asterisk-core-sounds-en-wav", "asterisk-core-sounds-en"]
TRANSCRIPTS = ["core-sounds-en.txt", "core-sounds-en.txt.gz"]
SPEAKER = "allison"
LICENCE = "CC BY-SA 3.0, © 2003–2010 Allison Smith, funded by Digium, Inc."
# Split by text hash, in hundredths: below 80 train, below 88 dev, else test.
TRAIN_UNTIL, DEV_UNTIL = 80, 88
FRAME_S = 0.01


@dataclass
class Options(PreparationOptions):
    """Source of the prompts and trimming parameters."""

    source: str = option(
        "", help="folder containing the wav files and core-sounds-en.txt[.gz]; empty: apt-get download"
    )
    silence_db: float = option(40.0, help="silence threshold below the loudest 10 ms", unit="dB", maximum=200)
    margin_s: float = option(0.1, help="silence kept before and after speech", unit="s", maximum=60)
    max_s: float = option(40.0, help="longer recordings are excluded", unit="s", minimum=0.1)


def prepare(options: Options, folder: Path) -> None:
    """Write `<split>.cuts.jsonl.gz`, `lexicon.txt` and `excluded.tsv` below `folder`.

    The audio stays in place (`folder/packages` if downloaded); the cuts trim silence at both ends. Identical
    texts share a split, so no test sentence is in training.
    """
    preparation = Preparation("prompts", folder, options)
    source = Path(options.source) if options.source else _fetch(folder / "packages", preparation.console)
    if preparation.is_done([source]):
        return
    transcripts = _find_transcripts(source)
    prompts = list(parse_transcripts([line for _, line in read_lines(transcripts)]))
    root = _find_audio_root(source, [prompt.key for prompt in prompts])
    usable = [prompt for prompt in prompts if not prompt.excluded]
    for prompt in prompts:
        if prompt.excluded:
            preparation.drop(prompt.key, prompt.excluded, prompt.text)
    splits: dict[str, list[MonoCut]] = {"train": [], "dev": [], "test": []}
    found = preparation.map(partial(_cut, root=root, options=options), usable, "reading")
    for prompt, cut_or_reason in zip(usable, found, strict=True):
        if isinstance(cut_or_reason, str):
            preparation.drop(prompt.key, cut_or_reason, prompt.text)
        elif cut_or_reason is not None:
            splits[split_of(prompt.text)].append(cut_or_reason)
    words = {word for split in splits.values() for cut in split for word in cut.supervisions[0].text.split()}
    preparation.finish(splits, lexicon=build_lexicon(words), sources=[source], notes={"Licence": LICENCE})


def split_of(text: str) -> str:
    """Return the split of a normalised text, fixed by its hash."""
    hundredth = int(hashlib.sha256(text.encode()).hexdigest(), 16) % 100
    return "train" if hundredth < TRAIN_UNTIL else "dev" if hundredth < DEV_UNTIL else "test"


def build_lexicon(words: set[str]) -> Lexicon:
    """Return pronunciations from extra_lexicon.txt and CMUdict, without words missing from both."""
    extra = Lexicon.load(Path(__file__).with_name("extra_lexicon.txt"))
    known = cmudict_lexicon(words).pronunciations
    return Lexicon(known | {word: extra.pronunciations[word] for word in words if word in extra})


def speech_bounds(samples: np.ndarray, sample_rate: int, silence_db: float) -> tuple[float, float] | None:
    """Return start and end of the speech in seconds; None if everything is silence."""
    size = round(FRAME_S * sample_rate)
    frames = samples[: len(samples) // size * size].reshape(-1, size)
    power = (frames.astype(np.float64) ** 2).mean(axis=1)
    if not power.size or power.max() == 0:
        return None
    loud = np.flatnonzero(power > power.max() * 10 ** (-silence_db / 10))
    return loud[0] * FRAME_S, (loud[-1] + 1) * FRAME_S


def _cut(prompt: Prompt, root: Path, options: Options) -> "MonoCut | str":
    """Return the trimmed recording, or the reason why there is none."""
    path = root / f"{prompt.key}.wav"
    if not path.exists():
        return "no recording"
    _, sample_rate, channels = audio_facts(path)
    if channels != 1:
        raise UserError(f"{path}: expected one channel, found {channels}")
    samples, _ = soundfile.read(path, dtype="int16")
    bounds = speech_bounds(samples, sample_rate, options.silence_db)
    if bounds is None:
        return "silence"
    length = len(samples) / sample_rate
    start = max(0.0, round(bounds[0] - options.margin_s, 3))
    duration = round(min(length, bounds[1] + options.margin_s) - start, 3)
    if duration > options.max_s:
        return f"longer than {options.max_s:g} s"
    name = prompt.key.replace("/", "-")
    whole = recording(name, path, len(samples), sample_rate)
    return utterance_cut(name, whole, prompt.text, SPEAKER, start_s=start, duration_s=duration)


def _fetch(folder: Path, console: Console) -> Path:
    """Download and unpack the Debian packages unless they exist."""
    unpacked = folder / "unpacked"
    if unpacked.exists():
        console.print(f"using the packages in {folder}")
        return unpacked
    hint = "or name a folder with the prompts: source=…"
    for program in ["apt-get", "dpkg-deb"]:
        if shutil.which(program) is None:
            raise UserError(f"{program} is not installed: use Debian or Ubuntu, {hint}")
    folder.mkdir(parents=True, exist_ok=True)
    console.print(f"downloading {' and '.join(PACKAGES)} (18 MB)")
    download = subprocess.run(["apt-get", "download", *PACKAGES], cwd=folder, capture_output=True, text=True)
    if download.returncode != 0:
        reason = (download.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise UserError(f"apt-get download failed ({reason}): run `apt-get update` as root first, {hint}")
    partial = folder / "unpacked.partial"
    shutil.rmtree(partial, ignore_errors=True)
    for package in PACKAGES:
        archive = sorted(folder.glob(f"{package}_*.deb"))[-1]
        unpack = subprocess.run(["dpkg-deb", "-x", archive, partial], capture_output=True, text=True)
        if unpack.returncode != 0:
            raise UserError(f"{archive}: expected a Debian package, dpkg-deb found: {unpack.stderr.strip()}")
    partial.rename(unpacked)
    return unpacked


def _find_transcripts(source: Path) -> Path:
    if not source.is_dir():
        raise UserError(f"source={source}: expected a folder with the prompts, found none")
    for name in TRANSCRIPTS:
        if found := sorted(source.rglob(name)):
            return found[0]
    raise UserError(f"{source}: expected {' or '.join(TRANSCRIPTS)} in it, found neither")


def _find_audio_root(source: Path, keys: list[str]) -> Path:
    """Return the folder in which most keys are paths of wav files."""
    folders = sorted({path.parent for path in source.rglob("*.wav")})
    hits = {folder: sum((folder / f"{key}.wav").exists() for key in keys) for folder in folders}
    if not hits or max(hits.values()) == 0:
        raise UserError(f"{source}: expected the prompts as wav files in it, found none")
    return max(hits, key=lambda folder: hits[folder])
