"""`asr approximate` end to end on tiny random models."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_transformers import save_model, tokenizer, write_rte, write_squad

transformers = pytest.importorskip("transformers", minversion="5", reason="needs transformers ≥ 5")
from asr.approximation.options import Options  # noqa: E402
from asr.approximation.pretrained import TextModel  # noqa: E402
from asr.approximation.run import TaskEvaluation  # noqa: E402
from asr.cli import main  # noqa: E402
from asr.errors import UserError  # noqa: E402
from asr.files import file_digest  # noqa: E402

ATTENTIONS = "full,clustered-3,i-clustered-3:topk=4,i-clustered-64:topk=64"
LABELS = {
    "id2label": {0: "not_entailment", 1: "entailment"},
    "label2id": {"not_entailment": 0, "entailment": 1},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with models and data of both kinds of task."""
    made = tmp_path_factory.mktemp("approximation")
    save_model(made / "models" / "rte", "BertForSequenceClassification", **LABELS)
    save_model(made / "models" / "squad", "BertForQuestionAnswering")
    write_rte(made / "data")
    write_squad(made / "data")
    return made


def arguments(folder: Path, out: Path, *more: str, task: str = "rte,squad") -> list[str]:
    """Return the arguments of a command that evaluates both tasks."""
    return [
        "approximate",
        f"model={folder / 'models' / '{task}'}",
        f"data={folder / 'data'}",
        f"task={task}",
        f"attentions={ATTENTIONS}",
        f"folder={out}",
        "max_length=40",
        "samples=20",
        "batch=120",
        "device=cpu",
        *(["stride=10"] if "squad" in task else []),
        *more,
    ]


def results(out: Path) -> dict[str, Any]:
    """Return `results.json`."""
    content: dict[str, Any] = json.loads((out / "results.json").read_text())
    return content


@pytest.fixture(scope="module")
def evaluated(folder: Path) -> Path:
    """Output folder of both tasks."""
    out = folder / "out"
    assert main(arguments(folder, out)) == 0
    return out


def test_results_have_scores_intervals_ratios_and_times(evaluated: Path) -> None:
    rte, squad = results(evaluated)["tasks"]
    assert (rte["task"], rte["examples"], rte["windows"]) == ("rte", 12, 12)
    assert squad["examples"] == 6
    assert squad["windows"] > 6
    for task, names in ((rte, ["accuracy"]), (squad, ["F1", "EM"])):
        assert [row["attention"] for row in task["rows"]] == ATTENTIONS.split(",")
        for row in task["rows"]:
            assert list(row["scores"]) == names
            low, high = row["scores"][names[0]]["interval"]
            assert 0 <= low <= row["scores"][names[0]]["value"] <= high <= 1
            assert row["example_s"] > 0
            assert row["peak_bytes"] is None or 0 <= row["peak_bytes"] < 2**30
        full, *_, exact = task["rows"]
        assert all(ratio is None or ratio["value"] == 1.0 for ratio in full["ratios"].values())
        # As many clusters and keys as positions: the approximation is exact.
        assert exact["scores"] == full["scores"]


@pytest.mark.slow
def test_tables_and_figures_are_redrawn_from_results_alone(evaluated: Path, tmp_path: Path) -> None:
    """They were lost with the terminal: `asr report` refused the folder."""
    shutil.copy(evaluated / "results.json", tmp_path)
    assert main(["report", str(tmp_path)]) == 0
    drawn = {path.name for path in tmp_path.iterdir()}
    assert {"results.md", "report.html", "exchange-rte.png", "question-map.png"} <= drawn
    for name in drawn - {path.name for path in tmp_path.glob("*.pdf")} - {"report.html"}:
        assert (tmp_path / name).read_bytes() == (evaluated / name).read_bytes(), name
    pages = [re.sub(r"data:[^\"]*", "", (x / "report.html").read_text()) for x in (tmp_path, evaluated)]
    assert pages[0] == pages[1]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"windows": 12', '"windows": "12"', "results.json: tasks: windows: expected int, found '12'"),
        ('"layer": 1', '"layer": "1"', "results.json: maps: expected int, found layer='1'"),
    ],
)
def test_damaged_results_are_one_line(
    evaluated: Path, tmp_path: Path, old: str, new: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (evaluated / "results.json").read_text()
    assert old in text
    (tmp_path / "results.json").write_text(text.replace(old, new))
    assert main(["report", str(tmp_path)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_scores_equal_those_of_transformers_alone(folder: Path, evaluated: Path) -> None:
    """One example at a time, without this program's batches, and with the attention of transformers."""
    model = transformers.BertForSequenceClassification.from_pretrained(folder / "models" / "rte").eval()
    names = [model.config.id2label[i] for i in range(2)]
    rows = [line.split("\t") for line in (folder / "data/RTE/dev.tsv").read_text().splitlines()[1:]]
    words_of = tokenizer()
    predicted = []
    with torch.inference_mode():
        for _, first, second, _ in rows:
            inputs = words_of(first, second, truncation=True, max_length=40, return_tensors="pt")
            assert inputs["token_type_ids"].sum() > 0
            predicted.append(names[int(model(**inputs).logits.argmax())])
    assert len(set(predicted)) == 2
    found = json.loads((evaluated / "rte" / "predictions-full.json").read_text())["predictions"]
    assert found == predicted
    right = sum(label == row[3] for label, row in zip(predicted, rows, strict=True)) / len(rows)
    assert results(evaluated)["tasks"][0]["rows"][0]["scores"]["accuracy"]["value"] == right


def test_answers_equal_those_of_transformers_alone(folder: Path, evaluated: Path) -> None:
    """A context that fits one window: the best span by a loop over transformers' own logits."""
    model = transformers.BertForQuestionAnswering.from_pretrained(folder / "models" / "squad").eval()
    paragraph = json.loads((folder / "data/squad/dev-v1.1.json").read_text())["data"][0]["paragraphs"][0]
    question, context = paragraph["qas"][0], paragraph["context"]
    inputs = tokenizer()(question["question"], context, return_tensors="pt", return_offsets_mapping=True)
    offsets = inputs.pop("offset_mapping")[0].tolist()
    with torch.inference_mode():
        output = model(**inputs)
    inside = [i for i, kind in enumerate(inputs.sequence_ids(0)) if kind == 1]
    spans = [(i, j) for i in inside for j in inside if i <= j < i + 30]
    i, j = max(spans, key=lambda span: float(output.start_logits[0, span[0]] + output.end_logits[0, span[1]]))
    found = json.loads((evaluated / "squad" / "predictions-full.json").read_text())["predictions"]
    assert found[question["id"]] == context[offsets[i][0] : offsets[j][1]]


def test_the_map_names_the_top_tokens(evaluated: Path) -> None:
    maps = results(evaluated)["maps"]
    assert maps[0]["difference"] >= maps[1]["difference"] > 0
    for found in maps:
        assert found["tokens"][:2] == ["who", "bought"]
        assert found["same_top"]["full"] == 1.0
        assert found["same_top"]["i-clustered-64:topk=64"] == 1.0
        assert all(len(row) == 3 for row in found["top"]["clustered-3"])
    assert (evaluated / "question-map.png").stat().st_size > 10_000
    assert (evaluated / "question-map.pdf").read_bytes()[:4] == b"%PDF"
    assert "Figure 8" in (evaluated / "question-map.txt").read_text()


@pytest.mark.slow
def test_finished_work_is_not_repeated(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A further mechanism runs alone; other options start again."""
    given = arguments(folder, tmp_path, task="rte")
    assert main(given) == 0
    before = results(tmp_path)
    ran: list[str] = []
    original = TaskEvaluation._timed

    def timed(self: TaskEvaluation, inputs: Any, attention: str) -> Any:
        ran.append(attention)
        return original(self, inputs, attention)

    monkeypatch.setattr(TaskEvaluation, "_timed", timed)
    assert main(given) == 0
    assert "rte: reusing" in capsys.readouterr().out
    assert ran == []
    assert results(tmp_path)["tasks"] == before["tasks"]
    assert main([x + ",local-2" if x.startswith("attentions") else x for x in given]) == 0
    assert set(ran) == {"local-2"}
    assert results(tmp_path)["tasks"][0]["rows"][:4] == before["tasks"][0]["rows"]
    ran.clear()
    assert main([*given, "examples=5"]) == 0
    assert set(ran) == set(ATTENTIONS.split(","))


@pytest.mark.slow
def test_an_interrupted_evaluation_continues(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = TaskEvaluation._timed
    calls = []

    def timed(self: TaskEvaluation, inputs: Any, attention: str) -> Any:
        calls.append(attention)
        if len(calls) == 11:
            raise KeyboardInterrupt
        return original(self, inputs, attention)

    monkeypatch.setattr(TaskEvaluation, "_timed", timed)
    assert main(arguments(folder, tmp_path, task="rte")) == 130
    stored = len((tmp_path / "rte" / "outputs.jsonl").read_text().splitlines()) - 1
    assert stored == 10 - 4  # each mechanism's first call is a warm-up
    assert main(arguments(folder, tmp_path, task="rte")) == 0
    total = len((tmp_path / "rte" / "outputs.jsonl").read_text().splitlines()) - 1
    memory = 4  # each mechanism's peak has a line, too
    assert len(calls) - 11 == total - memory - stored + 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("model=nowhere", "model=nowhere: expected a folder with a transformers model, found no config.json"),
        ("data=nowhere", "data=nowhere: expected the file RTE/dev.tsv, found none"),
        ("attentions=lsh-1", "attention 'lsh-1' needs keys tied to the queries"),
        ("attentions=cast-8", "attention 'cast-8' has parameters of its own"),
        ("attentions=nonsense-3", "nonsense"),
        ("attentions=", "attentions=[]: expected at least one"),
        ("task=rte,sst3", "task=sst3: expected one of cola"),
        ("max_length=100", "max_length=100: expected at most 64 tokens"),
        ("max_length=4", "max_length=4: expected at least 5 tokens"),
        ("stride=64", "stride=64: has no effect without task=squad"),
        ("labels=yes,no", "labels: expected outputs entailment, not_entailment, found yes, no"),
    ],
)
def test_bad_input_is_one_line(
    change: str, message: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = change.partition("=")[0]
    given = [x for x in arguments(folder, tmp_path / "out", task="rte") if not x.startswith(f"{key}=")]
    assert main([*given, change]) == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("asr: ")]
    assert len(lines) == 1
    assert message in lines[0]


def test_models_that_know_nothing_have_no_accuracy(folder: Path, tmp_path: Path) -> None:
    """Without tokenizer files, or with NaN as a weight, the accuracy was 0.5, and the exit status 0."""
    for name in ("words", "weights"):
        shutil.copytree(folder / "models" / "rte", tmp_path / name)
    for file in (tmp_path / "words").glob("*token*"):
        file.unlink()
    weights = load_file(tmp_path / "weights" / "model.safetensors")
    weights["classifier.bias"] *= float("nan")
    save_file(weights, tmp_path / "weights" / "model.safetensors", {"format": "pt"})
    for name, message in (("words", r"expected a tokenizer \(tokenizer.json\)"), ("weights", "found NaN")):
        options = Options(
            model=str(tmp_path / name),
            task=["rte"],
            data=str(folder / "data"),
            max_length=40,
            attentions=["full"],
            device="cpu",
        )
        with pytest.raises(UserError, match=message):
            TaskEvaluation("rte", options, tmp_path / "out").run(lambda _: None)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("squad", "expected a model fine-tuned for SequenceClassification, found no weights bert.pooler"),
        ("rte", "expected one output for stsb, found 2"),
    ],
)
def test_a_model_of_another_kind_is_refused(model: str, message: str, folder: Path, tmp_path: Path) -> None:
    """Its head would be random; transformers only warns."""
    (tmp_path / "dev.tsv").write_text("sentence1\tsentence2\tscore\na\tb\t1.5\n")
    options = Options(
        model=str(folder / "models" / model), task=["stsb"], data=str(tmp_path), max_length=40, device="cpu"
    )
    with pytest.raises(UserError, match=message):
        TaskEvaluation("stsb", options, tmp_path)


@pytest.mark.parametrize("names", ["x", [0], ["token_type_ids"], ["input_ids", {}], [["input_ids"]]])
def test_names_of_inputs_that_are_none_are_refused(names: Any, folder: Path, tmp_path: Path) -> None:
    """The tokenizer takes anything there, and the first batch ended with a traceback."""
    model = shutil.copytree(folder / "models" / "rte", tmp_path / "x")
    config = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps(config | {"model_input_names": names}))
    with pytest.raises(UserError, match=r"/x: expected a list with input_ids as .* model_input_names, found"):
        TextModel(model, "AutoModelForSequenceClassification", "cpu")


def test_a_causal_model_is_refused(folder: Path, tmp_path: Path) -> None:
    """Its attention stays as it is, so that every mechanism would have the same score."""
    causal = save_model(tmp_path / "causal", "BertForSequenceClassification", is_decoder=True, **LABELS)
    options = Options(
        model=str(causal), task=["rte"], data=str(folder / "data"), max_length=40, device="cpu", samples=10
    )
    with pytest.raises(UserError, match="no layer of BertForSequenceClassification used attention 'full'"):
        TaskEvaluation("rte", options, tmp_path).run(lambda what: None)


@pytest.mark.parametrize("side", ["left", "right"])
def test_regression_and_padding(side: str, folder: Path, tmp_path: Path) -> None:
    """STS-B has one output; a tokenizer that pads on the left changes no prediction."""
    model = save_model(tmp_path / "stsb", "BertForSequenceClassification", num_labels=1)
    config = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps(config | {"padding_side": side}))
    texts = [f"{'a boat ' * (i % 7)}anna\tboris {'a ' * i}\t{i % 5}.5" for i in range(9)]
    (tmp_path / "dev.tsv").write_text("\n".join(["sentence1\tsentence2\tscore", *texts]) + "\n")
    options = Options(
        model=str(model),
        task=["stsb"],
        data=str(tmp_path),
        max_length=40,
        device="cpu",
        samples=10,
        attentions=["full"],
    )
    result = TaskEvaluation("stsb", options, tmp_path / "out").run(lambda what: None)
    assert list(result.rows[0].scores) == ["Pearson", "Spearman"]
    found = json.loads((tmp_path / "out" / "predictions-full.json").read_text())["predictions"]
    plain = transformers.BertForSequenceClassification.from_pretrained(model).eval()
    with torch.inference_mode():
        for text, value in zip(texts, found, strict=True):
            first, second, _ = text.split("\t")
            inputs = tokenizer()(first, second, return_tensors="pt")
            assert value == pytest.approx(float(plain(**inputs).logits[0, 0]), abs=1e-4)


@pytest.mark.slow
def test_a_mechanism_of_ones_own(folder: Path, tmp_path: Path) -> None:
    """With a landmark for each token, Nyström attention has the scores of full attention."""
    source = Path(__file__).parents[2] / "docs" / "examples" / "nystrom.py"
    name = f"{source}:Nystrom-64:iterations=20"
    assert main(arguments(folder, tmp_path, f"attentions=full,{name}", task="rte")) == 0
    (task,) = results(tmp_path)["tasks"]
    full, own = task["rows"]
    assert own["attention"] == "nystrom:Nystrom-64:iterations=20"
    assert own["scores"] == full["scores"]
    assert results(tmp_path)["environment"]["code"] == {"nystrom": file_digest(source)}
