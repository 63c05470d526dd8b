"""Errors in the input are reported in one line that names the file or the utterance."""

import csv
import gzip
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from tone_corpora import TINY

from asr.cli import main
from asr.model import checkpoint

Maker = Callable[..., Path]


def train(corpus: Path, folder: Path, *overrides: str) -> int:
    return main(
        ["train", *TINY, f"data.train=[{corpus}]", f"run={folder}", "trainer.max_steps=3", *overrides]
    )


def fails(capsys: pytest.CaptureFixture[str], status: int) -> str:
    """Return the one line that a failed command printed on stderr."""
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("asr: ")]
    assert status == 1
    assert len(lines) == 1
    return lines[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "run=run", "data.train=[nowhere]"], "nowhere/train.cuts.jsonl.gz"),
        (["train", "run=run"], "data.train is empty"),
        (["train", "model.layers=2", "model.frames=1,3"], "data.train is empty"),
        (["train", "model.layers=3", "model.frames=1,3"], "asr: model.frames=1,3: expected factors for 3"),
        (["train", "attentoin=full"], "did you mean 'attention'?"),
        (["trian"], "did you mean 'train'?"),
    ],
)
def test_bad_arguments(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in fails(capsys, main(arguments))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("damage", ["truncated", "empty", "text", "nan"])
def test_damaged_audio_names_the_utterance(
    damage: str, workers: int, corpus_maker: Maker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = corpus_maker()
    wav = corpus / "wav" / "train-2.wav"
    if damage == "truncated":
        wav.write_bytes(wav.read_bytes()[:2000])
    elif damage == "empty":
        wav.write_bytes(b"")
    elif damage == "text":
        wav.write_text("this is not audio")
    else:
        samples, rate = soundfile.read(wav, dtype="float32")
        samples[100] = np.nan
        soundfile.write(wav, samples, rate, subtype="FLOAT")
    line = fails(capsys, train(corpus, tmp_path / "run", f"data.workers={workers}"))
    assert "train-2" in line
    if damage == "nan":
        assert "sample 100 is not finite" in line


def test_transcribing_reports_all_bad_files_and_transcribes_the_others(
    trained: Path, tone_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short, missing = tmp_path / "short.wav", tmp_path / "missing.wav"
    soundfile.write(short, np.zeros(100, dtype=np.float32), 16000)
    good = tone_corpus / "wav" / "test-0.wav"
    assert main(["transcribe", str(trained), str(missing), str(short), str(good)]) == 1
    printed = capsys.readouterr()
    assert printed.out.startswith(f"{good}\t")
    assert len(printed.out.splitlines()) == 1
    assert f"{missing}: expected an audio file, found no such file" in printed.err
    assert f"{short}: 6.2 ms is shorter than one frame" in printed.err


def test_words_outside_the_lexicon_are_counted(
    corpus_maker: Maker, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = corpus_maker()
    lexicon = corpus / "lexicon.txt"
    lines = [line for line in lexicon.read_text().splitlines() if not line.startswith("cat")]
    lexicon.write_text("\n".join(lines) + "\n")
    assert train(corpus, tmp_path / "run") == 0
    printed = capsys.readouterr().out
    for data in ("training", "development"):
        assert re.search(rf"{data} data: \d+ of \d+ words \(1 distinct\) without pronunciation: cat", printed)
        assert re.search(rf"{data} data: [\d.]+ % of \d+ words have no pronunciation: ", caplog.text)


def test_utterances_too_short_for_their_targets_are_left_out_and_listed(
    corpus_maker: Maker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    corpus = corpus_maker()
    path = corpus / "train.cuts.jsonl.gz"
    cuts = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    cuts[1]["supervisions"][0]["text"] = "cat back " * 40
    path.write_bytes(gzip.compress("\n".join(json.dumps(cut) for cut in cuts).encode()))
    assert train(corpus, tmp_path / "run") == 0
    with (tmp_path / "run" / "left_out.tsv").open() as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    assert [row["utterance"] for row in rows] == ["train-1"]
    assert "the targets need" in rows[0]["reason"]
    assert "left out 1 of 6 utterances" in caplog.text


def test_weights_that_do_not_fit_are_rejected(
    trained: Path, corpus_maker: Maker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = corpus_maker()
    (corpus / "lexicon.txt").write_text((corpus / "lexicon.txt").read_text() + "zoo Z UW\n")
    line = fails(capsys, train(corpus, tmp_path / "run", f"init_from={trained}", "tokenizer.kind=character"))
    assert f"tokenizer.kind=character: expected phone with init_from={trained}" in line
    for size, own in (("layers=2", 1), ("head_dim=8", 16), ("feedforward=100", 64)):
        line = fails(capsys, train(corpus, tmp_path / "run", f"init_from={trained}", f"model.{size}"))
        assert f"model.{size}: expected {own} with init_from={trained}" in line
    assert not (tmp_path / "run").exists()


def test_resuming_with_another_vocabulary_is_rejected(
    corpus_maker: Maker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = corpus_maker()
    assert train(corpus, tmp_path / "run") == 0
    with (corpus / "lexicon.txt").open("a") as file:
        file.write("zoo Z UW\n")
    line = fails(capsys, train(corpus, tmp_path / "run", "resume=auto", "trainer.max_steps=5"))
    assert "inputs have changed since the run began: lexicon" in line


class Malicious:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch /tmp/clustered_asr_was_here",)


def test_a_checkpoint_that_would_run_code_is_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "evil.ckpt"
    torch.save({"format": checkpoint.FORMAT, "model": Malicious()}, path)
    marker = Path("/tmp/clustered_asr_was_here")
    marker.unlink(missing_ok=True)
    line = fails(capsys, main(["transcribe", str(path), "x.wav"]))
    assert "expected tensors and plain data only" in line
    assert not marker.exists()


def test_a_run_is_not_overwritten(
    trained: Path, tone_corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "already contains a run" in fails(capsys, train(tone_corpus, trained))


def test_decoding_without_checkpoint_or_split(
    trained: Path, tone_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "no checkpoint (expected" in fails(capsys, main(["decode", str(tmp_path)]))
    line = fails(capsys, main(["decode", str(trained.parent)]))
    assert f"{trained.parent}: no checkpoint (the runs there: {trained.name}" in line
    line = fails(capsys, main(["decode", str(tmp_path / "nowhere")]))
    assert line == f"asr: {tmp_path}/nowhere: no checkpoint (no such file or folder)"
    manifest = tone_corpus / "dev.cuts.jsonl.gz"
    line = fails(capsys, main(["decode", str(trained), f"data={manifest}", "split=train"]))
    assert line == f"asr: split=train: has no effect with data={manifest}, which is a manifest"
    line = fails(capsys, main(["align", str(trained), "split=evaluation"]))
    assert "evaluation.cuts.jsonl.gz: expected a manifest, found no such file (the splits there: " in line
    assert "evaluation.cuts.jsonl.gz" in fails(capsys, main(["decode", str(trained), "split=evaluation"]))
    assert "decoder=bream: expected one of" in fails(capsys, main(["decode", str(trained), "decoder=bream"]))


def test_a_run_in_place_of_a_configuration_or_of_results(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`asr compare model=<run>` without data= expected a YAML file, found none."""
    line = fails(capsys, main(["compare", f"model={trained}", "attentions=full"]))
    assert "expected a YAML file, found a run: " in line
    assert "asr compare model=<run> data=<folder> runs it" in line
    wrong = trained.with_name(f"{trained.name}x")
    line = fails(capsys, main(["train", f"model={wrong}"]))
    assert line == f"asr: model={wrong}: expected a YAML file, found none (did you mean '{trained}'?)"
    line = fails(capsys, main(["report", str(wrong)]))
    assert line.endswith(f"expected a folder of asr train or compare, found none (did you mean '{trained}'?)")
    (tmp_path / "broken.yaml").write_text("layers: 2\nheads: [\n")
    line = fails(capsys, main(["train", f"model={tmp_path}/broken.yaml"]))
    assert "broken.yaml: expected YAML, found in line 3: " in line  # "found while parsing a flow node"
    assert "(did you mean 'check'?)" in fails(capsys, main(["attention", "chek", "full"]))


def test_closed_standard_input_chunks_and_folders_without_audio(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = fails(capsys, main(["transcribe", str(trained), str(tmp_path)]))
    assert line == f"asr: {tmp_path}: expected audio files, found none"
    line = fails(capsys, main(["transcribe", str(trained), "x.wav", "mode=chunked", "chunk_s=0.0001"]))
    assert line == "asr: chunk_s=0.0001: expected 0, or 0.1 or more seconds"
    monkeypatch.setattr("sys.stdin", None)
    line = fails(capsys, main(["transcribe", str(trained), "-"]))
    assert line == "asr: -: expected audio on standard input, found it closed"
