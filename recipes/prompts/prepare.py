"""Recipe `prompts`: the recorded English prompts of Asterisk to manifests and a lexicon."""

import csv
import gzip
import hashlib
import shutil
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile
from lhotse import AudioSource, MonoCut, Recording, SupervisionSegment
from rich.console import Console
from rich.progress import track
from rich.table import Table

from asr.config import option
from asr.data.manifest import save_cuts
from asr.errors import UserError
from asr.text.cmudict import cmudict_lexicon
from asr.text.lexicon import Lexicon

from .transcripts import Prompt, parse_transcripts

PACKAGES = ["asterisk-core-sounds-en-wav", "asterisk-core-sounds-en"]
TRANSCRIPTS = ["core-sounds-en.txt", "core-sounds-en.txt.gz"]
SPEAKER = "allison"
# Shares of the distinct texts, in hundredths: below 80 train, below 88 dev, else test.
TRAIN_UNTIL, DEV_UNTIL = 80, 88
FRAME_S = 0.01


@dataclass
class Options:
    """Where the prompts come from and how they are trimmed."""

    source: str = option(
        "", help="folder with the wav files and core-sounds-en.txt[.gz] below it; empty: apt-get download"
    )
    silence_db: float = option(40.0, help="what is this far below the loudest 10 ms is silence", unit="dB")
    margin_s: float = option(0.1, help="kept before and after what is not silence", unit="s")
    max_s: float = option(40.0, help="longer recordings are excluded", unit="s")


def prepare(options: Options, folder: Path) -> None:
    """Write `<split>.cuts.jsonl.gz`, `lexicon.txt` and `excluded.tsv` below `folder`.

    The audio stays where it is (in `folder/packages` when this fetches it); silence at both ends is
    left out by the cuts. Equal texts are in one split, so no test sentence is in training.
    """
    console = Console()
    source = Path(options.source) if options.source else _fetch(folder / "packages", console)
    transcripts = _find_transcripts(source)
    prompts = list(parse_transcripts(_read_lines(transcripts)))
    root = _find_audio_root(source, [prompt.key for prompt in prompts])
    excluded = [prompt for prompt in prompts if prompt.excluded]
    cuts: dict[str, list[MonoCut]] = {"train": [], "dev": [], "test": []}
    for prompt in track([p for p in prompts if not p.excluded], "reading", console=console, transient=True):
        cut_or_reason = _cut(prompt, root / f"{prompt.key}.wav", options)
        if isinstance(cut_or_reason, str):
            excluded.append(Prompt(prompt.key, prompt.text, cut_or_reason))
        else:
            cuts[split_of(prompt.text)].append(cut_or_reason)
    texts = [cut.supervisions[0].text for split in cuts.values() for cut in split]
    lexicon, unknown = build_lexicon(texts)
    for split, members in cuts.items():
        if not members:
            raise UserError(
                f"{transcripts}: expected enough prompts for three splits, found none for {split}"
            )
        save_cuts(members, folder / f"{split}.cuts.jsonl.gz")
    lexicon.save(folder / "lexicon.txt")
    _write_excluded(excluded, folder / "excluded.tsv")
    _print_summary(cuts, excluded, lexicon, unknown, folder, console)


def split_of(text: str) -> str:
    """The split of a normalised text: fixed by its hash, so it never moves."""
    hundredth = int(hashlib.sha256(text.encode()).hexdigest(), 16) % 100
    return "train" if hundredth < TRAIN_UNTIL else "dev" if hundredth < DEV_UNTIL else "test"


def build_lexicon(texts: list[str]) -> tuple[Lexicon, list[str]]:
    """The words' pronunciations from CMUdict and extra_lexicon.txt, and the words that neither knows."""
    words = {word for text in texts for word in text.split()}
    extra = Lexicon.load(Path(__file__).with_name("extra_lexicon.txt"))
    known = cmudict_lexicon(words).pronunciations
    known |= {word: extra.pronunciations[word] for word in words if word in extra}
    return Lexicon(known), sorted(words - set(known))


def speech_bounds(samples: np.ndarray, sample_rate: int, silence_db: float) -> tuple[float, float] | None:
    """Start and end in seconds of what is not silence; None where all is."""
    size = round(FRAME_S * sample_rate)
    frames = samples[: len(samples) // size * size].reshape(-1, size)
    power = (frames.astype(np.float64) ** 2).mean(axis=1)
    if not power.size or power.max() == 0:
        return None
    loud = np.flatnonzero(power > power.max() * 10 ** (-silence_db / 10))
    return loud[0] * FRAME_S, (loud[-1] + 1) * FRAME_S


def _cut(prompt: Prompt, path: Path, options: Options) -> MonoCut | str:
    """The trimmed recording, or the reason why there is none."""
    if not path.exists():
        return "no recording"
    try:
        samples, sample_rate = soundfile.read(path, dtype="int16")
    except soundfile.LibsndfileError as error:
        raise UserError(f"{path}: expected a wav file, found one that can't be read ({error})") from None
    if samples.ndim != 1:
        raise UserError(f"{path}: expected one channel, found {samples.shape[1]}")
    bounds = speech_bounds(samples, sample_rate, options.silence_db)
    if bounds is None:
        return "silence"
    length = len(samples) / sample_rate
    start = max(0.0, round(bounds[0] - options.margin_s, 3))
    duration = round(min(length, bounds[1] + options.margin_s) - start, 3)
    if duration > options.max_s:
        return f"longer than {options.max_s:g} s"
    name = prompt.key.replace("/", "-")
    return MonoCut(
        id=name,
        start=start,
        duration=duration,
        channel=0,
        recording=Recording(name, [AudioSource("file", [0], str(path))], sample_rate, len(samples), length),
        supervisions=[
            SupervisionSegment(
                id=name,
                recording_id=name,
                start=0.0,
                duration=duration,
                text=prompt.text,
                speaker=SPEAKER,
                language="en",
            )
        ],
    )


def _fetch(folder: Path, console: Console) -> Path:
    """Download and unpack the Debian packages; what is there already is kept."""
    unpacked = folder / "unpacked"
    if unpacked.exists():
        console.print(f"using the packages in {folder}")
        return unpacked
    hint = "or name a folder that holds the prompts: source=…"
    for program in ["apt-get", "dpkg-deb"]:
        if shutil.which(program) is None:
            raise UserError(f"{program} is not on this machine: run this on Debian or Ubuntu, {hint}")
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
    raise UserError(f"{source}: expected {' or '.join(TRANSCRIPTS)} somewhere below, found neither")


def _read_lines(path: Path) -> list[str]:
    try:
        content = path.read_bytes()
        return (gzip.decompress(content) if path.suffix == ".gz" else content).decode().splitlines()
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: the transcripts can't be read ({error})") from None


def _find_audio_root(source: Path, keys: list[str]) -> Path:
    """The folder below which most keys are paths of wav files."""
    folders = sorted({path.parent for path in source.rglob("*.wav")})
    hits = {folder: sum((folder / f"{key}.wav").exists() for key in keys) for folder in folders}
    if not hits or max(hits.values()) == 0:
        raise UserError(f"{source}: expected the prompts as wav files somewhere below, found none of them")
    return max(hits, key=lambda folder: hits[folder])


def _write_excluded(excluded: list[Prompt], path: Path) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, delimiter="\t", lineterminator="\n")
        rows.writerow(["key", "reason", "text"])
        rows.writerows(
            [prompt.key, prompt.excluded, prompt.text] for prompt in sorted(excluded, key=lambda p: p.key)
        )


def _print_summary(
    cuts: dict[str, list[MonoCut]],
    excluded: list[Prompt],
    lexicon: Lexicon,
    unknown: list[str],
    folder: Path,
    console: Console,
) -> None:
    table = Table("split", "utterances", "minutes", "words", title=f"prompts, {len(lexicon)} words")
    for split, members in cuts.items():
        minutes = sum(cut.duration for cut in members) / 60
        words = sum(len(cut.supervisions[0].text.split()) for cut in members)
        table.add_row(split, str(len(members)), f"{minutes:.1f}", str(words))
    console.print(table)
    kinds = Counter(prompt.excluded.split(" '")[0] for prompt in excluded)
    reasons = ", ".join(f"{count} × {reason}" for reason, count in kinds.most_common())
    console.print(
        f"{len(excluded)} excluded, listed in {folder / 'excluded.tsv'}: {reasons or 'none'}",
        soft_wrap=True,
        markup=False,
    )
    if unknown:
        console.print(
            f"{len(unknown)} words outside the lexicon, trained as SPN: {' '.join(unknown)}",
            soft_wrap=True,
            markup=False,
        )
