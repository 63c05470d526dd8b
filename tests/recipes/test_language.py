"""Language models: sizes of the paper, causality, training, exact resuming, evaluation, comparison."""

import functools
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from asr_recipes.language.data import EvaluationSegments, LanguageData, TrainingSegments
from asr_recipes.language.model import CausalConvolution
from asr_recipes.language.task import build_model
from asr_recipes.language.text import load_text
from quick import quick
from runs import assert_same_weights, in_process, killed, metrics, weights

from asr.cli import main
from asr.config import load_yaml
from asr.data.sampler import BatchPlan
from asr.errors import UserError
from asr.experiment.results import read_results
from asr.report.options import ReportOptions
from asr.report.page import write_report
from asr.training.config import train_options
from asr.training.labelling import evaluate, load_task
from asr.training.run import train

SMALL = ["recipe=language", "recipe.length=12", "recipe.batch=4", "recipe.dev_segments=8"]
SMALL += ["model.layers=2", "model.heads=2", "model.feedforward=32", "trainer.accelerator=cpu"]
SMALL += ["attention=full:causal=true"]
CAUSAL = [
    "full:causal=true",
    "agglomerative-4:causal=true",
    "linear:causal=true",
    "local-0",
    "local-5:right=0",
]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sentences of 26 words, each of three letters."""
    random = np.random.default_rng(0)
    words = np.array([chr(97 + i) + chr(97 + (i + 7) % 26) + chr(97 + (3 * i) % 26) for i in range(26)])
    path = tmp_path_factory.mktemp("text") / "words.txt"
    path.write_text("\n".join(" ".join(words[random.integers(26, size=20)]) for _ in range(80)))
    return path


@pytest.mark.parametrize(
    ("attention", "encoding", "parameters", "published"),
    [
        ("full:causal=true", "embedding", 64_192, "64.2"),
        ("full:causal=true", "convolution", 88_512, "88.5"),
        ("agglomerative-8:causal=true", "embedding", 57_040, "57.0"),
        ("agglomerative-8:causal=true", "convolution", 81_360, "81.4"),
    ],
)
def test_models_of_characters_have_the_sizes_of_table_1(
    attention: str, encoding: str, parameters: int, published: str
) -> None:
    """The paper's have 65 more for adaptive computation, and 64 fewer, no bias in the output's projection."""
    options = train_options(["recipe=language", f"attention={attention}", f"recipe.encoding={encoding}"])
    found = sum(x.numel() for x in build_model(options, 28).parameters())
    assert found == parameters
    assert f"{found / 1000:.1f}" == published


@pytest.mark.parametrize(
    ("attention", "encoding", "published"),
    [
        ("full:causal=true", "embedding", "1.50"),
        ("full:causal=true", "convolution", "1.61"),
        ("agglomerative-8:causal=true", "embedding", "1.47"),
        ("agglomerative-8:causal=true", "convolution", "1.58"),
    ],
)
def test_models_of_pieces_have_the_sizes_of_table_2(attention: str, encoding: str, published: str) -> None:
    """The paper doesn't say how many word pieces there are; 9,900 give all four sizes."""
    overrides = [
        "recipe=language",
        "model=universal_128",
        f"attention={attention}",
        f"recipe.encoding={encoding}",
    ]
    model = build_model(train_options(overrides), 9901)
    assert f"{sum(x.numel() for x in model.parameters()) / 1e6:.2f}" == published


@pytest.mark.parametrize("encoding", ["embedding", "convolution", "both"])
@pytest.mark.parametrize("attention", CAUSAL)
def test_the_future_changes_nothing(attention: str, encoding: str) -> None:
    """Logits at a position are those of the sequence that ends there, and depend on the positions before."""
    options = train_options([*SMALL, f"attention={attention}", f"recipe.encoding={encoding}"])
    torch.manual_seed(0)
    model = build_model(options, 28).double().eval()
    tokens = torch.randint(1, 28, (3, 12))
    logits = model(tokens)
    for position in range(12):
        changed = tokens.clone()
        changed[:, position] = tokens[:, position] % 27 + 1
        difference = (model(changed) - logits).abs().amax(dim=(0, 2))
        assert (difference[:position] == 0).all() or difference[:position].max() < 1e-12
        assert difference[position] > 1e-3
        torch.testing.assert_close(model(tokens[:, : position + 1]), logits[:, : position + 1])


def test_a_convolution_depends_on_its_kernel_alone() -> None:
    convolution = CausalConvolution(4, 8)
    x = torch.randn(1, 20, 4, requires_grad=True)
    convolution.convolution.bias.data += 100  # so that no ReLU is zero
    convolution(x)[0, 14].sum().backward()
    assert x.grad is not None
    assert x.grad[0].abs().sum(dim=1).nonzero().flatten().tolist() == list(range(7, 15))


def test_local_attention_of_width_0_leaves_the_convolution_alone() -> None:
    options = train_options([*SMALL, "attention=local-0", "recipe.encoding=convolution", "recipe.kernel=3"])
    model = build_model(options, 28).double().eval()
    tokens = torch.randint(1, 28, (1, 12))
    changed = tokens.clone()
    changed[:, 2] = tokens[:, 2] % 27 + 1
    difference = (model(changed) - model(tokens)).abs().amax(dim=(0, 2))
    assert (difference > 1e-12).nonzero().flatten().tolist() == [2, 3, 4]


@pytest.mark.parametrize("attention", ["full", "i-clustered-25", "local-4", "cast-4", "summary"])
def test_mechanisms_that_see_the_future_are_refused(
    attention: str, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["train", *SMALL, f"recipe.text={text}", f"attention={attention}", f"run={tmp_path / 'run'}"]
    assert main(given) == 1
    assert f"attention={attention}: expected a causal mechanism" in capsys.readouterr().err


def test_segments_are_drawn_from_the_whole_text_by_seed_and_number() -> None:
    tokens = np.arange(101, dtype=np.int32)
    batches = TrainingSegments(tokens, 10, 50, seed=0)
    batch = batches[BatchPlan((), 0, 7)]
    assert torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1])
    assert torch.equal(batch.targets, batch.inputs + 1)
    assert batch.ids == [f"segment at token {start}" for start in batch.inputs[:, 0].tolist()]
    assert torch.equal(batches[BatchPlan((), 0, 7)].inputs, batch.inputs)
    assert not torch.equal(batches[BatchPlan((), 0, 8)].inputs, batch.inputs)
    assert not torch.equal(TrainingSegments(tokens, 10, 50, 1)[BatchPlan((), 0, 7)].inputs, batch.inputs)
    drawn = torch.cat([batches[BatchPlan((), 0, i)].targets for i in range(40)])
    assert sorted(drawn.unique().tolist()) == list(range(1, 101))
    assert [batches[BatchPlan((), 0, i)].plan.epoch for i in (0, 1)] == [0, 4]


@pytest.mark.parametrize(("tokens", "most", "starts"), [(31, 0, [0, 10, 20]), (30, 0, [0, 10]), (101, 3, [])])
def test_evaluation_covers_segments_that_do_not_overlap(tokens: int, most: int, starts: list[int]) -> None:
    batches = EvaluationSegments(np.arange(tokens), 10, batch=2, most=most)
    assert len(batches) == -(-(most or len(starts)) // 2)
    found = [start for i in range(len(batches)) for start in batches[i].inputs[:, 0].tolist()]
    assert found == (starts or [0, 40, 90])


@pytest.mark.slow
def test_a_model_learns_words_and_reports_bits_per_character(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A letter has log2(26) / 4 = 1.2 bits: 26 words of four characters."""
    overrides = [*SMALL, f"recipe.text={text}", f"run={tmp_path}", "recipe.encoding=convolution"]
    overrides += [
        "recipe.length=32",
        "recipe.batch=16",
        "model.dropout=0",
        "model.layers=1",
        "optimizer=adamw",
    ]
    overrides += ["optimizer.learning_rate=0.01", "trainer.max_steps=80", "trainer.validate_every=40"]
    train(train_options(overrides))
    rows = [row for row in metrics(tmp_path) if row["dev_bits_per_character"]]
    bits = [float(row["dev_bits_per_character"]) for row in rows]
    assert bits[-1] == pytest.approx(float(rows[-1]["dev_loss"]) / math.log(2), rel=1e-5)
    assert bits[-1] < 2.7 < bits[0]
    shown = capsys.readouterr().out
    assert f"dev bits per character {bits[-1]:.3f}  " in shown
    assert "%  " not in shown


@pytest.mark.parametrize(
    "overrides",
    quick([[], ["tokenizer.kind=sentencepiece", "tokenizer.pieces=40"]], lambda overrides: not overrides),
)
def test_an_interrupted_run_equals_an_uninterrupted_one(
    overrides: list[str], text: Path, tmp_path: Path
) -> None:
    given = [*SMALL, *overrides, f"recipe.text={text}", "recipe.encoding=both", "model.dropout=0.2"]
    given += ["trainer.max_steps=12", "trainer.validate_every=4", "trainer.checkpoint_every=3", "resume=auto"]
    train(train_options([*given, f"run={tmp_path / 'whole'}"]))
    with killed(7):
        train(train_options([*given, f"run={tmp_path / 'parts'}"]))
    train(train_options([*given, f"run={tmp_path / 'parts'}"]))
    assert_same_weights(tmp_path / "whole", tmp_path / "parts")
    name = "dev_bits_per_token" if overrides else "dev_bits_per_character"
    bits = [[row[name] for row in metrics(tmp_path / run)] for run in ("whole", "parts")]
    assert bits[0] == bits[1]


@pytest.fixture(scope="module")
def trained(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("language") / "run"
    overrides = [*SMALL, f"recipe.text={text}", "trainer.max_steps=3", "trainer.validate_every=2"]
    train(train_options([*overrides, "trainer.keep_best=9", "trainer.average_best=0", f"run={run}"]))
    return run


@pytest.mark.slow
def test_bits_of_a_split_are_those_of_its_characters(
    trained: Path,
    text: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(UserError, match="attention=clustered-4: expected a causal mechanism"):
        load_task(str(trained), "clustered-4")
    result = evaluate(*load_task(str(trained)), "test")
    options = train_options([*SMALL, f"recipe.text={text}"])
    model = build_model(options, 28).eval()
    tokens = load_text(text, "character", 0, 12).tokens["test"].astype(np.int64)
    best = min(
        (row for row in metrics(trained) if row["dev_bits_per_character"]),
        key=lambda row: float(row["dev_bits_per_character"]),
    )
    (checkpoint,) = (trained / "checkpoints").glob(f"best-*-step{int(best['step']) + 1:07d}.ckpt")
    model.load_state_dict(torch.load(checkpoint, weights_only=True)["model"]["weights"])
    bits = []
    for start in range(0, len(tokens) - 12, 12):
        window = torch.from_numpy(tokens[start : start + 13])
        chances = model(window[None, :-1])[0].softmax(-1).tolist()
        bits += [-math.log2(chances[i][token]) for i, token in enumerate(window[1:].tolist())]
    assert (result.measure, result.labels) == ("bits_per_character", len(bits))
    assert result.value == pytest.approx(np.mean(bits), rel=1e-5)
    assert result.interval[0] < result.value < result.interval[1]
    segments = np.array(bits).reshape(-1, 12).mean(axis=1) * math.log(2)  # nats
    assert result.item_perplexity == pytest.approx(np.exp(segments).mean(), rel=1e-5)
    assert result.item_perplexity > 2**result.value
    monkeypatch.setenv("COLUMNS", "250")
    assert main(["evaluate", str(trained), "items=3", f"output={tmp_path / 'results.json'}"]) == 0
    shown = capsys.readouterr().out
    assert "test: 3 items" in shown
    assert "perplexity over items, test" in shown
    (row,) = read_results(tmp_path / "results.json").evaluations
    assert row.rates["bits_per_character"]["length"] == 36
    assert row.rates["perplexity"]["rate"] == 2 ** row.rates["bits_per_character"]["rate"]
    assert main(["report", str(tmp_path), "static=false"]) == 0
    assert "trained models evaluated" in (tmp_path / "report.html").read_text()


def test_weights_start_another_run(trained: Path, text: Path, tmp_path: Path) -> None:
    overrides = [*SMALL, f"recipe.text={text}", "trainer.max_steps=1", "optimizer.learning_rate=1e-12"]
    overrides += [f"init_from={trained / 'checkpoints' / 'last.ckpt'}"]
    train(train_options([*overrides, f"run={tmp_path / 'next'}"]))
    after = weights(tmp_path / "next")
    assert all(torch.equal(after[name], value) for name, value in weights(trained).items())
    for unfit in ("attention=linear:causal=true", "recipe.encoding=convolution", "model.heads=1"):
        with pytest.raises(UserError, match="init_from="):
            train(train_options([*overrides, f"run={tmp_path / 'unfit'}", unfit]))


@pytest.mark.slow
def test_comparisons_and_reports_name_the_measure(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "240")  # heads in one line
    monkeypatch.setattr("asr.experiment.launch.run_cells", in_process)
    plain = functools.partial(write_report, options=ReportOptions(static=False))
    monkeypatch.setattr("asr.library.write_report", plain)
    overrides = [*SMALL[:-1], f"recipe.text={text}", f"folder={tmp_path}", "reuse=none", "steps=2"]
    asked = ["attentions=[full:causal=true,agglomerative-4:causal=true]", "seeds=[0,1]", "timing_repeats=1"]
    assert main(["compare", *overrides, *asked, "trainer.validate_every=1"]) == 0
    shown = capsys.readouterr().out
    assert "bits per character, test" in " ".join(shown.split())
    assert "error %" not in shown
    results = read_results(tmp_path)
    assert results.dev_measure() == "dev_bits_per_character"
    assert results.metrics() == ["bits_per_character"]
    assert all(x.variant == x.candidate for x in results.evaluations)  # not those that see later tokens
    estimate = results.error_rate("full:causal=true", "test", "bits_per_character")
    assert estimate is not None
    assert f"{estimate.value:.3f} ({estimate.low:.3f} … {estimate.high:.3f})" in shown
    page = (tmp_path / "report.html").read_text()
    assert "the lowest bits per character on test" in page
    assert "dev bits per character" in page
    assert "error rate (%)" not in page


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["tokenizer.kind=phone"], "tokenizer.kind=phone: expected character | sentencepiece"),
        (["recipe.kernel=3"], "kernel=3: has no effect with recipe.encoding=embedding"),
        (["recipe.encoding=none"], "recipe.encoding=none: expected one of embedding, convolution, both"),
        (["recipe.text=nowhere"], "recipe.text=nowhere: expected a text file or a folder, found none"),
        (["recipe.length=100000"], "expected more than recipe.length=100000 characters in train"),
        (["model.block=conformer"], "block=conformer: has no effect with recipe=language"),
        (["optimizer.betas=[0.8,0.9]"], "has no effect with optimizer=adadelta"),
    ],
)
def test_bad_options_are_refused_in_one_line(
    overrides: list[str], message: str, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["train", *SMALL, f"recipe.text={text}", *overrides, f"run={tmp_path / 'run'}"]
    assert main(given) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_the_run_folder_records_the_text(trained: Path) -> None:
    assert load_yaml(trained / "config.yaml")["tokenizer"]["kind"] == "character"
    about = json.loads((trained / "environment.json").read_text())
    assert "train" in json.dumps(about)
    assert about["attention"] == "full:causal=true"


def test_an_epoch_has_as_many_characters_as_the_text(text: Path) -> None:
    data = LanguageData(load_text(text, "character", 0, 12), 12, 4, 8, 0)
    batches = data.epoch_batches(0)
    assert batches * 48 <= len(data.text.tokens["train"]) < (batches + 1) * 48
    assert [data.training_batches[BatchPlan((), 0, i)].plan.epoch for i in (0, batches - 1)] == [0, 0]
    assert "words.txt" in data.describe()
