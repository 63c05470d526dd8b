"""Whether a recogniser of prompts is uncertain of what is nothing like them: other languages, music, noise.

    python -m asr_recipes.prompts.confidence model=exp/prompts/full

The French and Spanish prompts and the music on hold are Debian packages of Asterisk, fetched by apt-get
as the English prompts are. Music is cut into pieces of ten seconds.
"""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from asr import Recognizer
from asr.confidence import certainty, usual_limit
from asr.config import option, parse
from asr.data.audio import load_cut
from asr.data.manifest import load_cuts
from asr.data.module import manifest_path
from asr.data.recording import Samples, read_recording
from asr.environment import write_json
from asr.errors import UserError
from asr.transcription import TranscriptionConfig, emissions, transcribe_samples

PACKAGES = {
    "French prompts": ("asterisk-core-sounds-fr-wav", "fr_*"),
    "Spanish prompts": ("asterisk-core-sounds-es-wav", "es_*"),
    "music on hold": ("asterisk-moh-opsound-wav", "moh"),
}
PIECE_S = 10.0
SHORTEST_S = 1.0  # of what is compared


@dataclass
class Options:
    """What to compare."""

    model: str = option("exp/prompts/full", help="run folder or checkpoint")
    data: str = option("data/prompts", help="prepared folder; its test split is what the model should know")
    packages: str = option("data/prompts/packages_unlike", help="where the packages are kept unpacked")
    files: int = option(100, help="of each kind, at most")
    seed: int = option(0, help="of the choice and of the noise")
    output: str = option("", help="folder of confidence.json; empty: <model>")


def fetch(folder: Path) -> None:
    """Download and unpack the packages, those that aren't there.

    Raises:
        UserError: apt-get fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for package, _ in PACKAGES.values():
        if (folder / package).is_dir():
            continue
        try:
            subprocess.run(["apt-get", "download", package], cwd=folder, check=True, capture_output=True)
            (archive,) = folder.glob(f"{package}_*.deb")
            subprocess.run(["dpkg-deb", "-x", str(archive), str(folder / package)], check=True)
        except (OSError, ValueError, subprocess.CalledProcessError) as error:
            raise UserError(f"{package}: apt-get download failed ({error}): is this Debian?") from error
        archive.unlink()


def kinds(options: Options, rate: int) -> Iterator[tuple[str, list[Samples]]]:
    """Yield the name and the recordings of each kind, at the model's rate."""
    random = np.random.default_rng(options.seed)
    cuts = load_cuts(manifest_path(options.data, "test"))
    yield "test prompts", [load_cut(cut, rate) for cut in cuts if cut.duration >= SHORTEST_S]
    for kind, (package, place) in PACKAGES.items():
        files = sorted(Path(options.packages, package).glob(f"**/{place}/**/*.wav"))
        order = random.permutation(len(files))
        pieces: list[Samples] = []
        for i in order:
            pieces += _pieces(read_recording(files[i], rate)[0], rate, kind)
            if len(pieces) >= options.files:
                break
        yield kind, pieces[: options.files]
    noises = [(_white, "white noise"), (_pink, "pink noise")]
    for noise, kind in noises:
        yield kind, [noise(random, round(6 * rate)) for _ in range(20)]


def _pieces(samples: Samples, rate: int, kind: str) -> list[Samples]:
    """Return a prompt as it is, if it isn't too short or silent, and music in pieces."""
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


def dev_limit(recognizer: Recognizer, data: str) -> float:
    """Return what nearly all audio of the dev split reaches; checkpoints of today know it themselves."""
    rate = recognizer.config.features.sample_rate
    cuts = load_cuts(manifest_path(data, "dev"))
    found = [emissions(recognizer, load_cut(cut, rate), TranscriptionConfig()) for cut in cuts]
    return usual_limit([certainty(log_probs_TV) for log_probs_TV in found], [len(x) for x in found])


def separation(known: list[float], unlike: list[float]) -> float:
    """Return how often a known recording is more certain than an unlike one (area under the ROC curve)."""
    known_K1, unlike_U = np.array(known)[:, None], np.array(unlike)
    return float(((known_K1 > unlike_U) + 0.5 * (known_K1 == unlike_U)).mean())


def run(options: Options) -> None:
    """Print and write the certainty of each kind."""
    fetch(Path(options.packages))
    recognizer = Recognizer.load(options.model)
    limit = dev_limit(recognizer, options.data)
    config = TranscriptionConfig(min_confidence=0.0)  # compared here, not warned of one by one
    found: dict[str, list[float]] = {}
    for kind, recordings in kinds(options, recognizer.config.features.sample_rate):
        waiting = track(recordings, kind, console=Console(stderr=True), transient=True)
        found[kind] = [transcribe_samples(recognizer, x, config, kind).certainty for x in waiting]
    table = Table(
        "kind", "files", "certainty: median", "5 … 95 %", "marked %", "separation", title_justify="left"
    )
    known = found["test prompts"]
    rows = {}
    for kind, values in found.items():
        low, median, high = np.quantile(values, [0.05, 0.5, 0.95])
        marked = float(np.mean(np.array(values) < limit))
        row = {"files": len(values), "median": median, "low": low, "high": high, "marked": marked}
        rows[kind] = row | {"separation": separation(known, values)}
        shown = f"{rows[kind]['separation']:.2f}" if values is not known else ""
        table.add_row(
            kind, str(len(values)), f"{median:.2f}", f"{low:.2f} … {high:.2f}", f"{100 * marked:.0f}", shown
        )
    write_json({"model": options.model, "limit": limit, "kinds": rows}, _place(options) / "confidence.json")
    Console().print(table, f"marked: certainty below {limit:.2f}, which 95 % of the dev audio reaches")


def _place(options: Options) -> Path:
    model = Path(options.model)
    return Path(options.output) if options.output else model if model.is_dir() else model.parent


if __name__ == "__main__":
    try:
        run(parse(Options, sys.argv[1:]))
    except UserError as error:
        sys.exit(f"confidence: {error.line}")
