"""Damaged files of the program's own, and mutants of those that users bring or edit: read, or one line.

The program's own files are trusted once their format mark and digest fit.
"""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import soundfile
import torch
from mutants import VALUES, damaged, draw, mutant, written
from tone_corpora import LEXICON
from torch import Tensor

from asr.commands import NoOptions, merge
from asr.data.manifest import read_cuts
from asr.errors import UserError
from asr.experiment.records import Candidate
from asr.experiment.results import Results, read_results
from asr.files import write_record
from asr.lm.arpa import read_vocabulary
from asr.model import checkpoint, portable
from asr.model.acoustic_model import AcousticModel, AcousticModelConfig
from asr.model.options import FeatureConfig, ModelConfig
from asr.recognizer import Recognizer
from asr.records.job import Job
from asr.records.metrics import read_metrics
from asr.records.options import Shard
from asr.records.run_folder import RunFolder
from asr.scoring.hypotheses import Hypothesis, read_hypotheses
from asr.scoring.stm import read_stm
from asr.scoring.trn import read_trn
from asr.search.decoders.prefix import Prefix
from asr.search.tune import tuned
from asr.text.lexicon import Lexicon
from asr.text.prepared import find_prepared, tokenizer_files
from asr.text.tokenizer import (
    BLANK,
    CharacterTokenizer,
    PhoneTokenizer,
    SentencePieceTokenizer,
    Tokenizer,
    VocabularyTokenizer,
)
from asr.training.config import run_options

TEXTS = ["go on and do it", "never say ever again", "the cat sat on the mat"] * 3


class File(NamedTuple):
    """A file that may be broken: what is wrong with it, its path, and what reads it."""

    wrong: str
    path: Path
    read: Callable[[], Any]


Maker = Callable[[random.Random, Path], File]


def tokenizers() -> list[Tokenizer]:
    """Return a tokenizer of each kind."""
    return [
        PhoneTokenizer(LEXICON),
        CharacterTokenizer.train(TEXTS),
        SentencePieceTokenizer.train(TEXTS, 20),
        VocabularyTokenizer([BLANK, "|", "A", "B"]),
    ]


def model_state(source: random.Random) -> dict[str, Any]:
    """Return the state of a recogniser with random weights."""
    tokenizer = source.choice(tokenizers())
    sizes = ModelConfig(layers=1, heads=2, head_dim=4, feedforward=8, subsampling=2)
    config = AcousticModelConfig(features=FeatureConfig(mel_bins=10), model=sizes)
    return Recognizer(AcousticModel(config, len(tokenizer)), tokenizer).state()


def recognise(path: Path) -> Tensor:
    """Return what a model computes for silence."""
    log_probs, _ = Recognizer.load(path).model(torch.zeros(1, 8000), torch.tensor([8000]))
    return log_probs


def saved_model(source: random.Random, folder: Path) -> File:
    """Write a checkpoint and damage its bytes."""
    path = folder / "x.ckpt"
    checkpoint.save({"format": checkpoint.FORMAT, "run": "", "model": model_state(source)}, path)
    return damaged_file(source, path, lambda: recognise(path))


def damaged_file(source: random.Random, path: Path, read: Callable[[], Any]) -> File:
    """Damage the bytes of a file, or leave it whole."""
    wrong, content = damaged(path.read_bytes(), source)
    if source.random() < 0.9:  # digests refuse nearly every damage
        path.write_bytes(content)
    return File(wrong, path, read)


def damaged_model(source: random.Random, folder: Path) -> File:
    """Write an exported model and damage the bytes of a file."""
    name = source.choice([portable.WEIGHTS, portable.TOKENIZER, portable.CONFIG])
    portable.write_portable(model_state(source), folder)
    wrong, content = damaged((folder / name).read_bytes(), source)
    if source.random() < 0.9:  # the hashes refuse every damage, so some are left whole
        (folder / name).write_bytes(content)
    return File(f"{name} {wrong}", folder, lambda: recognise(folder))


def record(values: dict[str, Any], name: str, read: Callable[[Path], Any]) -> Maker:
    """Return what writes a record and damages its bytes."""

    def make(source: random.Random, folder: Path) -> File:
        write_record(values, folder / name)
        return damaged_file(source, folder / name, lambda: read(folder))

    return make


def lines_file(lines: list[Any], source: random.Random, path: Path) -> str:
    """Write JSON lines with one of them mutated, or with damaged bytes; return what is wrong."""
    if source.random() < 0.3:
        wrong, content = damaged(b"".join(written(x) + b"\n" for x in lines), source)
    else:
        wrong, values = mutant(lines, source)
        values = values if isinstance(values, list) else [values]
        content = b"".join(written(x) + b"\n" for x in values)
    path.write_bytes(content)
    return wrong


def shard(source: random.Random, folder: Path) -> File:
    """Write the journals of a job in two shards, and damage one of them, for `asr merge`."""
    same = {"command": "transcribe", "program": "1", "options": {"beam": {"size": 3}}}
    for index in (1, 2):
        job = Job.in_folder(folder, same, Shard(index, 2))
        for position in (index - 1, index + 1):
            job.add(str(position), [{f"{position}.txt": "go\n"}, None, {}])
        job.finish({})
    path = Shard(source.choice([1, 2]), 2).path(folder)
    return damaged_file(source, path, lambda: merge.run([folder], NoOptions()))


def journal(source: random.Random, folder: Path) -> File:
    """Write the journal of an interrupted command, and damage it."""
    path, same = folder / "x.jsonl", {"command": "x"}
    job = Job(path, same)
    for number in range(3):
        job.add(f"key {number}", [{"x.txt": "go"}, None, {"s": 0.5}])
    job.close()
    return damaged_file(source, path, lambda: Job(path, same))


def manifest(source: random.Random, folder: Path) -> File:
    """Write a manifest of two cuts."""
    path = folder / "x.cuts.jsonl"
    soundfile.write(folder / "a.wav", np.ones(16000) / 2, 8000)
    lines = []
    for i in range(2):
        sources = [{"type": "file", "channels": [0], "source": "a.wav"}]
        recording = {"sampling_rate": 8000, "num_samples": 16000, "duration": 2.0, "channel_ids": [0]}
        said = {"id": f"u{i}", "recording_id": "r", "start": 0.0, "duration": 1.0, "channel": 0, "text": "go"}
        lines.append(
            {
                "id": f"u{i}",
                "start": 0.0,
                "duration": 1.0,
                "channel": 0,
                "supervisions": [said],
                "recording": {"id": "r", "sources": sources, **recording},
                "type": "MonoCut",
            }
        )
    wrong = lines_file(lines, source, path)
    return File(wrong, path, lambda: list(read_cuts(path)))


def hypotheses(source: random.Random, folder: Path) -> File:
    """Write hyp.jsonl."""
    path = folder / "hyp.jsonl"
    said = {"tokens": ["a"], "times_s": [0.5], "duration_s": 2.0, "words": None, "nbest": None}
    wrong = lines_file([draw(Hypothesis, source) | said | {"id": f"u{i}"} for i in range(2)], source, path)
    return File(wrong, path, lambda: read_hypotheses(path))


def text_file(name: str, content: str, read: Callable[[Path], Any]) -> Maker:
    """Return what writes a text file with damaged bytes or fields."""

    def make(source: random.Random, folder: Path) -> File:
        path = folder / name
        if source.random() < 0.5:
            wrong, found = damaged(content.encode(), source)
        else:
            fields = content.split(" ")
            at, new = source.randrange(len(fields)), str(source.choice(VALUES))
            fields[at] = source.choice([new, "", f"\n{new}", f"{fields[at]} {new}"])
            wrong, found = f"field {at}: {new[:20]!r}", " ".join(fields).encode()
        path.write_bytes(found)
        return File(wrong, path, lambda: read(path))

    return make


def binary_model(source: random.Random, folder: Path) -> File:
    """Write a damaged language model of KenLM's."""
    path = folder / "x.trie"
    wrong, content = damaged((Path(__file__).parent / "lm" / "data" / "lmplz.trie").read_bytes(), source)
    path.write_bytes(content)
    return File(wrong, path, lambda: read_vocabulary(path))


def prepared_tokenizer(source: random.Random, folder: Path) -> File:
    """Write a prepared tokenizer; one that was changed is built again."""
    tokenizer = SentencePieceTokenizer.train(TEXTS, 20)
    wrong = ""
    for name, content in tokenizer_files("sentencepiece-20", tokenizer, TEXTS, None).items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        if path.suffix == ".json" and source.random() < 0.7:
            wrong, values = mutant(json.loads(content), source)
            content = written(values)
        elif source.random() < 0.5:
            wrong, content = damaged(content, source)
        path.write_bytes(content)
    return File(wrong, folder, lambda: find_prepared(folder, "sentencepiece", 20, TEXTS, None))


def run_yaml(source: random.Random, folder: Path) -> File:
    """Write the options of a run."""
    path = folder / "config.yaml"
    values = {
        "model": {"layers": 2, "dropout": 0.5},
        "data": {"train": ["a"]},
        "attention": "full",
        "seed": 1,
    }
    wrong, changed = mutant(values, source)
    content = written(changed)  # JSON is YAML
    if source.random() < 0.4:
        wrong, content = damaged(b"model:\n  layers: 2\ndata: {train: [a, b]}\nattention: full\n", source)
    path.write_bytes(content)
    return File(wrong, path, lambda: run_options(RunFolder(folder)))


def results(source: random.Random, folder: Path) -> File:
    """Write results.json with a candidate, so that its entries are reached."""
    fixed = {"format": 2, "created": "2026-01-01T00:00:00+00:00", "candidates": [draw(Candidate, source)]}
    values = draw(Results, source) | fixed
    wrong, changed = mutant(values, source)
    path = folder / "results.json"
    path.write_bytes(written(changed))
    return File(wrong, path, lambda: read_results(folder))


ARPA = (
    "\\data\\\nngram 1=3\nngram 2=1\n\n\\1-grams:\n-1 <s> -0.5\n-1 go -0.5\n-1 </s>\n\n"
    "\\2-grams:\n-0.1 go </s>\n\n\\end\\\n"
)
ENVIRONMENT = {"run": "a", "commit": None, "data": {}}
TUNED = {"prefix lm=none": {"lm_weight": 0.5, "word_score": 0.0, "size": 5}}
READERS: dict[str, Maker] = {
    "checkpoint": saved_model,
    "damaged export": damaged_model,
    "shards": shard,
    "journal": journal,
    "manifest": manifest,
    "hypotheses": hypotheses,
    "environment": record(ENVIRONMENT, "environment.json", lambda x: RunFolder(x).read_environment()),
    "results": results,
    "tuned": record(TUNED, "decode/tuned.json", lambda x: tuned(x, Prefix())),
    "options": run_yaml,
    "tokenizer": prepared_tokenizer,
    "lexicon": text_file("x.txt", "go G OW\nthe DH AH\nthe DH IY\n", Lexicon.load),
    "metrics": text_file("metrics.csv", "step,loss,dev_loss,dev_per\n0,1.5,,\n1,1.2,0.5,0.3\n", read_metrics),
    "trn": text_file("x.trn", "go on (a-1)\nthe { cat / dog } (a-2)\n", read_trn),
    "stm": text_file("x.stm", ";; c\na 1 s 0.0 1.5 <o,f> go on\na 1 s 1.5 2 <o> the\n", read_stm),
    "arpa": text_file("x.arpa", ARPA, read_vocabulary),
    "kenlm": binary_model,
}


def check(reader: str, number: int, folder: Path) -> bool:
    """Return whether a mutant is read; raise what isn't one line that names the file."""
    source = random.Random(f"{reader} {number}")
    folder.mkdir(parents=True)
    file = READERS[reader](source, folder)
    about = f"{reader} {number}: {file.wrong}"
    try:
        file.read()
    except UserError as error:
        line = str(error)
    except Exception as error:
        raise AssertionError(f"{about}: {type(error).__name__}: {str(error)[:200]}") from error
    else:
        return True
    assert "\n" not in line, f"{about}: {line!r}"
    assert len(line) < 1100, f"{about}: {line[:80]}"
    assert file.path.name in line, f"{about}: {line}"
    return False


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("count", [6, pytest.param(90, marks=pytest.mark.slow)])
def test_every_mutant_is_read_or_refused_in_one_line(count: int, reader: str, tmp_path: Path) -> None:
    """Lists, null and other types in place of objects ended transcribe, merge and train with tracebacks."""
    around = set(tmp_path.parent.iterdir())
    read = [check(reader, number, tmp_path / str(number)) for number in range(count)]
    assert any(read) or count < 50  # documents without the mutation are valid
    # Names in files lead to no place outside their folder.
    assert set(tmp_path.parent.iterdir()) == around
    assert {x.name for x in tmp_path.iterdir()} == {str(i) for i in range(count)}
