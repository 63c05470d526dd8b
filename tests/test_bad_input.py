"""Bad input gives one line that names the file or utterance; good input beside it is not lost."""

import csv
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from tone_corpora import TINY

from asr.cli import main
from asr.errors import UserError
from asr.model import checkpoint

Maker = Callable[..., Path]


def train(corpus: Path, folder: Path, *words: str) -> int:
    return main(["train", *TINY, f"data.train=[{corpus}]", f"run={folder}", "trainer.max_steps=3", *words])


def fails(capsys: pytest.CaptureFixture[str], status: int) -> str:
    """Return the one line that a failed command printed on stderr."""
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("asr: ")]
    assert status == 1
    assert len(lines) == 1
    return lines[0]


def test_missing_corpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = fails(capsys, train(tmp_path / "nowhere", tmp_path / "run"))
    assert "nowhere/train.cuts.jsonl.gz" in line


def test_no_corpus_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "data.train is empty" in fails(capsys, main(["train", f"run={tmp_path / 'run'}"]))


def test_unknown_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean 'attention'?" in fails(capsys, main(["train", "attentoin=full"]))


def test_unknown_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean 'train'?" in fails(capsys, main(["trian"]))


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


def test_another_sample_rate_is_resampled_with_a_notice_or_refused(
    corpus_maker: Maker, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    corpus = corpus_maker(rate=8000)
    assert train(corpus, tmp_path / "a") == 0
    assert "8000 Hz is resampled to the model's 16000 Hz" in caplog.text
    line = fails(capsys, train(corpus, tmp_path / "b", "data.resample=false"))
    assert "8000 Hz, expected 16000 Hz" in line
    assert "utterance" in line


def test_stereo_is_averaged_with_a_notice_when_transcribed(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    stereo = tmp_path / "two.wav"
    soundfile.write(stereo, np.zeros((16000, 2), dtype=np.float32), 16000)
    assert main(["transcribe", str(trained), str(stereo)]) == 0
    assert "2 channels are averaged" in caplog.text


def test_transcription_reports_every_bad_file_and_goes_on_with_the_good_ones(
    trained: Path, tone_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short, missing = tmp_path / "short.wav", tmp_path / "missing.wav"
    soundfile.write(short, np.zeros(100, dtype=np.float32), 16000)
    good = tone_corpus / "wav" / "test-0.wav"
    assert main(["transcribe", str(trained), str(missing), str(short), str(good)]) == 1
    printed = capsys.readouterr()
    assert printed.out.startswith(f"{good}\t")
    assert len(printed.out.splitlines()) == 1
    assert f"{missing}: no such file" in printed.err
    assert f"{short}: 6.2 ms is shorter than one frame" in printed.err


def test_words_outside_the_lexicon_are_counted_and_listed(
    corpus_maker: Maker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    corpus = corpus_maker()
    lexicon = corpus / "lexicon.txt"
    lines = [line for line in lexicon.read_text().splitlines() if not line.startswith("cat")]
    lexicon.write_text("\n".join(lines) + "\n")
    assert train(corpus, tmp_path / "run") == 0
    assert "1 distinct) are outside the vocabulary: cat" in caplog.text


def test_targets_that_cannot_fit_are_listed_before_training(
    corpus_maker: Maker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    corpus = corpus_maker()
    rename_text(corpus, "train-1", "cat back " * 40)
    assert train(corpus, tmp_path / "run") == 0
    with (tmp_path / "run" / "left_out.tsv").open() as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    assert [row["utterance"] for row in rows] == ["train-1"]
    assert "cannot hold targets that need" in rows[0]["reason"]
    assert "1 of 6 utterances are left out" in caplog.text


def rename_text(corpus: Path, name: str, text: str) -> None:
    import gzip

    path = corpus / "train.cuts.jsonl.gz"
    cuts = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    for cut in cuts:
        if cut["id"] == name:
            cut["supervisions"][0]["text"] = text.strip()
    path.write_bytes(gzip.compress("\n".join(json.dumps(cut) for cut in cuts).encode()))


def test_a_checkpoint_of_another_vocabulary_is_refused(
    trained: Path, corpus_maker: Maker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = corpus_maker()
    (corpus / "lexicon.txt").write_text((corpus / "lexicon.txt").read_text() + "zoo Z UW\n")
    line = fails(capsys, train(corpus, tmp_path / "run", f"init_from={trained}", "tokenizer.kind=character"))
    assert "the unit of its vocabulary is phone, expected character" in line
    line = fails(capsys, train(corpus, tmp_path / "run", f"init_from={trained}", "model.layers=2"))
    assert "Missing key" in line
    assert train(corpus_maker("other"), tmp_path / "resumed") == 0
    line = fails(capsys, train(corpus, tmp_path / "resumed", "resume=auto", "trainer.max_steps=5"))
    assert "another vocabulary" in line


class Malicious:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch /tmp/clustered_asr_was_here",)


def test_a_checkpoint_that_would_run_code_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "evil.ckpt"
    torch.save({"format": checkpoint.FORMAT, "model": Malicious()}, path)
    marker = Path("/tmp/clustered_asr_was_here")
    marker.unlink(missing_ok=True)
    line = fails(capsys, main(["transcribe", str(path), "x.wav"]))
    assert "expected tensors and plain data only" in line
    assert not marker.exists()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 truncated", b"\x80\x02 not a checkpoint"])
def test_an_unreadable_checkpoint_is_named(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "broken.ckpt"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"broken\.ckpt"):
        checkpoint.load(path)


def test_another_programs_checkpoint_is_named(tmp_path: Path) -> None:
    torch.save({"state_dict": {}}, tmp_path / "foreign.ckpt")
    with pytest.raises(UserError, match="expected a checkpoint of format"):
        checkpoint.load(tmp_path / "foreign.ckpt")


def test_a_full_disk_leaves_the_previous_checkpoint(tmp_path: Path) -> None:
    """A limit of 64 KiB per file, set in a separate process, stands in for the full disk."""
    path = tmp_path / "last.ckpt"
    checkpoint.save({"format": checkpoint.FORMAT, "value": 1}, path)
    code = (
        "import resource, signal, torch, sys; from pathlib import Path; from asr.model import checkpoint\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))\n"
        "state = {'format': checkpoint.FORMAT, 'value': torch.zeros(10**6)}\n"
        "checkpoint.AtomicCheckpointIO().save_checkpoint(state, sys.argv[1])\n"
        "try: checkpoint.save(state, Path(sys.argv[1]))\n"
        "except (OSError, RuntimeError): sys.exit(7)\n"
    )
    result = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True)
    assert result.returncode == 7, result.stderr
    assert "could not be written" in result.stderr
    assert checkpoint.load(path)["value"] == 1
    assert [file.name for file in tmp_path.iterdir()] == ["last.ckpt"]
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


def test_a_run_is_not_overwritten(
    trained: Path, tone_corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "holds a run already" in fails(capsys, train(tone_corpus, trained))


def test_decoding_without_checkpoint_or_split(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "no checkpoint (expected" in fails(capsys, main(["decode", str(tmp_path)]))
    assert "evaluation.cuts.jsonl.gz" in fails(capsys, main(["decode", str(trained), "split=evaluation"]))
    assert "no such decoder" in fails(capsys, main(["decode", str(trained), "decoder=bream"]))
