"""Hypotheses of development utterances during training."""

import json
from pathlib import Path

import pytest
from runs import killed
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tone_corpora import TINY

from asr.cli import main
from asr.errors import UserError
from asr.records.heard import Heard, read_heard


def train(corpus: Path, folder: Path, *more: str) -> int:
    overrides = [f"data.train=[{corpus}]", f"run={folder}", "trainer.max_steps=30"]
    overrides += ["trainer.validate_every=10", "trainer.checkpoint_every=15", *more]
    return main(["train", *TINY, *overrides])


@pytest.mark.slow
def test_a_resumed_run_has_each_validation_once(tone_corpus: Path, tmp_path: Path) -> None:
    """Killed after the validation at step 20, it goes on from step 15, and validates there again."""
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    assert train(tone_corpus, whole) == 0
    with killed(22):
        train(tone_corpus, resumed)
    written = read_heard(resumed / "hypotheses.jsonl")
    assert max(row.step for row in written) == 20
    assert train(tone_corpus, resumed, "resume=auto") == 0
    rows = read_heard(whole / "hypotheses.jsonl")
    assert read_heard(resumed / "hypotheses.jsonl") == rows
    steps = {step: sorted(row.id for row in rows if row.step == step) for step in (10, 20, 30)}
    assert len(rows) == sum(map(len, steps.values()))
    assert len(set(steps[10])) == 5
    assert steps[10] == steps[20] == steps[30]


@pytest.mark.slow
def test_hypotheses_are_in_tensorboard(tone_corpus: Path, tmp_path: Path) -> None:
    assert train(tone_corpus, tmp_path, "tokenizer.kind=character") == 0
    last = [row for row in read_heard(tmp_path / "hypotheses.jsonl") if row.step == 30]
    events = EventAccumulator(str(tmp_path / "tensorboard"), size_guidance={"tensors": 0}).Reload()
    for row in last:
        assert set(row.reference) <= set("abceskt ")
        found = events.Tensors(f"dev/{row.id}/text_summary")
        assert [event.step for event in found] == [10, 20, 30]
        text = found[-1].tensor_proto.string_val[0].decode()
        assert text == f"    {row.reference}\n    {row.hypothesis}"


def test_hypotheses_are_in_wandb_and_mlflow(tone_corpus: Path, tmp_path: Path) -> None:
    """Both had the metrics alone."""
    pytest.importorskip("wandb", reason="needs wandb")
    pytest.importorskip("mlflow", reason="needs mlflow")
    loggers = "trainer.loggers=[WandbLogger,MLFlowLogger]"
    assert train(tone_corpus, tmp_path, "tokenizer.kind=character", loggers) == 0
    rows = read_heard(tmp_path / "hypotheses.jsonl")
    tables = sorted(tmp_path.glob("wandb/offline-run-*/files/media/table/dev/hypotheses_*.json"))
    shown = [json.loads(path.read_text())["data"] for path in tables]
    expected = [[[x.id, x.reference, x.hypothesis] for x in rows if x.step == step] for step in (10, 20, 30)]
    assert sorted(shown) == sorted(expected)
    files = sorted(tmp_path.glob("mlruns/**/hypotheses/*.txt"))
    assert [path.name for path in files] == ["0000010.txt", "0000020.txt", "0000030.txt"]
    last = [x for x in rows if x.step == 30]
    assert files[-1].read_text().splitlines()[:3] == [
        last[0].id,
        f"    {last[0].reference}",
        f"    {last[0].hypothesis}",
    ]


def test_a_torn_line_is_ignored_and_a_foreign_one_named(tmp_path: Path) -> None:
    path = tmp_path / "hypotheses.jsonl"
    assert read_heard(path) == []
    line = '{"step": 3, "id": "a", "reference": "one", "hypothesis": ""}\n'
    path.write_text(f'{line}{{"step": 4, "id')
    assert read_heard(path) == [Heard(3, "a", "one", "")]
    path.write_text(f"{line}7\n")
    with pytest.raises(UserError, match=r"hypotheses\.jsonl: damaged: expected the hypotheses of a training"):
        read_heard(path)
