"""Training steps: the loss, batches without a finite one, the optimiser and its rate."""

import csv
import itertools
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tone_corpora import TINY

import asr.training.recognition
from asr import Recognizer
from asr.data.manifest import load_cuts, save_cuts
from asr.errors import UserError
from asr.losses.ctc import ctc_loss, frames_needed
from asr.model.acoustic_model import AcousticModel
from asr.model.checkpoint import load
from asr.training.config import TrainConfig, train_options
from asr.training.optimizer import OptimizerConfig, build_optimizer, rate_factor
from asr.training.recognition import initialise, training_tokenizer
from asr.training.run import train


def options(corpus: Path, folder: Path, *words: str) -> TrainConfig:
    return train_options([*TINY, f"data.train=[{corpus}]", f"run={folder}", *words])


def break_losses(monkeypatch: pytest.MonkeyPatch, calls: range) -> list[int]:
    """Make the training losses of the given calls NaN: the first call is the worst batch's trial."""
    count = [-1]

    def broken(*args: torch.Tensor) -> torch.Tensor:
        losses = ctc_loss(*args)
        if torch.is_grad_enabled():
            count[0] += 1
            if count[0] - 1 in calls:
                losses = losses * float("nan")
        return losses

    monkeypatch.setattr(asr.training.recognition, "ctc_loss", broken)
    return count


def test_a_step_without_a_finite_loss_changes_nothing_and_is_counted(
    tone_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    words = ["optimizer.schedule=constant", "optimizer.warmup_steps=0", "trainer.validate_every=99"]
    train(options(tone_corpus, tmp_path / "short", *words, "trainer.max_steps=4"))
    break_losses(monkeypatch, range(4, 6))
    train(options(tone_corpus, tmp_path / "long", *words, "trainer.max_steps=6"))
    short, long = (load(tmp_path / run / "checkpoints" / "last.ckpt") for run in ("short", "long"))
    weights = short["model"]["weights"]
    assert all(torch.equal(weights[name], x) for name, x in long["model"]["weights"].items())
    assert json.loads((tmp_path / "long" / "training.json").read_text())["skipped_batches"] == 2
    assert caplog.text.count("batch skipped, its loss is not finite: train-") == 2


def test_progress_without_a_finite_loss_before_the_first_validation(
    tone_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The progress lines ended in a KeyError."""
    break_losses(monkeypatch, range(2))
    train(options(tone_corpus, tmp_path, "trainer.max_steps=3", "trainer.validate_every=2"))
    first, *_ = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step ")]
    assert "loss nan" in first


def test_training_stops_when_no_loss_is_finite(
    tone_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_losses(monkeypatch, range(2, 100))
    with pytest.raises(UserError, match=r"not finite in 4 successive batches, last in train-\d+"):
        train(options(tone_corpus, tmp_path / "run", "trainer.nonfinite_patience=3", "trainer.max_steps=20"))


def test_a_gradient_that_is_not_finite_skips_the_step(
    tone_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class InfiniteGradient(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x: torch.Tensor) -> torch.Tensor:  # type: ignore[no-untyped-def]
            return x.clone()

        @staticmethod
        def backward(ctx, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[no-untyped-def]
            return gradient * float("inf")

    monkeypatch.setattr(
        asr.training.recognition, "ctc_loss", lambda *args: InfiniteGradient.apply(ctc_loss(*args))
    )
    folder = train(options(tone_corpus, tmp_path / "run", "trainer.max_steps=3"))
    assert json.loads((folder / "training.json").read_text())["skipped_batches"] == 3
    weights = load(folder / "checkpoints" / "last.ckpt")["model"]["weights"]
    assert all(x.isfinite().all() for x in weights.values())


def test_memory_is_tried_on_the_worst_batch_before_training(
    tone_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def out_of_memory(*args: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(asr.training.recognition, "ctc_loss", out_of_memory)
    with pytest.raises(UserError, match=r"out of memory on the worst batch: \d+ utterances of up to"):
        train(options(tone_corpus, tmp_path / "run", "trainer.max_steps=3"))
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_the_run_folder_holds_what_the_contract_names(trained: Path) -> None:
    names = {path.name for path in trained.iterdir()}
    assert {"config.yaml", "environment.json", "metrics.csv", "checkpoints", "training.json"} <= names
    environment = json.loads((trained / "environment.json").read_text())
    assert environment["backend"] in ("native", "reference")
    assert len(environment["lexicon"]) == 12
    assert all(len(digest) == 12 for digest in environment["data"].values())
    with (trained / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == list(range(80))
    assert float(rows[-1]["dev_per"]) < 0.1
    assert float(rows[-1]["loss"]) < float(rows[0]["loss"]) / 5


def test_a_killed_process_goes_on_as_if_nothing_had_happened(tone_corpus: Path, tmp_path: Path) -> None:
    words = [*TINY, f"data.train=[{tone_corpus}]", "trainer.max_steps=60", "trainer.checkpoint_every=7"]
    words += ["model.dropout=0.1", "trainer.threads=1", "trainer.validate_every=30"]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    command = [sys.executable, "-m", "asr", "train", *words]
    process = subprocess.Popen(
        [*command, f"run={parts}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    last = parts / "checkpoints" / "last.ckpt"
    while not last.exists() and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert load(last)["global_step"] < 60
    for folder in (whole, parts):
        subprocess.run([*command, f"run={folder}", "resume=auto"], check=True, capture_output=True)
    a, b = (load(folder / "checkpoints" / "last.ckpt")["model"]["weights"] for folder in (whole, parts))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_vectors_are_not_decayed() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4))
    optimizer = build_optimizer(dict(model.named_parameters()), OptimizerConfig(weight_decay=0.1))
    decayed = [x.shape for group in optimizer.param_groups if group["weight_decay"] for x in group["params"]]
    assert decayed == [torch.Size([4, 3])]
    with pytest.raises(UserError, match=r"optimizer\.name='sgd'"):
        build_optimizer({}, OptimizerConfig(name="sgd"))


def test_the_rate_warms_up_and_falls_to_its_final_ratio() -> None:
    schedule = OptimizerConfig(warmup_steps=10, final_ratio=0.1)
    rates = [rate_factor(step, 100, schedule) for step in range(101)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == rates[10] == pytest.approx(1.0)
    assert rates[100] == pytest.approx(0.1)
    assert all(a > b for a, b in itertools.pairwise(rates[10:]))


def test_frames_needed_counts_a_blank_between_repeats() -> None:
    """CTC is finite exactly where the targets fit."""
    for tokens in ([1], [1, 1], [1, 2, 2, 2, 3], []):
        for frames in range(1, 9):
            loss = ctc_loss(
                torch.zeros(1, frames, 4).log_softmax(-1),
                torch.tensor([frames]),
                torch.tensor([tokens], dtype=torch.int64).view(1, -1),
                torch.tensor([len(tokens)]),
            )
            assert bool(loss.isfinite()) == (frames >= frames_needed(tokens))


def test_weights_are_taken_over_by_the_names_of_symbols(
    trained: Path, corpus_maker: Callable[..., Path]
) -> None:
    """A corpus whose lexicon has a phone more or less could not start from another corpus' model."""
    corpus = corpus_maker()
    (corpus / "lexicon.txt").write_text((corpus / "lexicon.txt").read_text() + "ah AH\nzoo Z UW\n")
    old = Recognizer.load(trained)
    tokenizer = training_tokenizer(options(corpus, corpus / "run"))
    new = AcousticModel(old.model.config, len(tokenizer))
    fresh = new.head.projection.weight.detach().clone()
    initialise(new, tokenizer, str(trained))
    for i, symbol in enumerate(tokenizer.symbols):
        known = symbol in old.tokenizer.symbols
        expected = (
            old.model.head.projection.weight[old.tokenizer.symbols.index(symbol)] if known else fresh[i]
        )
        assert torch.equal(new.head.projection.weight[i], expected)
    assert {"Z", "UW", "AH"} == set(tokenizer.symbols) - set(old.tokenizer.symbols)


@pytest.mark.slow
def test_two_ranks_train_on_the_same_stream(tone_corpus: Path, tmp_path: Path) -> None:
    words = [*TINY, f"data.train=[{tone_corpus}]", f"run={tmp_path}", "trainer.max_steps=30"]
    words += ["trainer.devices=2", "trainer.strategy=ddp", "trainer.validate_every=10"]
    result = subprocess.run([sys.executable, "-m", "asr", "train", *words], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-2000:]
    assert result.stdout.count("30 steps") == 2  # the plan and the summary, of one rank
    with (tmp_path / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == list(range(30))
    assert float(rows[-1]["loss"]) < float(rows[0]["loss"]) / 2
    assert json.loads((tmp_path / "training.json").read_text())["epochs"] == pytest.approx(15)


def test_joint_training_knows_the_words_of_every_corpus(
    tone_corpus: Path, corpus_maker: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    """Only the first folder's lexicon was read: all words of the second would have become SPN."""
    other = corpus_maker()
    cuts = [cut.with_id(f"other-{cut.id}") for cut in load_cuts(other / "train.cuts.jsonl.gz")]
    save_cuts(cuts, other / "train.cuts.jsonl.gz")
    lexicon = other / "lexicon.txt"
    lines = lexicon.read_text().splitlines()
    lexicon.write_text(
        "\n".join([*(line for line in lines if not line.startswith("cat")), "zoo Z UW"]) + "\n"
    )
    words = [f"data.train=[{other},{tone_corpus}]"]
    tokenizer = training_tokenizer(train_options(words))
    assert tokenizer.oov("cat zoo be") == []
    assert "outside the vocabulary" not in caplog.text
    words.append(f"tokenizer.lexicon={lexicon}")
    assert training_tokenizer(train_options(words)).oov("cat zoo be") == ["cat"]
