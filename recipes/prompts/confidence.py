"""Measures the confidence of a recogniser, trained on prompts, on other languages, music and noise.

    python -m asr_recipes.prompts.confidence model=exp/prompts/full

Prompts in other languages and music on hold come from Debian packages of Asterisk, which apt-get downloads.
Music is cut into pieces of ten seconds.
"""

import logging
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from asr import Recognizer
from asr.config import option, parse
from asr.console import Table, open_console
from asr.data.audio import load_cut
from asr.data.audio_file import Samples
from asr.data.manifest import read_cuts
from asr.data.places import manifest_path
from asr.data.recording import read_recording
from asr.errors import UserError, run_program
from asr.files import write_json
from asr.preparation.download import debian_packages
from asr.transcription.options import LOW_CONFIDENCE
from asr.transcription.transcript import Transcript

PACKAGES = {
    "French prompts": ("asterisk-core-sounds-fr-wav", "fr_*"),
    "Spanish prompts": ("asterisk-core-sounds-es-wav", "es_*"),
    "Italian prompts": ("asterisk-core-sounds-it-wav", "it_*"),
    "Russian prompts": ("asterisk-core-sounds-ru-wav", "ru_*"),
    "music on hold": ("asterisk-moh-opsound-wav", "moh"),
}
PIECE_S = 10.0
SHORTEST_S = 1.0  # shorter recordings are left out
TEST = "test prompts"


@dataclass
class Options:
    """Options of the measurement."""

    model: str = option("exp/prompts/full", help="run folder or checkpoint", affects="result")
    data: str = option(
        "data/prompts", help="prepared folder whose test split is the in-domain speech", affects="result"
    )
    packages: str = option(
        "data/prompts/packages_unlike", help="folder for the unpacked packages", affects="place"
    )
    recordings: int = option(
        400, help="maximum number of recordings of each kind", affects="result", minimum=1
    )
    seed: int = option(
        0, help="random seed for drawing recordings and noise", affects="result", maximum=2**32 - 1
    )
    min_confidence: float = option(
        LOW_CONFIDENCE, help="mark recordings with a lower confidence", affects="result", maximum=1
    )
    output: str = option(
        "", help="folder for confidence.json; empty: the folder of the model", affects="place"
    )


def kinds(options: Options, rate: int) -> Iterator[tuple[str, list[Samples]]]:
    """Yield the name and the recordings of each kind, at the sample rate `rate`."""
    random = np.random.default_rng(options.seed)
    cuts = read_cuts(manifest_path(options.data, "test"))
    recordings = {TEST: [load_cut(cut, rate) for cut in cuts]}
    for kind, (package, place) in PACKAGES.items():
        files = sorted(Path(options.packages, package).glob(f"**/{place}/**/*.wav"))
        recordings[kind] = [piece for file in files for piece in _pieces(file, rate, kind)]
    for kind, samples in recordings.items():
        chosen = sorted(random.permutation(len(samples))[: options.recordings])
        yield kind, [samples[i] for i in chosen if len(samples[i]) >= SHORTEST_S * rate]
    for noise, kind in [(_white, "white noise"), (_pink, "pink noise")]:
        yield kind, [noise(random, round(6 * rate)) for _ in range(20)]


def _pieces(file: Path, rate: int, kind: str) -> list[Samples]:
    """Return a prompt, unless it is too short, silent or unreadable; return music in pieces."""
    try:
        samples = read_recording(file, rate)[0]
    except UserError:
        return []  # one of the packages contains an empty file
    if "music" not in kind:
        loud = np.abs(samples).max() > 0.01
        return [samples] if loud and len(samples) >= SHORTEST_S * rate else []
    size = round(PIECE_S * rate)
    return [samples[start : start + size] for start in range(0, len(samples) - size, 6 * size)]


def _white(random: np.random.Generator, samples: int) -> Samples:
    return (0.05 * random.standard_normal(samples)).astype(np.float32)


def _pink(random: np.random.Generator, samples: int) -> Samples:
    spectrum = np.fft.rfft(random.standard_normal(samples))
    sound = np.fft.irfft(spectrum / np.sqrt(np.maximum(1, np.arange(len(spectrum)))), samples)
    return (0.05 * sound / sound.std()).astype(np.float32)


def separation(in_domain: list[float], other: list[float]) -> float:
    """Return the area under the ROC curve: how often in-domain speech has the higher confidence, 0 … 1."""
    ours, theirs = np.array(in_domain)[:, None], np.array(other)
    return float(((ours > theirs) + 0.5 * (ours == theirs)).mean())


def run(options: Options) -> None:
    """Print the confidence of each kind of recording, and write confidence.json."""
    packages = [package for package, _ in PACKAGES.values()]
    debian_packages(packages, Path(options.packages), open_console(), "100 MB")
    recognizer = Recognizer.load(options.model)
    logging.getLogger("asr").setLevel(logging.ERROR)  # no warning for each recording of low confidence
    transcripts_of: dict[str, list[Transcript]] = {}
    rate = recognizer.model.sample_rate
    for kind, recordings in kinds(options, rate):
        open_console().print(f"{kind}: {len(recordings)} recordings")
        transcripts_of[kind] = recognizer.transcribe(recordings, rate, min_confidence=options.min_confidence)
    heads = ("kind", "recordings", "confidence: median", "5 … 95 %", "marked %", "separation")
    lines = []
    in_domain = [transcript.mean_confidence for transcript in transcripts_of[TEST]]
    rows = {}
    for kind, transcripts in transcripts_of.items():
        values = [transcript.mean_confidence for transcript in transcripts]
        low, median, high = np.quantile(values, [0.05, 0.5, 0.95])
        marked = float(np.mean([transcript.low_confidence for transcript in transcripts]))
        rows[kind] = {"recordings": len(values), "median": median, "low": low, "high": high, "marked": marked}
        rows[kind]["separation"] = separation(in_domain, values)
        shown = f"{rows[kind]['separation']:.3f}" if kind != TEST else ""
        spread = f"{low:.2f} … {high:.2f}"
        lines.append((kind, str(len(values)), f"{median:.2f}", spread, f"{100 * marked:.1f}", shown))
    model = Path(options.model)
    folder = Path(options.output or (model if model.is_dir() else model.parent))
    write_json(
        {"model": options.model, "min_confidence": options.min_confidence, "kinds": rows},
        folder / "confidence.json",
    )
    table = Table.of("", heads, lines, numbers=False)
    open_console().print(table, f"marked: confidence below {options.min_confidence:g}")


if __name__ == "__main__":
    sys.exit(run_program("confidence", lambda: run(parse(Options, sys.argv[1:]))))
