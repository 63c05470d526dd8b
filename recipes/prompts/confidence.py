"""Whether a recogniser of prompts is uncertain of what is nothing like them: other languages, music, noise.

    python -m asr_recipes.prompts.confidence model=exp/prompts/full

The prompts of other languages and the music on hold are Debian packages of Asterisk, fetched by apt-get as
the English prompts are. Music is cut into pieces of ten seconds. How certainty is measured was chosen on
every second test prompt and every second French one: they have rows of their own.

A checkpoint of before recognisers learnt what is usual on their development set learns it here, from `data`;
store=true writes it into the checkpoint for `asr transcribe`.
"""

import logging
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from asr import Recognizer, checkpoint
from asr.confidence import usual_certainty, weigh
from asr.config import option, parse
from asr.console import open_console
from asr.data.audio import load_cut
from asr.data.manifest import load_cuts
from asr.data.module import manifest_path
from asr.data.recording import Samples, read_recording
from asr.errors import UserError
from asr.files import write_json
from asr.label_model import estimate_label_model
from asr.transcript import Transcript
from asr.transcription import TranscriptionConfig, emissions, transcribe_samples

PACKAGES = {
    "French prompts": ("asterisk-core-sounds-fr-wav", "fr_*"),
    "Spanish prompts": ("asterisk-core-sounds-es-wav", "es_*"),
    "Italian prompts": ("asterisk-core-sounds-it-wav", "it_*"),
    "Russian prompts": ("asterisk-core-sounds-ru-wav", "ru_*"),
    "music on hold": ("asterisk-moh-opsound-wav", "moh"),
}
PIECE_S = 10.0
SHORTEST_S = 1.0  # of what is compared
TEST = "test prompts"
CHOSEN_ON = (TEST, "French prompts")  # every second of these


@dataclass
class Options:
    """What to compare."""

    model: str = option("exp/prompts/full", help="run folder or checkpoint")
    data: str = option("data/prompts", help="prepared folder; its test split is what the model should know")
    packages: str = option("data/prompts/packages_unlike", help="where the packages are kept unpacked")
    files: int = option(400, help="of each kind, at most")
    seed: int = option(0, help="of the choice and of the noise")
    store: bool = option(
        False, help="write what is usual on the dev split into the checkpoint, if it lacks it"
    )
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
    recordings = {TEST: [load_cut(cut, rate) for cut in cuts]}
    for kind, (package, place) in PACKAGES.items():
        files = sorted(Path(options.packages, package).glob(f"**/{place}/**/*.wav"))
        recordings[kind] = [piece for file in files for piece in _pieces(file, rate, kind)]
    for kind, found in recordings.items():
        halves = {kind: found[1::2], f"{kind}, chosen on": found[::2]} if kind in CHOSEN_ON else {kind: found}
        for name, half in halves.items():
            chosen = sorted(random.permutation(len(half))[: options.files])
            yield name, [half[i] for i in chosen if len(half[i]) >= SHORTEST_S * rate]
    noises = [(_white, "white noise"), (_pink, "pink noise")]
    for noise, kind in noises:
        yield kind, [noise(random, round(6 * rate)) for _ in range(20)]


def _pieces(file: Path, rate: int, kind: str) -> list[Samples]:
    """Return a prompt as it is, if it isn't empty, too short or silent, and music in pieces."""
    try:
        samples = read_recording(file, rate)[0]
    except UserError:
        return []  # one of the packages has an empty file
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


def learn_usual(recognizer: Recognizer, data: str) -> None:
    """Let a recogniser of an earlier checkpoint know what is usual, as training does today.

    Args:
        recognizer: changed in place.
        data: prepared folder; the label model is of its train split, the limits of its dev split.
    """
    tokenizer, rate = recognizer.tokenizer, recognizer.config.features.sample_rate
    texts = [cut.supervisions[0].text or "" for cut in load_cuts(manifest_path(data, "train"))]
    recognizer.label_model = estimate_label_model([tokenizer.encode(x) for x in texts], len(tokenizer))
    cuts = load_cuts(manifest_path(data, "dev"))
    found = [emissions(recognizer, load_cut(cut, rate), TranscriptionConfig()) for cut in cuts]
    recognizer.config.usual = usual_certainty(
        [weigh(log_probs_TV, recognizer.frame_s, recognizer.label_model) for log_probs_TV in found]
    )


def store(recognizer: Recognizer) -> None:
    """Write what a recogniser has learnt into the checkpoint that it was loaded from."""
    if recognizer.file is None or recognizer.file.is_dir():
        raise UserError(f"store=true: expected a checkpoint to write into, found {recognizer.file}")
    content = checkpoint.load(recognizer.file)
    checkpoint.save(content | {"recognizer": recognizer.state()}, recognizer.file)


def separation(known: list[float], unlike: list[float]) -> float:
    """Return how often a known recording is more certain than an unlike one (area under the ROC curve)."""
    known_K1, unlike_U = np.array(known)[:, None], np.array(unlike)
    return float(((known_K1 > unlike_U) + 0.5 * (known_K1 == unlike_U)).mean())


def run(options: Options) -> None:
    """Print and write the certainty of each kind."""
    fetch(Path(options.packages))
    recognizer = Recognizer.load(options.model)
    if not recognizer.config.usual.labels:
        learn_usual(recognizer, options.data)
        if options.store:
            store(recognizer)
    logging.getLogger("asr").setLevel(logging.ERROR)  # counted here, not warned of one by one
    found: dict[str, list[Transcript]] = {}
    for kind, recordings in kinds(options, recognizer.config.features.sample_rate):
        waiting = track(recordings, kind, console=Console(stderr=True), transient=True)
        found[kind] = [transcribe_samples(recognizer, x, TranscriptionConfig(), kind) for x in waiting]
    table = Table(
        "kind", "files", "certainty: median", "5 … 95 %", "marked %", "separation", title_justify="left"
    )
    known = [transcript.certainty / transcript.usual_certainty for transcript in found[TEST]]
    rows = {}
    for kind, transcripts in found.items():
        values = [transcript.certainty for transcript in transcripts]
        low, median, high = np.quantile(values, [0.05, 0.5, 0.95])
        marked = float(np.mean([transcript.low_confidence for transcript in transcripts]))
        row = {"files": len(values), "median": median, "low": low, "high": high, "marked": marked}
        against = [transcript.certainty / transcript.usual_certainty for transcript in transcripts]
        rows[kind] = row | {"separation": separation(known, against)}
        shown = f"{rows[kind]['separation']:.3f}" if TEST not in kind else ""
        table.add_row(
            kind, str(len(values)), f"{median:.2f}", f"{low:.2f} … {high:.2f}", f"{100 * marked:.1f}", shown
        )
    usual = asdict(recognizer.config.usual)
    write_json({"model": options.model, "usual": usual, "kinds": rows}, _place(options) / "confidence.json")
    open_console().print(table, "marked: less certain than what 95 % of the dev set reaches at such a length")


def _place(options: Options) -> Path:
    model = Path(options.model)
    return Path(options.output) if options.output else model if model.is_dir() else model.parent


if __name__ == "__main__":
    try:
        run(parse(Options, sys.argv[1:]))
    except UserError as error:
        sys.exit(f"confidence: {error.line}")
