"""The commands as functions: the same work, the same errors, several calls in one process."""

import dataclasses
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning
import numpy as np
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger, Logger
from omegaconf import OmegaConf
from runs import assert_same_weights, in_process
from tone_corpora import TINY

import asr
from asr import UserError, cli
from asr.config import to_dict
from asr.config.given import values_of
from asr.experiment import launch
from asr.library import _training_options
from asr.library.outcomes import Rows
from asr.preparation.skeleton import write_recipe
from asr.training.config import train_options
from asr.training.loggers import open_loggers

SMALL = {key: value for key, _, value in (x.partition("=") for x in TINY)}


@pytest.fixture
def small(tone_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Options of a training of two steps."""
    monkeypatch.chdir(tmp_path)
    return SMALL | {"data.train": [tone_corpus], "trainer.max_steps": 2}


@pytest.mark.slow
def test_a_training_equals_that_of_the_command(small: dict[str, Any], tone_corpus: Path) -> None:
    run = asr.train(small, run="function", seed=np.int64(3))
    again = asr.train(OmegaConf.create(small), run="again", seed=3)
    command = [*TINY, f"data.train=[{tone_corpus}]", "trainer.max_steps=2", "run=command", "seed=3"]
    assert cli.main(["train", *command]) == 0
    for other in (again.folder, Path("command")):
        assert_same_weights(run.folder, other)
    assert (run.options.seed, run.summary.steps) == (3, 2)
    assert [row["step"] for row in run.metrics] == [0, 1]
    assert run.metrics[-1]["dev_per"] > 0
    assert run.recognizer(attention="local-8").model.config.attention == "local-8"


@pytest.mark.slow
def test_complete_options_are_taken_as_they_are(small: dict[str, Any]) -> None:
    """A run's config.yaml, or its dataclass; further options replace single values."""
    first = asr.train(small, run="first")
    second = asr.train(first.options, run="second")
    assert_same_weights(first.folder, second.folder)
    third = asr.train(OmegaConf.load("first/config.yaml"), run="third", model={"layers": 2})
    assert third.options == dataclasses.replace(
        first.options, run="third", model=dataclasses.replace(first.options.model, layers=2)
    )
    with pytest.raises(UserError, match=r"model=wsj: expected single options, model\.name"):
        asr.train(first.options, model="wsj")


def test_complete_options_that_no_option_has_are_said(caplog: pytest.LogCaptureFixture) -> None:
    """A slip in a complete configuration had no effect, without a word."""
    complete = to_dict(train_options(["recipe=demo"]))
    complete["optimizer"]["momentum"] = 0.8
    assert _training_options(complete, {}) == train_options(["recipe=demo"])
    assert "options: this version lacks optimizer.momentum=0.8" in caplog.text


def test_options_from_a_dataclass_of_ones_own() -> None:
    @dataclasses.dataclass
    class Mine:
        recipe: str = "demo"
        model: dict[str, Any] = dataclasses.field(default_factory=lambda: {"layers": 4})
        seeds: tuple[int, ...] = (0, 1)
        run: Path = Path("exp/mine")

    expected = {"recipe": "demo", "model.layers": 6, "seeds": [0, 1], "run": "exp/mine", "resume": "auto"}
    assert values_of(Mine(), {"model.layers": 6, "resume": "auto"}) == expected


def test_corpus_to_comparison_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package of the function's name took its place: the second call was one of a module."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launch, "run_cells", in_process)
    monkeypatch.setattr("asr.library.write_report", lambda results, folder: folder / "report.html")
    write_recipe(tmp_path / "mine")
    assert asr.prepare("./mine", workers=1) == Path("data/mine")
    assert asr.prepare(tmp_path / "mine", {"workers": 1}, folder="elsewhere") == Path("elsewhere")
    model = {"layers": 1, "heads": 2, "head_dim": 16, "feedforward": 32}
    length = {"steps": 2, "timing_repeats": 1}
    options = {"recipe": "./mine/mine.yaml", "model": model, "evaluate": ["own"], **length}
    for _ in range(2):
        compared = asr.compare(options, attentions=("full", "local-8"))
    assert [(row["candidate"], row["status"]) for row in compared.rows] == [
        ("full", "done"),
        ("local-8", "done"),
    ]
    assert compared.report == Path("exp/compare/mine/report.html")
    run = compared.run("local-8")
    with pytest.raises(UserError, match="no candidate 'lsh-1'"):
        compared.run("lsh-1")
    with pytest.raises(UserError, match="expected a finished training of full, seed 7, found none"):
        compared.run("full", 7)
    folders = [asr.decode(run, device="cpu", attention=name) for name in ("", "full")]
    scores = asr.score(*folders, samples=10)
    assert [row["folder"] for row in scores.rows] == list(map(str, folders))
    assert scores.rows[0]["wer"] == scores.scores[0].rates["wer"].rate
    planned = asr.compare(options, attentions=["full"], folder="planned", dry_run=True)
    assert (planned.report, planned.rows[0]["training_status"]) == (None, "missing")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: asr.train(atention="full"), "unknown option 'atention' (did you mean 'attention'?)"),
        (lambda: asr.train(recipe="demo", model={"layer": 1}), "unknown option 'model.layer'"),
        (lambda: asr.train(recipe="dmeo"), "recipe=dmeo: no such configuration (did you mean 'demo'?)"),
        (lambda: asr.train(3), "options: expected a dictionary, an OmegaConf configuration or a dataclass"),
        (lambda: asr.train(callbacks=[lightning.Callback]), "callbacks=: expected objects of Lightning's"),
        (lambda: asr.train(loggers=["WandbLogger"]), "loggers=: expected objects of Lightning's Logger"),
        (lambda: asr.prepare("nosuch"), "unknown recipe 'nosuch'"),
        (lambda: asr.prepare(Path("./nemo")), "recipe ./nemo: expected a folder with prepare.py"),
        (
            lambda: asr.compare(seeds={0, 1}),
            "options: expected texts, numbers, lists or dictionaries, found {",
        ),
        (lambda: asr.prepare("demo", sead=1), "unknown option 'sead' (did you mean 'seed'?)"),
        (lambda: asr.compare(recipe="demo", attentions=["full"], budgt="1min"), "unknown option 'budgt'"),
        (lambda: asr.score(), "nothing to score"),
        (lambda: asr.score("nosuch", sampels=3), "unknown option 'sampels' (did you mean 'samples'?)"),
        (lambda: asr.decode("nosuch", splt="dev"), "unknown option 'splt' (did you mean 'split'?)"),
    ],
)
def test_errors_are_those_of_the_commands(call: Any, message: str) -> None:
    with pytest.raises(UserError) as error:
        call()
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_a_path_is_a_folder_and_no_folder_the_usual_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`Path("./my_corpus")` was an unknown recipe, and folder=None a folder called `null`."""
    monkeypatch.chdir(tmp_path)
    write_recipe(tmp_path / "my_corpus")
    assert asr.prepare(Path("./my_corpus"), folder=None) == Path("data/my_corpus")
    assert asr.prepare(tmp_path / "my_corpus") == Path("data/my_corpus")


def test_arrays_are_lists() -> None:
    options = {"seeds": np.arange(3), "rates": (np.float64(0.5), torch.ones(1)), "names": np.array(["a"])}
    assert values_of(None, options) == {"seeds": [0, 1, 2], "rates": [0.5, [1.0]], "names": ["a"]}


@pytest.mark.parametrize("names", [("ref.txt", "hyp.txt"), ("a.hyp", "b.ref"), ("hyp.trn", "ref.trn")])
def test_rows_name_the_hypotheses(names: tuple[str, str], tmp_path: Path) -> None:
    """Of two text files, rows named the reference."""
    for name in names:
        (tmp_path / name).write_text("go on (a-1)\n")
    scores = asr.score(*(tmp_path / name for name in names), samples=10)
    assert "hyp" in Path(scores.rows[0]["folder"]).name


@pytest.mark.slow
def test_the_document_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_recipe(tmp_path / "my_corpus")
    text = Path(__file__).parent.parent.joinpath("docs", "python.md").read_text()
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```$", text, flags=re.S | re.M):
        exec(block, names)
    assert {x.name for x in Path("exp").iterdir()} == {
        "my_corpus",
        "seed0",
        "seed1",
        "again",
        "watched",
        "csv",
        "live",
    }


def test_importing_the_package_stays_light() -> None:
    code = "import sys, asr; asr.train, asr.compare; print({'torch', 'rich', 'omegaconf'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


def test_rows_are_shown_as_a_table() -> None:
    rows = Rows([{"a": 1, "b": None}, {"a": "<x>", "c": 2.5}])
    assert (
        "<tr><th>a</th><th>b</th><th>c</th></tr><tr><td>1</td><td></td><td></td></tr>" in rows._repr_html_()
    )
    assert "<td>&lt;x&gt;</td>" in rows._repr_html_()


OWN = """
import lightning.pytorch.loggers as loggers


class Own(loggers.Logger):
    name = version = ""
    logged = {}

    def __init__(self, prefix, flag=False):
        super().__init__()
        self.prefix, self.flag = prefix, flag

    def log_metrics(self, metrics, step=None):
        self.logged |= {f"{self.prefix}{key}": (self.flag, value) for key, value in metrics.items()}

    def log_hyperparams(self, params):
        self.logged |= params
"""


def test_loggers_and_callbacks(
    small: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_logger.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)

    class Steps(lightning.Callback):
        seen = 0

        def on_train_batch_end(self, *_: Any) -> None:
            self.seen += 1

    steps = Steps()
    import own_logger

    objects = [own_logger.Own(prefix="my_", flag=True), CSVLogger("other")]
    asr.train(small, run="run", trainer={"loggers": ["CSVLogger"]}, callbacks=[steps], loggers=objects)

    assert steps.seen == 2
    assert own_logger.Own.logged["my_dev_per"][0] is True
    assert own_logger.Own.logged["model.layers"] == 1
    assert Path("run/csv/metrics.csv").is_file()
    assert not Path("run/tensorboard").exists()
    assert Path("other/lightning_logs/version_0/metrics.csv").is_file()


def test_named_loggers_send_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finished = []

    class WandbLogger(Logger):  # the package isn't needed to see what it would be given
        name = version = ""
        experiment = SimpleNamespace(finish=lambda: finished.append(True))

        def __init__(self, **arguments: Any) -> None:
            super().__init__()
            self.arguments = arguments

        def log_metrics(self, *_: Any) -> None: ...
        def log_hyperparams(self, *_: Any) -> None: ...

    monkeypatch.setattr("lightning.pytorch.loggers.WandbLogger", WandbLogger)
    from asr.records.run_folder import RunFolder
    from asr.training.config import train_options

    options = train_options(["trainer.loggers=WandbLogger"])
    with open_loggers(options, RunFolder(tmp_path)) as [logger]:
        assert logger.arguments["offline"] is True  # type: ignore[attr-defined]
        assert logger.arguments["save_dir"] == str(tmp_path)  # type: ignore[attr-defined]
    assert finished == [True]


def test_a_wrong_logger_is_named(small: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"^trainer\.loggers=WanbLogger: expected one of TensorBoardLogger, "):
        asr.train(small, run="run", trainer={"loggers": ["WanbLogger"]})
    assert not Path("run/config.yaml").exists()


@pytest.mark.parametrize(("name", "package"), [("WandbLogger", "wandb"), ("MLFlowLogger", "mlflow")])
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    small: dict[str, Any], name: str, package: str
) -> None:
    if importlib.util.find_spec(package):
        pytest.skip(f"{package} is installed")
    with pytest.raises(
        UserError, match=rf"trainer\.loggers=\[{name}\]: .*`pip install -U '{package}"
    ) as error:
        asr.train(small, run="run", trainer={"loggers": [name]})
    assert "\n" not in str(error.value)


def test_an_interactive_session_starts_no_other_processes(
    small: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lightning would refuse after the data were loaded, in several lines."""
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    with pytest.raises(UserError, match=r"trainer\.devices=2: expected 1 in an interactive session"):
        asr.train(small, trainer={"devices": 2})


# Of any type, as a program may have them.
prepare: Any = asr.prepare
train: Any = asr.train
decode: Any = asr.decode
score: Any = asr.score


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: train(recipe="demo", run=5), "^run=5: expected a path$"),
        (lambda: train(recipe="demo", run=[]), r"^run=\[\]: expected a path$"),
        (lambda: train(recipe="demo", run={}), r"^run=\{\}: expected a path$"),
        (
            lambda: train(recipe="demo", callbacks=[object()]),
            "^callbacks=: expected objects of Li",
        ),
        (
            lambda: train(recipe="demo", loggers=5),
            "^loggers=: expected a list of obj",
        ),
        (lambda: decode(None), "^model: expected a path, found None"),
        (lambda: score(["exp/x"]), r"^score: expected a path, found \['exp/x'\]"),
        (lambda: prepare(5), "^recipe: expected a path, found 5"),
        (lambda: prepare("demo", folder=5), "^folder: expected a path, found 5"),
        (lambda: asr.compare(recipe="demo", attentions="full", folder=5), "^folder=5: expected a path$"),
        (lambda: asr.compare(recipe="demo", attentions=[5]), r"^attentions=\[5\]: expected a list of texts$"),
        (lambda: asr.compare(recipe=5), "^recipe=5: no such configuration"),
        (lambda: asr.compare(recipe=5, attentions=["full"]), "^recipe=5: no such configuration"),
        (lambda: asr.compare(plan=5), "^plan=5: expected text$"),
        (lambda: decode("run", split=5), "^split=5: expected text$"),
        (lambda: decode("run", split=True), "^split=True: expected text$"),
        (lambda: train(recipe="demo", attention=5), "^attention=5: expected text$"),
        (lambda: train(recipe="demo", init_from=5), "^init_from=5: expected text$"),
        (lambda: train(recipe="demo", data={"train": [5]}), r"^data\.train=\[5\]: expected a list of texts$"),
        (lambda: score("run", language=5), "^language=5: expected text$"),
        (lambda: decode("r\udcff"), r"^model: expected a path in UTF-8, found 'r\\udcff'$"),
    ],
)
def test_arguments_of_other_types_are_named(
    call: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were raw TypeErrors; `run=5` trained into a folder of that name."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(asr.UserError, match=message):
        call()
    assert not list(tmp_path.iterdir())
