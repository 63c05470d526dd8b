"""GLUE's files: columns of every task, quotation marks, incomplete rows, labels, and the model's outputs."""

import json
import sys
import types
from pathlib import Path

import pytest
from asr_recipes.questions.glue import TASKS, Example, find_glue, output_of_classes, read_glue

from asr.errors import UserError

MNLI = (
    "index promptID pairID genre s1_binary_parse s2_binary_parse s1_parse s2_parse sentence1 sentence2 label1"
)
# Header and first row of each public file, as tab-separated words; CoLA has no header.
PUBLIC = {
    "cola": ("CoLA/dev.tsv", "", "gj04|1||The sailors rode.", Example("The sailors rode.", None, 1)),
    "sst2": ("SST-2/dev.tsv", "sentence|label", 'a "charming film|1', Example('a "charming film', None, 1)),
    "mrpc": (
        "MRPC/dev.tsv",
        "\ufeffQuality|#1 ID|#2 ID|#1 String|#2 String",
        '1|70|71|He said: "no.|"He said no.',
        Example('He said: "no.', '"He said no.', 1),
    ),
    "stsb": (
        "STS-B/dev.tsv",
        "index|genre|filename|year|old_index|source1|source2|sentence1|sentence2|score",
        "0|main|MSR|2012|0|none|none|A man.|A boy.|3.750",
        Example("A man.", "A boy.", 3.75),
    ),
    "qqp": (
        "QQP/dev.tsv",
        "id|qid1|qid2|question1|question2|is_duplicate",
        "201|365|366|Why?|Why not?|0",
        Example("Why?", "Why not?", 0),
    ),
    "mnli": (
        "MNLI/dev_matched.tsv",
        f"{MNLI} gold_label".replace(" ", "|"),
        "0|6|6e|slate|(a)|(b)|(c)|(d)|It rains.|It snows.|neutral|contradiction",
        Example("It rains.", "It snows.", 2),
    ),
    "mnli-mm": (
        "MNLI/dev_mismatched.tsv",
        f"{MNLI} label2 gold_label".replace(" ", "|"),
        "0|6|6e|slate|(a)|(b)|(c)|(d)|It rains.|It snows.|neutral|neutral|entailment",
        Example("It rains.", "It snows.", 0),
    ),
    "qnli": (
        "QNLI/dev.tsv",
        "index|question|sentence|label",
        "0|Who?|He did.|not_entailment",
        Example("Who?", "He did.", 1),
    ),
    "rte": ("RTE/dev.tsv", "index|sentence1|sentence2|label", "0|A.|B.|entailment", Example("A.", "B.", 0)),
    "wnli": ("WNLI/dev.tsv", "index|sentence1|sentence2|label", "0|A.|B.|1", Example("A.", "B.", 1)),
}


def write(path: Path, *rows: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(row.replace("|", "\t") + "\n" for row in rows if row), encoding="utf-8")
    return path


def test_all_tasks_are_covered() -> None:
    assert PUBLIC.keys() == TASKS.keys()


@pytest.mark.parametrize("task", PUBLIC)
def test_the_public_file_of_each_task_is_found_and_read(task: str, tmp_path: Path) -> None:
    name, header, row, expected = PUBLIC[task]
    path = write(tmp_path / name, header, row)
    assert find_glue(task, tmp_path) == path
    assert read_glue(task, path) == [expected]


@pytest.mark.parametrize("task", PUBLIC)
def test_json_lines_with_the_columns_of_datasets_are_read(task: str, tmp_path: Path) -> None:
    form, expected = TASKS[task], PUBLIC[task][3]
    row = {form.first[-1]: expected.first, form.label[-1]: expected.label, "idx": 0}
    row |= {form.second[-1]: expected.second} if form.second else {}
    path = tmp_path / f"{form.files[1]}.jsonl"
    path.write_text(json.dumps(row) + "\n")
    assert find_glue(task, tmp_path) == path
    assert read_glue(task, path) == [expected]
    listed = tmp_path / "rows.json"
    listed.write_text(json.dumps({"data": [row]}))
    assert read_glue(task, listed) == [expected]


def test_quotation_marks_join_no_lines(tmp_path: Path) -> None:
    """GLUE's tables have stray quotation marks; read as CSV, they swallow rows up to the next one."""
    rows = ['a "good film|1', "bad|0", 'fine"|1']
    examples = read_glue("sst2", write(tmp_path / "dev.tsv", "sentence|label", *rows))
    assert [x.first for x in examples] == ['a "good film', "bad", 'fine"']


def test_incomplete_rows_are_left_out_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(
        tmp_path / "dev.tsv", PUBLIC["qqp"][1], "1|2|3|Why?|Why not?|1", "1|2|3|broken", "4|5|6|A?|B?|0"
    )
    assert [x.label for x in read_glue("qqp", path)] == [1, 0]
    assert f"{path}: left out 1 of 3 rows, which lack a field: 3" in caplog.text


def test_pairs_without_agreement_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"sentence1": "A.", "sentence2": "B.", "gold_label": label} for label in ("-", "neutral")]
    path = tmp_path / "multinli_1.0_dev_matched.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert find_glue("mnli", tmp_path) == path
    assert read_glue("mnli", path) == [Example("A.", "B.", 1)]
    assert "left out 1 of 2 rows" in caplog.text


@pytest.mark.parametrize(
    ("task", "rows", "message"),
    [
        ("rte", ["index|sentence1|sentence2|label", "0|A.|B.|maybe"], "dev.tsv:2: expected a label ent"),
        ("rte", ["index|sentence1|sentence2|label", "0|A.|B.|2"], "or 0 … 1, found '2'"),
        ("rte", ["sentence|label", "A.|1"], "expected a column sentence1, found sentence, label"),
        ("rte", ["index|sentence1|sentence2|label"], "expected examples of rte, found none"),
        ("stsb", ["sentence1|sentence2|score", "A.|B.|nan"], "expected a number as label, found 'nan'"),
        ("stsb", ["sentence1|sentence2|score", "A.|B.|good"], "expected a number as label, found 'good'"),
    ],
)
def test_bad_rows_are_one_line(task: str, rows: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        read_glue(task, write(tmp_path / "dev.tsv", *rows))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "dev.jsonl:1: expected an example in JSON"),
        ("[1]", "dev.jsonl:1: expected an object, found [1]"),
        ('{"sentence1": 7, "sentence2": "B", "label": 0}', "expected text as sentence1, found '7'"),
        ('{"sentence1": "A", "sentence2": "B", "label": [0]}', "expected a label"),
    ],
)
def test_bad_json_is_one_line(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "dev.jsonl"
    path.write_text(content + "\n")
    with pytest.raises(UserError) as caught:
        read_glue("rte", path)
    assert message in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"expected the file MNLI/dev_mismatched.tsv, found none"):
        find_glue("mnli-mm", tmp_path)


def test_a_saved_dataset_needs_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for `datasets`, which no extra of this package installs."""
    folder = tmp_path / "rte"
    folder.mkdir()
    (folder / "dataset_dict.json").write_text('{"splits": ["train", "validation"]}')
    assert find_glue("rte", tmp_path) == folder
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match="which is not installed: pip install datasets"):
        read_glue("rte", folder)
    row = {"sentence1": "A.", "sentence2": "B.", "label": 1, "idx": 0}
    stand_in = types.SimpleNamespace(load_from_disk=lambda path: {"train": [], "validation": [row]})
    monkeypatch.setitem(sys.modules, "datasets", stand_in)
    assert read_glue("rte", folder) == [Example("A.", "B.", 1)]
    stand_in.load_from_disk = lambda path: {"test": [row]}
    with pytest.raises(UserError, match="expected a split dev or validation, found test"):
        read_glue("rte", folder)


def test_outputs_are_matched_by_name() -> None:
    """Models of MNLI that list contradiction first scored below chance when read in GLUE's order."""
    classes = TASKS["mnli"].classes
    assert output_of_classes(classes, ("CONTRADICTION", "NEUTRAL", "ENTAILMENT"), "x") == [2, 1, 0]
    assert output_of_classes(classes, ("LABEL_0", "LABEL_1", "LABEL_2"), "x") == [0, 1, 2]
    assert output_of_classes(TASKS["rte"].classes, ("not entailment", "Entailment"), "x") == [1, 0]
    for names in (("yes", "no"), ("LABEL_0", "LABEL_1")):
        with pytest.raises(UserError, match="expected outputs entailment, neutral, contradiction, found"):
            output_of_classes(classes, names, "config.json")
