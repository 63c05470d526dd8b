"""A mechanism of one's own in the commands: training, decoding, exchange; code runs only if named."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tone_corpora import TINY

import asr
from asr.cli import main
from asr.config import user_code
from asr.experiment.results import read_results
from asr.files import file_digest

NYSTROM = Path(__file__).parents[2] / "docs" / "examples" / "nystrom.py"
NAME = "./nystrom.py:Nystrom-4:iterations=3"
STORED = "nystrom:Nystrom-4:iterations=3"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Working folder with the example."""
    shutil.copy(NYSTROM, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def train(tone_corpus: Path, place: Path) -> Callable[..., int]:
    """Function that trains for six steps, or what the options say, and returns the exit status."""

    def train(*options: str) -> int:
        steps = ["trainer.max_steps=6", "trainer.validate_every=3", "recipe.name=tones"]
        return main(["train", *TINY, f"data.train=[{tone_corpus}]", *steps, f"attention={NAME}", *options])

    return train


def forget() -> None:
    """Forget the code, as a new process would."""
    user_code._loaded.clear()
    sys.modules.pop("nystrom", None)


def test_train_decode_exchange_and_export(
    train: Callable[..., int], trained: Path, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train() == 0
    run = place / "exp" / "tones" / STORED
    environment = json.loads((run / "environment.json").read_text())
    assert environment["attention"] == STORED
    assert environment["code"] == {"nystrom": file_digest(NYSTROM)}
    capsys.readouterr()

    forget()
    assert main(["decode", str(run)]) == 1
    error = capsys.readouterr().err
    assert (
        "attention 'nystrom:Nystrom' is code that runs only if you name it: give attention=./nystrom.py"
        in error
    )
    assert error.count("\n") == 1
    assert "nystrom" not in sys.modules
    assert main(["decode", str(run), f"attention={NAME}"]) == 0
    about = json.loads((run / "decode" / "test" / f"{STORED}-greedy" / "decode.json").read_text())
    assert about["attention"] == STORED

    forget()
    assert main(["decode", str(run), "attention=full", "--code", "nystrom.py"]) == 0
    assert (run / "decode" / "test" / "full-greedy" / "hyp.jsonl").is_file()
    assert main(["decode", str(trained), f"attention={NAME}", f"output={place / 'exchanged'}"]) == 0
    assert json.loads((place / "exchanged" / "decode.json").read_text())["attention"] == STORED

    assert main(["export", str(run), f"out={place / 'model'}"]) == 0
    forget()
    with pytest.raises(asr.UserError, match="is code that runs only if you name it"):
        asr.Recognizer.load(place / "model")
    assert asr.Recognizer.load(place / "model", attention=NAME).model.attention == STORED


@pytest.mark.slow
def test_a_training_does_not_resume_with_a_changed_file(
    train: Callable[..., int],
    place: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert train() == 0
    forget()
    assert train("trainer.max_steps=8", "resume=auto") == 0
    with (place / "nystrom.py").open("a") as file:
        file.write("# another version\n")
    capsys.readouterr()
    assert train("trainer.max_steps=9", "resume=auto") == 1
    error = capsys.readouterr().err
    now, was = file_digest(place / "nystrom.py"), file_digest(NYSTROM)
    assert f"inputs have changed since the run began: code.nystrom {now} (was {was})" in error
    assert main(["decode", str(place / "exp" / "tones" / STORED), f"attention={NAME}"]) == 0
    assert f"nystrom.py has changed: its digest was {was}, is now {now}" in caplog.text


def test_a_mechanism_for_each_layer_and_faults(
    train: Callable[..., int], place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train("model.layers=2", "attention=full*1,./nystrom.py:Nystrom-4*1") == 0
    assert (place / "exp" / "tones" / "fullx1,nystrom:Nystrom-4x1").is_dir()
    capsys.readouterr()
    for name, expected in (
        ("./nothing.py:Nystrom-4", "nothing.py: expected a file with Python code, found none"),
        ("./nystrom.py:Nystrom-0", "landmarks=0: expected a number 1 … 4096"),
        ("./nystrom.py:Linformer-4", "expected a class Linformer in"),
    ):
        assert train(f"attention={name}") == 1
        error = capsys.readouterr().err
        assert expected in error
        assert error.count("\n") == 1


LATER = """import dataclasses
from asr.attention import SoftmaxMechanism, option
O = dataclasses.make_dataclass("O", [("m", int, option(3, help="m", affects="result", letter="M"))])
class Later(SoftmaxMechanism):
    options = O
    source = "x"
    time = memory = "N"
    def __init__(self, name, backend, dropout, options):
        super().__init__(name, backend, dropout)
        self.left = options.m
    def attend(self, q, k, v, query_lengths, key_lengths):
        self.left -= 1
        return v if self.left >= 0 else v * float("nan")
    def dense(self, q, k, query_lengths, key_lengths):
        return (q @ k.mT).softmax(-1)
"""


@pytest.mark.slow
def test_nan_after_the_first_output_names_the_mechanism(
    train: Callable[..., int],
    trained: Path,
    place: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A training skipped its batches, and a decoding blamed the samples, without a word on the mechanism."""
    (place / "later.py").write_text(LATER)
    says = "attention 'later:Later-3': expected a tensor"
    assert train("attention=./later.py:Later-3", "trainer.max_steps=30") == 1
    error = capsys.readouterr().err
    assert "successive batches were skipped; the last: the loss is not finite for train-" in error
    assert f"{says} " in error
    assert "found NaN (later.py, line 11)" in error
    assert says in caplog.text
    recognizer = asr.Recognizer.load(trained, attention="./later.py:Later-1")
    audio = torch.randn(16000)
    assert recognizer.transcribe(audio, 16000).text is not None
    with pytest.raises(asr.UserError, match=r"'later:Later-1': .* found NaN \(later\.py, line 11\)"):
        recognizer.transcribe(audio, 16000)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "backward", "says"),
    [
        (
            "nan",
            "grad * float('nan')",
            "attention 'nan:Later-3': expected finite gradients from the backward",
        ),
        ("fails", "grad.none", "backward pass: AttributeError: 'Tensor' object has no attribute 'none'"),
    ],
)
def test_a_failing_backward_pass_names_the_mechanism(
    name: str,
    backward: str,
    says: str,
    train: Callable[..., int],
    place: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """NaN in gradients alone was said to be the learning rate's; an error ended with a traceback."""
    code = LATER.replace(
        "class Later",
        f"""import torch
class Bad(torch.autograd.Function):
    @staticmethod
    def forward(ctx, v):
        return v * 1
    @staticmethod
    def backward(ctx, grad):
        return {backward}
class Later""",
    )
    (place / f"{name}.py").write_text(code.replace('v * float("nan")', "Bad.apply(v)"))
    assert train(f"attention=./{name}.py:Later-3", "trainer.max_steps=30") == 1
    error = capsys.readouterr().err
    assert says in error
    assert f"({name}.py, line " in error
    assert error.splitlines()[-1].startswith("asr: ")
    assert "Traceback" not in error


@pytest.mark.slow
def test_bench_times_it(place: Path) -> None:
    options = ["lengths=[64]", "batch=1", "rounds=1", "seconds=0.1", "passes=[forward]", "out=bench.json"]
    assert main(["bench", f"attentions=full,{NAME}@reference", *options, "peak_memory=false"]) == 0
    results = read_results(place / "bench.json")
    assert [row.variant for row in results.evaluations] == ["full", f"{STORED}@reference"]
    assert results.environment["code"] == {"nystrom": file_digest(NYSTROM)}


def test_completion_offers_the_classes_of_a_file(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        ["train", "", "attention=./nystrom.py:", "2"],
        ["compare", "", "attentions=full,./nystrom.py:N", "2"],
    ):
        assert main(["completion", "words", *words]) == 0
        printed = capsys.readouterr().out
        assert printed == f"{words[2].rpartition('.')[0]}.py:Nystrom-32\n"
    assert main(["completion", "words", "train", "", "attention=./nothing.py:", "2"]) == 0
    assert main(["help", "attention", "./nystrom.py:Nystrom"]) == 0
    assert "of the pseudoinverse" in capsys.readouterr().out
