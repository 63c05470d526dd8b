"""`asr compare model=… data=…` has the figures of `asr approximate`: same resamples, same seeds."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from once import once
from published_models import make_voices, sentence, train_ctc
from tiny_whisper import save_whisper
from tone_corpora import make_corpus

from asr.cli import main

TEXTS = [sentence(random.Random(i)).lower() for i in range(100, 106)]


def compared(model: Path, data: Path, out: Path, more: list[str], old: list[str], new: list[str]) -> None:
    given = [f"model={model}", f"data={data}", "samples=50", "device=cpu", *more]
    assert main(["approximate", "task=transcription", f"folder={out / 'old'}", *given, *old]) == 0
    assert main(["compare", f"folder={out / 'new'}", *given, *new]) == 0
    (task,) = json.loads((out / "old" / "results.json").read_text())["tasks"]
    rows: dict[str, Any] = {row["attention"]: row for row in task["rows"]}
    evaluations = json.loads((out / "new" / "results.json").read_text())["evaluations"]
    names = [name if "=" not in name.partition(":")[0] else f"full {name}" for name in rows]
    assert [x["variant"] for x in evaluations] == names
    for row, found in zip(rows.values(), evaluations, strict=True):
        for name, score in row["scores"].items():
            rate = found["rates"][name.lower()]
            exact = name in ("WER", "top-1", "changed")
            near = {"rel": 1e-12, "abs": 0} if exact else {"rel": 1e-5, "abs": 1e-6}
            assert rate["rate"] == pytest.approx(score["value"], **near)
            assert rate["interval"] == pytest.approx(score["interval"], **near)
            if ratio := row["ratios"][name]:
                assert found["ratios"][name.lower()]["rate"] == pytest.approx(ratio["value"], rel=1e-4)
                if ratio["interval"]:
                    interval = found["ratios"][name.lower()]["interval"]
                    assert interval == pytest.approx(ratio["interval"], rel=1e-4)
            else:
                assert name.lower() not in found["ratios"]


def test_whisper(tmp_path: Path) -> None:
    save_whisper(tmp_path / "model")
    make_corpus(tmp_path / "data", {"test": 5})
    single = "candidates=['full frames=2','full frames=pad-10','full layers=1']"
    more = ["attentions=full,clustered-3,near-10:topk=9", "batch=450", "join_s=2.5"]
    old = ["frames=2,pad-10", "layers=1"]
    compared(tmp_path / "model", tmp_path / "data", tmp_path, more, old, [single])


def test_ctc(shared: Path, tmp_path: Path) -> None:
    model = once(shared / "published", train_ctc)
    voices = once(shared / "six_voices", lambda folder: make_voices(folder, TEXTS))
    more = ["attentions=full,local-0,near-5:topk=3", "join_s=2"]
    compared(model, voices, tmp_path, more, ["frames=['1,2']"], ["candidates=['full frames=1,2']"])
