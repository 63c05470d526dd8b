"""Variants: their texts, and the axes that make candidates and evaluations."""

from pathlib import Path

import pytest
from comparisons import arguments, reusing
from hypothesis import given
from hypothesis import strategies as st

from asr.cli import main
from asr.errors import UserError
from asr.experiment.candidates import can_run, plan_candidates
from asr.experiment.plan import make_plan
from asr.experiment.request import parse
from asr.experiment.results import read_results
from asr.experiment.variant import Variant, attention_only, given_variants

ATTENTIONS = ["full", "full*3,near-25*9", "./my own/nystrom.py:Nystrom-32", "i-clustered-25:topk=16,bits=31"]


@given(
    st.builds(
        Variant,
        attention=st.sampled_from(ATTENTIONS),
        frames=st.sampled_from(["", "2", "1,2*8", "pad-10", "merge-0.4:cap=2,at=3"]),
        layers=st.integers(0, 24),
        precision=st.sampled_from(["", "bf16"]),
    )
)
def test_a_text_is_read_as_it_was_written(variant: Variant) -> None:
    assert Variant.read(str(variant)) == variant


def test_given_names_are_alternatives_and_canonical() -> None:
    assert given_variants(["lsh-4:chunk=16/32,buckets=64 precision=bf16", "full"]) == [
        "lsh-4:chunk=16 precision=bf16",
        "lsh-4 precision=bf16",
        "full",
    ]
    with pytest.raises(UserError, match="near-25"):
        given_variants(["naer-25 frames=2"])
    with pytest.raises(UserError, match=r"^full layers=x: layers=x: expected a whole number"):
        given_variants(["full layers=x"])  # was blamed on the mechanism


def test_what_a_model_can_run_as_depends_on_the_mechanism_alone() -> None:
    assert can_run("full", "clustered-25 precision=bf16")
    assert not can_run("full", "shared-full precision=bf16")
    assert can_run("cast-8", "cast-8 precision=bf16")


def test_labels_have_no_other_axis() -> None:
    assert attention_only("full") == "full"
    with pytest.raises(UserError, match=r"^precision=bf16: has an effect on recordings only"):
        attention_only("full precision=bf16")


def test_layers_of_a_trained_model_are_refused(tone_corpus: Path, tmp_path: Path) -> None:
    """They were ignored."""
    asked = arguments(tone_corpus, tmp_path, "attentions=[full]", "evaluate=['full layers=1']")
    with pytest.raises(UserError, match=r"^evaluate=\[full layers=1\]: only Whisper runs with fewer"):
        make_plan(parse(asked[1:]))


def test_frames_and_layers_are_crossed_with_the_mechanisms() -> None:
    axes = ["attentions=[full,near-25]", "frames=[1,'1,2*3']", "layers=[4,6]"]
    found, trainings = plan_candidates(parse(["recipe=demo", "model.layers=4", *axes[:2]]))
    assert [x.label for x in found] == [
        "full",
        "full, model.frames=1,2*3",
        "near-25",
        "near-25, model.frames=1,2*3",
    ]
    assert [trainings[x.label].model.frames for x in found] == ["1", "1,2*3"] * 2
    found, trainings = plan_candidates(parse(["recipe=demo", "model.layers=4", axes[0], axes[2]]))
    assert [x.label for x in found] == ["full", "6 layers, full", "near-25", "6 layers, near-25"]


@pytest.mark.slow
@pytest.mark.usefixtures("fast_without_training")
def test_models_are_evaluated_and_timed_in_further_precisions(
    trained: Path, tone_corpus: Path, tmp_path: Path
) -> None:
    asked = reusing(trained, tone_corpus, tmp_path, "precisions=[bf16]")
    assert main(asked) == 0
    results = read_results(tmp_path)
    assert [x.variant for x in results.evaluations] == ["full", "clustered-3", "full precision=bf16"]
    assert all(x.forward_cpu_s for x in results.evaluations)
    assert "precision=bf16" in results.evaluations[-1].command
    assert results.difference(("full", "full precision=bf16"), ("full", "full"), "test", "per") is not None
