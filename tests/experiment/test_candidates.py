"""Candidates: syntax, labels, and mechanisms of evaluation."""

from dataclasses import replace
from pathlib import Path

import pytest

from asr.config import flat, nested
from asr.errors import UserError
from asr.experiment.candidates import evaluated_with, plan_candidates
from asr.experiment.records import Candidate
from asr.experiment.request import parse

SHARED = ["recipe=demo", "model.layers=4"]
SOFTMAX = ["full", "shared-full", "lsh-1", "clustered-25", "oracle-top-32", "local-64"]
ALL = [*SOFTMAX, "linear", "cast-8", "agglomerative-8", "summary"]


def candidates(*overrides: str) -> list[Candidate]:
    return plan_candidates(parse([*SHARED, *overrides]))[0]


def test_labels_name_the_differences_from_the_protocol() -> None:
    asked = [
        "{attention: i-clustered-200, model.layers: 6}",
        "{attention: full, model.layers: 4}",
        "{attention: full, optimizer.learning_rate: 1e-4, trainer.max_epochs: 2, init_from: full}",
        "{attention: i-clustered-25, init_from: full, label: finetuned}",
    ]
    found = candidates(f"candidates=[{','.join(asked)}]")
    assert [x.label for x in found] == [
        "6 layers, i-clustered-200",
        "full",
        "full → full, optimizer.learning_rate=0.0001, trainer.max_epochs=2",
        "finetuned",
    ]
    assert [x.size for x in found] == [200, None, None, 25]
    assert [x.finetuned_from for x in found] == [None, None, "full", "full"]


def test_short_and_long_form_are_equivalent() -> None:
    long = "candidates=[{attention: 'lsh-4:chunk=16,buckets=8', model.layers: 6, seeds: [1, 2]}]"
    short = "candidates=['lsh-4:chunk=16,buckets=8 model.layers=6 seeds=[1,2]']"
    assert candidates(long) == candidates(short)
    assert candidates(short)[0].seeds == [1, 2]


def test_entries_with_brackets_need_quotes() -> None:
    with pytest.raises(UserError, match=r"entries with brackets in quotes, e\.g\. \["):
        candidates("candidates=[full loss.intermediate=[2]]")
    (found,) = candidates('candidates=["full loss.intermediate=[2]"]')
    assert found.overrides == {"loss.intermediate": [2]}


def test_a_candidate_without_seeds_takes_the_common_ones() -> None:
    found = candidates("attentions=[full]", "candidates=[{attention: lsh-1, seeds: 7}]", "seeds=[0,1]")
    assert [x.seeds for x in found] == [[0, 1], [7]]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("{attention: full, seeds: [1, 1]}", r"candidate full: seeds=\[1, 1\]: expected distinct seeds"),
        ("full seeds=-1", "candidate full: seeds=-1: expected a number ≥ 0"),
        ("'full seeds=[1,x]'", r"candidate full: seeds=\[1,x\]: expected a list of whole numbers"),
        ("{label: a}", "expected an attention"),
    ],
)
def test_a_candidates_own_options_are_checked_as_those_of_a_command(entry: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        candidates(f"candidates=[{entry}]")


@pytest.mark.parametrize(
    ("option", "instead"), [("seed: 3", "seeds="), ("run: exp/mine", "folder="), ("resume: auto", "nothing")]
)
def test_a_candidate_with_options_that_cannot_differ_is_refused(option: str, instead: str) -> None:
    """These options were ignored silently: a candidate with seed: 3 was trained with the common seeds."""
    key = option.partition(":")[0]
    with pytest.raises(UserError, match=f"candidate full: {key}= can't differ; use {instead}"):
        candidates(f"candidates=[{{attention: full, {option}}}]")


def test_finetuned_candidates_follow_their_parents() -> None:
    last = "{attention: i-clustered-25, init_from: b, label: c}"
    first = "{attention: full, label: a}"
    middle = "{attention: clustered-25, init_from: a, label: b}"
    assert [x.label for x in candidates(f"candidates=[{last},{middle},{first}]")] == ["a", "b", "c"]


def test_a_candidate_of_another_size_than_its_parent_is_refused_before_anything_is_trained() -> None:
    """The parent was trained first, and PyTorch's state_dict then listed the weights that didn't fit."""
    entries = (
        "{attention: full, model.layers: 2, label: a}, {attention: clustered-25, init_from: a, label: b}"
    )
    with pytest.raises(UserError, match=r"^model\.layers=4: expected 2 with init_from=a$"):
        candidates(f"candidates=[{entries}]")


@pytest.mark.parametrize("start", ["exp/demo/full", "parent"])
def test_lora_starts_from_a_run_or_another_candidate(
    start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was refused as having random weights."""
    monkeypatch.chdir(tmp_path)
    entries = (
        f"{{attention: full, label: parent}}, {{attention: full, init_from: {start}, model.lora.rank: 4}}"
    )
    _, lora = candidates(f"candidates=[{entries}]")
    assert (lora.finetuned_from, lora.overrides) == (start, {"model.lora.rank": 4})
    with pytest.raises(UserError, match=r"model\.lora\.rank=4: expected trained weights"):
        candidates("candidates=[{attention: full, model.lora.rank: 4}]")


@pytest.mark.parametrize(
    "names", ["full,lsh-4:chunk=16,buckets=8,cast-8", "[full, lsh-4:chunk=16,buckets=8, cast-8]"]
)
def test_names_with_commas_stay_whole(names: str) -> None:
    assert [x.label for x in candidates(f"attentions={names}")] == [
        "full",
        "lsh-4:chunk=16,buckets=8",
        "cast-8",
    ]


@pytest.mark.parametrize(
    ("trained", "evaluated"),
    [
        ("full", ["full", "clustered-25", "oracle-top-32", "local-64"]),
        ("i-clustered-25", ["i-clustered-25", "full", "clustered-25", "oracle-top-32", "local-64"]),
        ("local-8", ["local-8", "full", "clustered-25", "oracle-top-32", "local-64"]),
        ("shared-full", ["shared-full", "full", "lsh-1", "clustered-25", "oracle-top-32", "local-64"]),
        ("lsh-4", ["lsh-4", "full", "shared-full", "lsh-1", "clustered-25", "oracle-top-32", "local-64"]),
        ("linear", ["linear"]),
        ("linear:causal=true", ["linear:causal=true"]),
        ("summary", ["summary"]),
        ("cast-8", ["cast-8"]),
        ("agglomerative-8", ["agglomerative-8"]),
    ],
)
def test_models_run_with_compatible_mechanisms_only(trained: str, evaluated: list[str]) -> None:
    (candidate,) = candidates(f"attentions=[{trained}]")
    assert evaluated_with(candidate, ALL) == evaluated
    assert evaluated_with(replace(candidate), [trained]) == [trained]


def test_what_a_published_model_determines_is_not_in_the_label(tmp_path: Path) -> None:
    """Its features and sizes made the name of a log file longer than a file system allows."""
    from published_models import save_ctc  # needs transformers

    save_ctc(tmp_path / "model")
    start = f"attention: full, init_from: {tmp_path / 'model'}"
    asked = f"candidates=[{{{start}}},{{{start}, model.frames: '1,2'}}]"
    found, _ = plan_candidates(parse(["recipe=demo", asked]))
    assert [x.label for x in found] == [
        f"{tmp_path / 'model'} → full",
        f"{tmp_path / 'model'} → full, model.frames=1,2",
    ]
    assert found[1].overrides["model.frames"] == "1,2"
    assert found[1].overrides["model.encoder"] == str(tmp_path / "model")


def test_flat_and_nested_are_inverse() -> None:
    values = {"a": {"b": 1, "c": {"d": [2, 3]}}, "e": None}
    assert flat(values) == {"a.b": 1, "a.c.d": [2, 3], "e": None}
    assert nested(flat(values)) == values


def test_a_mechanism_for_each_layer_is_a_candidate() -> None:
    """In lists, too, whose commas it shares."""
    found = candidates("attentions=full,full*1,i-clustered-25:topk=8,bits=31*3,lsh-1")
    layers = "full*1,i-clustered-25:topk=8,bits=31*3"
    assert [(x.label, x.attention, x.mechanism, x.size) for x in found] == [
        ("full", "full", "full", None),
        (layers, layers, "layers", None),
        ("lsh-1", "lsh-1", "lsh", 1),
    ]
    assert evaluated_with(found[1], [*ALL, layers]) == [
        layers,
        "full",
        "clustered-25",
        "oracle-top-32",
        "local-64",
    ]
    assert evaluated_with(found[2], [layers]) == ["lsh-1", layers]
    assert evaluated_with(found[0], ["full frames=2", "full frames=1,2*3", "full frames=1,2*4"]) == [
        "full",
        "full frames=2",
        "full frames=1,2*3",
    ]
    two = candidates('attentions=["full*1,local-4*3","full*2,local-4*2"]')
    assert [x.attention for x in two] == ["full*1,local-4*3", "full*2,local-4*2"]
    with pytest.raises(UserError, match=r"'full\*2,lsh-1\*1': expected mechanisms for 4 layers, found 3"):
        candidates("attentions=[full*2,lsh-1*1]")


@pytest.mark.parametrize(
    ("asked", "labels"),
    [
        ("frames=['1,2*5','1,2*']", "'full, model.frames=1,2.5' and 'full, model.frames=1,2.': "),
        ("candidates=['full*6']", "'full' and 'full.6': "),
    ],
)
def test_the_same_in_each_layer_is_not_trained_twice(asked: str, labels: str) -> None:
    """Equal models were trained under two names."""
    given = ["recipe=demo", "attentions=full", "model.layers=6", asked]
    with pytest.raises(UserError, match=labels + "the same in every layer"):
        plan_candidates(parse(given))
