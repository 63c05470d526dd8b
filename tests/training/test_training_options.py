"""Training, decoding and scoring work with every kind of training option."""

import json
from pathlib import Path

import pytest
import torch
from quick import quick
from small_mechanisms import small_names, unlisted
from tone_corpora import TINY

from asr.cli import main
from asr.model import checkpoint

CHOICES = {
    "characters": ["tokenizer.kind=character"],
    "pieces": ["tokenizer.kind=sentencepiece", "tokenizer.pieces=14"],
    "bf16": ["trainer.precision=bf16"],
    "the precision of the processor": ["trainer.precision=auto"],
    "corpus statistics": ["features.normalise=corpus"],
    "rotary": ["model.positions=rotary"],
    "subsampling by 8": ["model.subsampling=8"],
    "early stopping": ["trainer.early_stopping=1"],
    "average": ["trainer.keep_best=3", "trainer.average_best=3"],
    "augmentation": ["augment.speed_factors=[0.9,1.1]", "augment.noise=white", "augment.volume_db=6"],
    "cast": ["attention=cast-4"],
    "cast single": ["attention=cast-4:assign=single"],
    "agglomerative": ["attention=agglomerative-4"],
    "lsh": ["attention=lsh-2"],
    "oracle": ["attention=oracle-top-8"],
    "local": ["attention=local-3:global=1"],
    "linear": ["attention=linear:causal=true"],
    "summary": ["attention=summary"],
    "hyper": ["attention=hyper"],
    "i-clustered": ["attention=i-clustered-8:topk=4"],
}
ATTENTIONS = [words[0].removeprefix("attention=") for words in CHOICES.values() if "attention=" in words[0]]
ELSEWHERE = ["full", "shared-full", "clustered-8"]
CHOICES |= {name: [f"attention={small_names(name)[0]}"] for name in unlisted(ATTENTIONS + ELSEWHERE)}


QUICK = ("characters", "pieces", "rotary", "average", "cast", "i-clustered")


@pytest.mark.parametrize("choice", quick(CHOICES, QUICK.__contains__))
def test_trains_decodes_and_scores(choice: str, tone_corpus: Path, tmp_path: Path) -> None:
    overrides = [*TINY, *CHOICES[choice], f"data.train=[{tone_corpus}]", f"run={tmp_path}"]
    assert main(["train", *overrides, "trainer.max_steps=6", "trainer.validate_every=2"]) == 0
    assert main(["decode", str(tmp_path)]) == 0
    (folder,) = (tmp_path / "decode" / "test").iterdir()
    assert main(["score", str(folder)]) == 0
    score = json.loads((folder / "score.json").read_text())
    assert ("per" in score) == (choice not in ("characters", "pieces"))
    assert score["wer"]["length"] > 0
    assert checkpoint.find(tmp_path).stem.startswith("average" if choice == "average" else "best")


def test_corpus_statistics_are_stored_with_the_model(tone_corpus: Path, tmp_path: Path) -> None:
    overrides = [*TINY, "features.normalise=corpus", f"data.train=[{tone_corpus}]", f"run={tmp_path}"]
    assert main(["train", *overrides, "trainer.max_steps=2"]) == 0
    weights = checkpoint.load(checkpoint.find(tmp_path))["model"]["weights"]
    assert weights["normalisation.mean"].abs().min() > 0.1
    assert weights["normalisation.std"].min() > 0
    assert (weights["normalisation.std"] != 1).all()


def test_half_precision_on_the_cpu_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("fp16 works on this machine, which has a CUDA device")
    assert main(["train", "recipe=demo", "trainer.precision=fp16", f"run={tmp_path}"]) == 1
    assert "fp16 needs a CUDA device" in capsys.readouterr().err
