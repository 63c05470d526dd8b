"""`asr compare recipe=questions` end to end on tiny random models, and what its programs print."""

import gzip
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_transformers import save_model, tokenizer, write_rte, write_squad

transformers = pytest.importorskip("transformers", minversion="5", reason="needs transformers ≥ 5")
from asr_recipes.questions import seeds  # noqa: E402
from asr_recipes.questions.model import TextModel  # noqa: E402

from asr.cli import main  # noqa: E402
from asr.errors import UserError  # noqa: E402
from asr.experiment.exchange import Exchange, file_of, run_exchange, workloads  # noqa: E402
from asr.experiment.request import parse  # noqa: E402
from asr.files import file_digest, write_json  # noqa: E402

ATTENTIONS = "full,clustered-3,i-clustered-3:topk=4,i-clustered-64:topk=64"
STORED = Path(__file__).parents[2] / "recipes/language/results/facts-0.json.gz"
LABELS = {
    "id2label": {0: "not_entailment", 1: "entailment"},
    "label2id": {"not_entailment": 0, "entailment": 1},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with models and data of both kinds of task."""
    made = tmp_path_factory.mktemp("questions")
    save_model(made / "models" / "rte", "BertForSequenceClassification", **LABELS)
    save_model(made / "models" / "squad", "BertForQuestionAnswering")
    write_rte(made / "data")
    write_squad(made / "data")
    return made


def arguments(folder: Path, out: Path, *more: str, task: str = "rte,squad") -> list[str]:
    """Return the arguments of a command that evaluates both tasks."""
    return [
        "compare",
        "recipe=questions",
        f"model={folder / 'models' / '{task}'}",
        f"data={folder / 'data'}",
        f"recipe.task={task}",
        f"attentions={ATTENTIONS}",
        f"folder={out}",
        "recipe.max_length=40",
        "batch=120",
        "device=cpu",
        *(["recipe.stride=10"] if "squad" in task else []),
        *more,
    ]


def results(out: Path) -> dict[str, Any]:
    """Return `results.json`."""
    content: dict[str, Any] = json.loads((out / "results.json").read_text())
    return content


def request(model: Path, task: str, data: Path, out: Path) -> Any:
    """Return the request to evaluate full attention on a task."""
    where = {"model": str(model), "data": str(data), "folder": str(out)}
    own = {"recipe": "questions", "recipe.task": [task], "recipe.max_length": 40}
    return parse(where | own | {"attentions": ["full"], "device": "cpu"})


@pytest.fixture(scope="module")
def evaluated(folder: Path) -> Path:
    """Output folder of both tasks."""
    out = folder / "out"
    assert main(arguments(folder, out)) == 0
    return out


def of_task(out: Path, task: str) -> dict[str, Any]:
    """Return the evaluations of a task by variant."""
    return {x["variant"]: x for x in results(out)["evaluations"] if x["split"] == task}


def test_results_have_scores_intervals_ratios_and_times(evaluated: Path) -> None:
    content = results(evaluated)
    assert (content["recipe"], content["trainings"]) == ("questions", [])
    sizes = content["protocol"]["sizes"]
    assert (list(sizes), sizes["rte"]["inputs"]) == (["rte", "squad"], 12)
    assert sizes["squad"]["inputs"] > 6
    for task, examples, names in (("rte", 12, ["accuracy"]), ("squad", 6, ["f1", "em"])):
        found = of_task(evaluated, task)
        assert list(found) == ATTENTIONS.split(",")
        for row in found.values():
            assert list(row["rates"]) == names
            low, high = row["rates"][names[0]]["interval"]
            assert 0 <= low <= row["rates"][names[0]]["rate"] <= high <= 1
            assert row["utterances"] == examples
            assert row["forward_cpu_s"] > 0
            assert row["peak_mib"] is None or 0 <= row["peak_mib"] < 1024
        full, *_, exact = found.values()
        assert all(ratio["rate"] == 1.0 for ratio in full["ratios"].values())
        # As many clusters and keys as positions: the approximation is exact.
        assert exact["rates"] == full["rates"]


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
    assert of_task(evaluated, "rte")["full"]["rates"]["accuracy"]["rate"] == right


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


@pytest.mark.slow
def test_finished_work_is_not_repeated(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A further mechanism runs alone, after full attention; other options start again."""
    given = arguments(folder, tmp_path, task="rte")
    assert main(given) == 0
    before = results(tmp_path)
    ran: list[str] = []
    original = Exchange._checked

    def checked(self: Exchange, output: Any, variant: Any) -> Any:
        ran.append(str(variant))
        return original(self, output, variant)

    monkeypatch.setattr(Exchange, "_checked", checked)
    assert main(given) == 0
    assert "rte: reusing" in capsys.readouterr().out
    assert ran == []
    assert results(tmp_path)["evaluations"] == before["evaluations"]
    assert main([x + ",local-2" if x.startswith("attentions") else x for x in given]) == 0
    assert set(ran) == {"full", "local-2"}
    assert results(tmp_path)["evaluations"][:4] == before["evaluations"]
    ran.clear()
    assert main([*given, "examples=5"]) == 0
    assert set(ran) == set(ATTENTIONS.split(","))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("model=nowhere", "model=nowhere: expected a folder with a transformers model, found no config.json"),
        ("data=nowhere", "data=nowhere: expected the file RTE/dev.tsv, found none"),
        ("attentions=lsh-1", "attention 'lsh-1' needs keys tied to the queries"),
        ("attentions=cast-8", "attention 'cast-8' has parameters of its own"),
        ("attentions=nonsense-3", "nonsense"),
        ("attentions=", "nothing to compare: attentions="),
        ("recipe.task=rte,sst3", "task=sst3: expected one of cola"),
        ("recipe.max_length=100", "recipe.max_length=100: expected at most 64 tokens"),
        ("recipe.max_length=4", "recipe.max_length=4: expected at least 5 tokens"),
        ("recipe.stride=64", "stride=64: has no effect without task=squad"),
        ("recipe.task=", "recipe.task=[]: expected cola"),
        ("frames=2", "frames=2: has an effect on recordings only"),
        ("join_s=2", "join_s=2.0: has an effect on recordings only"),
        ("recipe.labels=yes,no", "recipe.labels: expected outputs entailment, not_entailment, found yes, no"),
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
        with pytest.raises(UserError, match=message):
            run_exchange(request(tmp_path / name, "rte", folder / "data", tmp_path / "out"))


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
    with pytest.raises(UserError, match=message):
        workloads(request(folder / "models" / model, "stsb", tmp_path, tmp_path))


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
    with pytest.raises(UserError, match="no layer of BertForSequenceClassification used attention 'full'"):
        run_exchange(request(causal, "rte", folder / "data", tmp_path / "out"))


@pytest.mark.parametrize("side", ["left", "right"])
def test_regression_and_padding(side: str, folder: Path, tmp_path: Path) -> None:
    """STS-B has one output; a tokenizer that pads on the left changes no prediction."""
    model = save_model(tmp_path / "stsb", "BertForSequenceClassification", num_labels=1)
    config = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps(config | {"padding_side": side}))
    texts = [f"{'a boat ' * (i % 7)}anna\tboris {'a ' * i}\t{i % 5}.5" for i in range(9)]
    (tmp_path / "dev.tsv").write_text("\n".join(["sentence1\tsentence2\tscore", *texts]) + "\n")
    out, found_results = run_exchange(request(model, "stsb", tmp_path, tmp_path / "out"))
    assert list(found_results.evaluations[0].rates) == ["pearson", "spearman"]
    found = json.loads((out / "stsb" / "predictions-full.json").read_text())["predictions"]
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
    full, own = results(tmp_path)["evaluations"]
    assert own["variant"] == "nystrom:Nystrom-64:iterations=20"
    assert own["rates"] == full["rates"]
    assert results(tmp_path)["environment"]["code"] == {"nystrom": file_digest(source)}


def answered(folder: Path, texts: dict[str, list[str]]) -> None:
    """Write what a fine-tuning leaves of four questions on two contexts."""
    contexts = ["Anna moved to Rome. Boris moved to Oslo.", "Clara bought a boat. David bought a lamp."]
    answers = [["Rome", "Oslo"], ["boat", "lamp"]]
    paragraphs = [
        {
            "context": context,
            "qas": [
                {
                    "id": f"{number}{index}",
                    "question": "?",
                    "answers": [{"text": own, "answer_start": context.index(own)}],
                }
                for index, own in enumerate(found)
            ],
        }
        for number, (context, found) in enumerate(zip(contexts, answers, strict=True))
    ]
    write_json({"data": [{"paragraphs": paragraphs}]}, folder / "data/squad/dev-v1.1.json")
    stored = json.loads(gzip.decompress(STORED.read_bytes()))
    of_variant = stored["evaluations"][0] | {"ratios": {"time": {"rate": 1.0, "interval": None}}}
    stored["evaluations"] = [of_variant | {"variant": name} for name in texts]
    write_json(stored, folder / "result/results.json")
    for name, found in texts.items():
        path = file_of(folder / "result" / "squad", "predictions", name)
        write_json({"predictions": dict(zip(("00", "01", "10", "11"), found, strict=True))}, path)


def test_questions_are_pooled_over_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    right = ["Rome", "Oslo", "boat", "lamp"]
    near = "near-4:topk=2"
    answered(tmp_path / "0", {"full": right, near: ["Rome", "Rome", "boat", "lamp"]})
    answered(tmp_path / "1", {"full": right, near: ["Rome", "Rome", "boat", "boat"]})
    saved = tmp_path / "scores.json"
    seeds.measure_seeds(seeds.Seeds(folders=[str(tmp_path / "0"), str(tmp_path / "1")], save=str(saved)))
    printed = capsys.readouterr().out
    seeds.measure_seeds(seeds.Seeds(stored=str(saved)))
    assert capsys.readouterr().out == printed
    with pytest.raises(UserError, match="expected two folders or more"):
        seeds.Seeds(folders=[str(tmp_path / "0")]).check()
    assert "F1 on 4 questions, 2 seeds\n\n" in printed
    assert "| full | 1.000, 1.000 | 1.000 | 1 | 1.00, 1.00 |" in printed
    assert f"| {near} | 0.750, 0.500 | 0.625 | 0.625 (-0.963 … 2.213) | 1.00, 1.00 |" in printed
    assert re.search(rf"\| full \| {near} \| \+0\.375 \(-\d\.\d+ … \+\d\.\d+\) \|  \|", printed)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda folder: answered(folder, {"full": ["Rome"] * 4, "near-4": ["Rome"] * 4}),
            "the same mechanisms",
        ),
        (
            lambda folder: [
                path.write_text(path.read_text().replace("Oslo", "Rome")) for path in folder.glob("data/*/*")
            ],
            "the same questions",
        ),
    ],
)
def test_other_fine_tunings_are_not_pooled(
    change: Callable[[Path], object], message: str, tmp_path: Path
) -> None:
    for seed in "01":
        answered(tmp_path / seed, {"full": ["Rome"] * 4})
    change(tmp_path / "1")
    with pytest.raises(UserError, match=message):
        seeds.read_scores([tmp_path / "0", tmp_path / "1"])
