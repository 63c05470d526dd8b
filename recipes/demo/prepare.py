"""Recipe `demo`: synthesise the embedded corpus, its manifests and its lexicon."""

import dataclasses
import hashlib
import importlib.metadata
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lhotse import AudioSource, MonoCut, Recording, SupervisionSegment
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from asr.config import option
from asr.data.manifest import save_cuts
from asr.errors import UserError
from asr.text.cmudict import cmudict_entries

from .grammar import grammar_words, make_sentence
from .pronounce import closed_lexicon, mnemonics, spoken, without_stress
from .voices import TRAINING_VOICES, UNSEEN_VOICES, Voice

SYNTHESIS = Path(__file__).with_name("synthesis.py")
# Sentences outside are drawn again; with these an utterance lasts about 1.5 to 6 seconds.
PHONES_MIN, PHONES_MAX = 18, 56
# espeak-ng's pace at 1 word per minute, and the silence around a sentence: for planning only.
PHONES_PER_S_PER_WPM, SILENCE_S = 0.0785, 0.2
SHARD_MINUTES = 3.0


@dataclass
class Options:
    """What the embedded corpus holds; the defaults are what results are quoted for."""

    # Seed 26 draws no vulgar word from the dictionary, which holds many.
    seed: int = option(26, help="seed of sentences, random words and variations of the voices")
    train_minutes: float = option(66.0, help="speech in train, about", unit="min")
    dev_minutes: float = option(4.0, help="speech in dev, about", unit="min")
    test_minutes: float = option(7.0, help="speech in test: unseen sentences, voices of train", unit="min")
    test_voices_minutes: float = option(7.0, help="speech in test_voices: both unseen", unit="min")
    voices: int = option(12, help="voices in train, dev and test, 1 to 12")
    unseen_voices: int = option(5, help="voices in test_voices, 1 to 5")
    random_words: int = option(950, help="random CMUdict words in the lexicon, for phone coverage")
    random_share: float = option(0.15, help="share of the words that are random ones")
    sample_rate: int = option(
        16000, help="of the wav files: 16000, or 8000 for training with prompts", unit="Hz"
    )
    workers: int = option(0, help="processes; 0: one per available core")


@dataclass(frozen=True)
class Utterance:
    """A sentence and the way it is spoken."""

    id: str
    words: list[str]
    rate: int
    pitch: int
    warp: float
    silence_ms: tuple[int, int]  # before and after; espeak-ng leaves hardly any
    noise_level: int  # of the room, in 16-bit steps
    noise_seed: int


@dataclass(frozen=True)
class Shard:
    """Utterances of one voice that one fresh process speaks: the unit of resumption."""

    name: str
    split: str
    voice: Voice
    utterances: list[Utterance]


def prepare(options: Options, folder: Path) -> None:
    """Write wav files, `<split>.cuts.jsonl.gz` and `lexicon.txt` below `folder`.

    The bytes depend on the options alone, whatever the number of workers. Finished shards are kept when
    it is interrupted, and a shard is spoken again when what it should hold has changed.
    """
    _check(options)
    engine = _engine()
    words = draw_random_words(options)
    lexicon = closed_lexicon([*grammar_words(), *words])
    shards = plan(options, words)
    folder.mkdir(parents=True, exist_ok=True)
    descriptions = {shard.name: _description(shard, options, engine) for shard in shards}
    missing = [shard for shard in shards if not _is_done(folder, shard.name, descriptions[shard.name])]
    console = Console()
    if missing:
        _remove_others(folder, descriptions)
        _speak(missing, descriptions, folder, _workers(options), console)
    else:
        console.print(
            f"{folder} is up to date: all {len(shards)} shards are there", soft_wrap=True, markup=False
        )
    lexicon.save(folder / "lexicon.txt")
    table = Table("split", "utterances", "minutes", "words", "speakers", title=f"demo, {len(lexicon)} words")
    for split in ["train", "dev", "test", "test_voices"]:
        cuts = [cut for shard in shards if shard.split == split for cut in _cuts(shard, folder, options)]
        save_cuts(cuts, folder / f"{split}.cuts.jsonl.gz")
        minutes = sum(cut.duration for cut in cuts) / 60
        spoken_words = sum(len(cut.supervisions[0].text.split()) for cut in cuts)
        speakers = len({cut.supervisions[0].speaker for cut in cuts})
        table.add_row(split, str(len(cuts)), f"{minutes:.1f}", str(spoken_words), str(speakers))
    console.print(table)


def draw_random_words(options: Options) -> list[str]:
    """The fixed list of random words: 2 to 10 letters, no two words of the lexicon spoken alike."""
    words = grammar_words()
    taken = {without_stress(spoken(word)) for word in words}
    candidates = sorted(w for w in cmudict_entries() if w.isascii() and w.isalpha() and 2 <= len(w) <= 10)
    random.Random(f"words {options.seed}").shuffle(candidates)
    drawn: list[str] = []
    for word in candidates:
        if len(drawn) == options.random_words:
            break
        phones = without_stress(spoken(word))
        if phones not in taken and len(phones) > 1:
            taken.add(phones)
            drawn.append(word)
    return sorted(drawn)


def plan(options: Options, random_words: list[str]) -> list[Shard]:
    """Every shard with its sentences; no sentence is in two splits, or twice in one."""
    used: set[str] = set()
    shards = []
    trained, unseen = TRAINING_VOICES[: options.voices], UNSEEN_VOICES[: options.unseen_voices]
    # train comes last: its size doesn't change what is tested.
    splits = [
        ("test", options.test_minutes, trained),
        ("test_voices", options.test_voices_minutes, unseen),
        ("dev", options.dev_minutes, trained),
        ("train", options.train_minutes, trained),
    ]
    for split, minutes, voices in splits:
        parts = max(1, round(minutes / len(voices) / SHARD_MINUTES))
        for part in range(parts):
            for voice in voices:
                name = f"{split}-{voice.speaker}-{part}"
                rng = random.Random(f"{name} {options.seed}")
                seconds = 60 * minutes / len(voices) / parts
                shards.append(
                    Shard(
                        name,
                        split,
                        voice,
                        list(_draw(rng, name, voice, seconds, options, random_words, used)),
                    )
                )
    return shards


def _draw(
    rng: random.Random,
    name: str,
    voice: Voice,
    seconds: float,
    options: Options,
    random_words: list[str],
    used: set[str],
) -> Iterator[Utterance]:
    """Draw utterances until they should last for `seconds`; add their sentences to `used`."""
    number = 0
    while seconds > 0:
        words = make_sentence(rng, random_words, options.random_share)
        phones = sum(len(spoken(word)) for word in words)
        if " ".join(words) in used or not PHONES_MIN <= phones <= PHONES_MAX:
            continue
        used.add(" ".join(words))
        rate = round(voice.rate * rng.uniform(0.94, 1.06))
        warp = round(voice.warp * rng.uniform(0.98, 1.02), 3)
        seconds -= phones / (PHONES_PER_S_PER_WPM * rate * warp) + SILENCE_S
        yield Utterance(
            id=f"{name}-{number:04d}",
            words=words,
            rate=rate,
            pitch=voice.pitch + rng.randint(-6, 6),
            warp=warp,
            silence_ms=(rng.randint(40, 160), rng.randint(40, 160)),
            noise_level=rng.randint(2, 20),
            noise_seed=rng.getrandbits(32),
        )
        number += 1


def _description(shard: Shard, options: Options, engine: dict[str, str]) -> dict[str, Any]:
    """What synthesis.py reads; its digest tells whether a shard on disk is this one."""
    utterances = []
    for utterance in shard.utterances:
        entry = dataclasses.asdict(utterance)
        entry["phonemes"] = mnemonics(entry.pop("words"), shard.voice.rhotic)
        utterances.append(entry)
    content = {
        "voice": shard.voice.espeak,
        "sample_rate": options.sample_rate,
        "utterances": utterances,
        "engine": engine["version"],
        "program": hashlib.sha256(SYNTHESIS.read_bytes()).hexdigest(),
    }
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return {**content, "digest": digest, "library": engine["library"], "data": engine["data"]}


def _is_done(folder: Path, name: str, description: dict[str, Any]) -> bool:
    try:
        done = json.loads((folder / "wav" / name / "shard.json").read_text())
    except (OSError, ValueError):
        return False
    return done["digest"] == description["digest"]


def _remove_others(folder: Path, descriptions: dict[str, Any]) -> None:
    """Remove shards of other options and what an interrupted run left."""
    for path in (folder / "wav").glob("*"):
        ours = path.suffix == ".partial" or (path / "shard.json").exists()
        if ours and path.name not in descriptions:
            shutil.rmtree(path)


def _speak(
    shards: list[Shard], descriptions: dict[str, Any], folder: Path, workers: int, console: Console
) -> None:
    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    longest_first = sorted(shards, key=lambda shard: -len(shard.utterances))
    with Progress(*columns, console=console) as progress, ThreadPoolExecutor(workers) as pool:
        task = progress.add_task("speaking", total=sum(len(shard.utterances) for shard in shards))
        try:
            for spoken_count in pool.map(
                lambda shard: _speak_shard(shard.name, descriptions[shard.name], folder), longest_first
            ):
                progress.advance(task, spoken_count)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _speak_shard(name: str, description: dict[str, Any], folder: Path) -> int:
    """Run synthesis.py; the shard's folder appears whole, with the lengths of its files, or not at all."""
    partial, final = folder / "wav" / f"{name}.partial", folder / "wav" / name
    for leftover in (partial, final):
        shutil.rmtree(leftover, ignore_errors=True)
    partial.mkdir(parents=True)
    (partial / "description.json").write_text(json.dumps(description))
    command = [sys.executable, str(SYNTHESIS), str(partial / "description.json"), str(partial)]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode != 0:
        reason = (run.stderr.strip().splitlines() or [f"exit status {run.returncode}"])[-1]
        raise UserError(f"shard {name}: espeak-ng could not speak it: {reason}")
    lengths = json.loads(run.stdout)
    (partial / "description.json").unlink()
    (partial / "shard.json").write_text(json.dumps({"digest": description["digest"], "samples": lengths}))
    partial.rename(final)
    return len(lengths)


def _cuts(shard: Shard, folder: Path, options: Options) -> Iterator[MonoCut]:
    samples = json.loads((folder / "wav" / shard.name / "shard.json").read_text())["samples"]
    for utterance in shard.utterances:
        count = samples[utterance.id]
        duration = count / options.sample_rate
        source = AudioSource("file", [0], str(folder / "wav" / shard.name / f"{utterance.id}.wav"))
        yield MonoCut(
            id=utterance.id,
            start=0.0,
            duration=duration,
            channel=0,
            recording=Recording(utterance.id, [source], options.sample_rate, count, duration),
            supervisions=[
                SupervisionSegment(
                    id=utterance.id,
                    recording_id=utterance.id,
                    start=0.0,
                    duration=duration,
                    text=" ".join(utterance.words),
                    speaker=shard.voice.speaker,
                    language="en",
                )
            ],
        )


def _engine() -> dict[str, str]:
    try:
        import espeakng_loader
    except ImportError:
        raise UserError(
            "espeakng-loader is needed here and is not installed: pip install 'clustered-asr[demo]'"
        ) from None
    return {
        "library": str(espeakng_loader.get_library_path()),
        "data": str(espeakng_loader.get_data_path()),
        "version": importlib.metadata.version("espeakng-loader"),
    }


def _workers(options: Options) -> int:
    if options.workers > 0:
        return options.workers
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _check(options: Options) -> None:
    limits = {
        "voices": (1, len(TRAINING_VOICES)),
        "unseen_voices": (1, len(UNSEEN_VOICES)),
        "random_share": (0, 1),
        "random_words": (1, 20000),
        "sample_rate": (8000, 22050),
        "workers": (0, 4096),
    }
    for name, (low, high) in limits.items():
        value = getattr(options, name)
        if not low <= value <= high:
            raise UserError(f"{name}={value}: expected {low} to {high}")
    for name in ["train_minutes", "dev_minutes", "test_minutes", "test_voices_minutes"]:
        if not getattr(options, name) > 0:
            raise UserError(f"{name}={getattr(options, name)}: expected more than 0 minutes")
