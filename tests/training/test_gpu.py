"""On a GPU, training, decoding, transcribing and comparing give what the CPU gives.

`pytest --gpu-on-cpu tests/training/test_gpu.py` runs these tests with two CPU runs, which checks the tests.
"""

import math
from pathlib import Path

import pytest
import torch
from comparisons import arguments
from runs import assert_same_weights, killed, metrics
from small_mechanisms import small_names, unlisted
from tone_corpora import TINY

from asr import Recognizer
from asr.cli import main
from asr.experiment.results import read_results
from asr.scoring.hypotheses import read_hypotheses
from asr.training.config import train_options
from asr.training.run import train
from asr.training.trainer import PRECISIONS

pytestmark = pytest.mark.gpu

STEPS = 50
# Greatest difference of a loss from the CPU's in float32, as a fraction.
TOLERANCE = {"fp32": 0.001, "bf16": 0.03, "fp16": 0.01}
MECHANISMS = [
    *("full", "shared-full", "oracle-top-8", "local-16", "linear", "summary", "hyper", "lsh-2", "cast-4"),
    *("agglomerative-4", "clustered-8", "i-clustered-8:topk=8", "i-clustered-8:topk=8,grouping=keys"),
]
MECHANISMS += [small_names(mechanism)[0] for mechanism in unlisted(MECHANISMS)]


@pytest.fixture
def device(pytestconfig: pytest.Config) -> str:
    """`cuda`; the CPU with `--gpu-on-cpu`."""
    if pytestconfig.getoption("--gpu-on-cpu"):
        return "cpu"
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    return "cuda"


def run(corpus: Path, folder: Path, device: str, *options: str) -> list[float]:
    """Train; return the loss of every step."""
    own = [x for x in TINY if not x.startswith("trainer.accelerator=")]
    own += [f"trainer.accelerator={device}", f"data.train=[{corpus}]", f"run={folder}"]
    train(train_options([*own, *options]))
    return [float(row["loss"]) for row in metrics(folder) if row["loss"]]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_losses_are_those_of_the_cpu(
    precision: str, device: str, tone_corpus: Path, tmp_path: Path
) -> None:
    """Without dropout, whose random numbers differ between devices."""
    if (device, precision) == ("cpu", "fp16"):
        pytest.skip("fp16 needs a CUDA device")
    options = [f"trainer.max_steps={STEPS}", "model.dropout=0", "trainer.validate_every=25"]
    expected = run(tone_corpus, tmp_path / "expected", "cpu", *options)
    found = run(tone_corpus, tmp_path / "found", device, *options, f"trainer.precision={precision}")
    assert len(found) == len(expected) == STEPS
    assert expected[-1] < expected[0] / 2
    assert found == pytest.approx(expected, rel=TOLERANCE[precision])


@pytest.mark.parametrize("attention", ["full", "i-clustered-8:topk=8"])
def test_an_interrupted_run_equals_an_uninterrupted_one(
    attention: str, device: str, tone_corpus: Path, tmp_path: Path
) -> None:
    options = [f"attention={attention}", "model.dropout=0.2", "augment.time_mask_every=50"]
    options += ["trainer.max_steps=12", "trainer.validate_every=6", "trainer.checkpoint_every=5"]
    expected = run(tone_corpus, tmp_path / "whole", device, *options)
    with killed(7):
        run(tone_corpus, tmp_path / "parts", device, *options)
    assert run(tone_corpus, tmp_path / "parts", device, *options, "resume=auto") == expected
    assert_same_weights(tmp_path / "parts", tmp_path / "whole")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("attention", MECHANISMS)
def test_every_mechanism_trains(
    attention: str, precision: str, device: str, tone_corpus: Path, tmp_path: Path
) -> None:
    options = [f"attention={attention}", f"trainer.precision={precision}", "trainer.max_steps=3"]
    losses = run(tone_corpus, tmp_path / "run", device, *options)
    assert len(losses) == 3
    assert all(map(math.isfinite, losses))


@pytest.mark.parametrize("attention", ["full", "clustered-8", "local-16"])
@pytest.mark.parametrize("decoder", ["greedy", "beam"])
def test_decoding_finds_the_same_words(
    attention: str, decoder: str, device: str, trained: Path, tmp_path: Path
) -> None:
    found = []
    for place in ("cpu", device):
        output = tmp_path / f"{len(found)}"
        options = [f"attention={attention}", f"decoder={decoder}", f"device={place}", f"output={output}"]
        assert main(["decode", str(trained), *options]) == 0
        found.append([(x.id, x.tokens) for x in read_hypotheses(output / "hyp.jsonl")])
    assert found[0] == found[1]
    assert any(tokens for _, tokens in found[0])


def test_a_recording_is_transcribed_with_the_same_words(
    device: str, trained: Path, tone_corpus: Path
) -> None:
    audio = next(tone_corpus.rglob("test*.wav"))
    texts = {Recognizer.load(trained, device=place).transcribe(audio).text for place in ("cpu", device)}
    assert len(texts) == 1
    assert texts.pop()


def test_mechanisms_are_compared(device: str, tone_corpus: Path, tmp_path: Path) -> None:
    asked = [x for x in arguments(tone_corpus, tmp_path) if not x.startswith("trainer.accelerator=")]
    asked += ["attentions=[full,clustered-3]", f"trainer.accelerator={device}", f"device={device}"]
    assert main(asked) == 0
    results = read_results(tmp_path)
    assert {x.status for x in (*results.trainings, *results.evaluations)} == {"done"}
    assert all(x.forward_s for x in results.evaluations)
    assert (tmp_path / "report.html").is_file()
