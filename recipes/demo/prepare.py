"""Recipe `demo`: synthesise the embedded corpus, its manifests and its lexicon."""

import dataclasses
import hashlib
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from lhotse import AudioSource, MonoCut, Recording, SupervisionSegment
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from asr.data.manifest import save_cuts
from asr.errors import UserError

from .corpus import Options, Shard, check, draw_random_words, plan
from .grammar import grammar_words
from .pronounce import closed_lexicon, mnemonics

__all__ = ["Options", "prepare"]

SYNTHESIS = Path(__file__).with_name("synthesis.py")


def prepare(options: Options, folder: Path) -> None:
    """Write wav files, `<split>.cuts.jsonl.gz` and `lexicon.txt` below `folder`.

    The bytes depend on the options alone, whatever the number of workers. Finished shards are kept when
    it is interrupted, and a shard is spoken again when what it should hold has changed.
    """
    check(options)
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
