"""`asr advise`: costs by length, the recommendation and its reason."""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from asr.attention import MECHANISMS, parse_name
from asr.attention.table import exchange
from asr.cli import main
from asr.experiment import advice
from asr.experiment.advice import (
    Cost,
    Lengths,
    advice_options,
    expect,
    measure,
    of_the_map,
    on_the_map,
    reason,
    recommend,
    usual_variants,
)
from asr.experiment.bench import Bench, bench_options, row_of
from asr.experiment.options import AdviceConfig
from asr.experiment.paying import spots
from asr.experiment.random_input import Problem
from asr.experiment.records import Evaluation
from asr.experiment.results import read_results
from asr.experiment.variant import given_variants, mechanism_of
from asr.files import write_json
from asr.measure import Seconds
from asr.training.options import TrainConfig


def expected(name: str, epoch_s: float) -> Cost:
    return Cost(name, {100: 1.0, 500: 2.0}, epoch_s, None, 5, (epoch_s, epoch_s))


def lengths_of(frames: list[int], training: TrainConfig | None = None) -> Lengths:
    """Return the lengths of utterances of 10 ms per frame; two layers, 400 frames per batch."""
    training = training or small_training()
    return Lengths(len(frames), np.array(frames) / 100, np.array(frames), training)


@pytest.mark.parametrize(
    ("costs", "taken"),
    [
        ({"full": 10.0, "i-clustered-25": 9.9, "clustered-25": 9.51}, "full"),
        ({"full": 10.0, "clustered-25": 9.5}, "clustered-25"),
        ({"full": 10.0, "i-clustered-25": 8.0, "clustered-25": 7.5}, "i-clustered-25"),
        (
            {"full": 10.0, "i-clustered-25": 8.0, "i-clustered-25:grouping=keys": 8.5},
            "i-clustered-25:grouping=keys",
        ),
        ({"full": 10.0, "i-clustered-25": 8.0, "clustered-25": 5.0}, "clustered-25"),
        ({"clustered-25": 5.0, "lsh-1": 9.0, "full": 10.0}, "clustered-25"),
        ({"full": 10.0, "i-clustered-25": 7.5, "near-25": 8.0, "local-64": 7.4}, "near-25"),
        ({"full": 10.0, "near-25": 7.0, "full frames=2": 7.5}, "full frames=2"),
        ({"full": 10.0, "near-25": 6.0, "full frames=2": 7.5}, "near-25"),
    ],
)
def test_a_closer_mechanism_wins_unless_a_coarser_one_saves_a_tenth(
    costs: dict[str, float], taken: str
) -> None:
    assert recommend([expected(name, cost) for name, cost in costs.items()]).name == taken


def test_the_reason_names_length_and_saving() -> None:
    both = [expected("full", 10.0), expected("i-clustered-25", 8.0)]
    text = reason(both, recommend(both), lengths_of([1900]), "cpu")
    assert "95th percentile is 1,900 frames (1,900 positions)" in text
    assert "i-clustered-25 is the fastest on this machine's CPU: 20 % less time per epoch than full" in text
    three = [*both, expected("clustered-25", 7.9)]
    assert "full takes 1.2 times as long" in reason(three, recommend(three), lengths_of([1900]), "cpu")
    near = [expected("full", 10.0), expected("i-clustered-25", 9.6)]
    text = reason(near, recommend(near), lengths_of([1900]), "cuda")
    assert (
        "i-clustered-25 is the fastest on this GPU, but full, which is exact, takes only 4 % longer" in text
    )


def test_full_attention_is_recommended_unless_a_difference_is_shown() -> None:
    """The answer was clustered-25 for "1 % less time", within noise, where docs/attention.md says full."""
    full = Cost("full", {100: 1.0}, 10.0, None, 9, (8.9, 11.0))
    noisy = Cost("clustered-25", {100: 1.0}, 9.0, None, 9, (8.5, 9.5))
    clear = Cost("clustered-25", {100: 1.0}, 8.0, None, 9, (7.9, 8.1))
    assert recommend([full, noisy]) is full
    text = reason([full, noisy], full, lengths_of([400]), "cpu")
    assert "the quartiles of their times overlap: no difference is shown" in text
    assert recommend([full, clear]) is clear
    near = Cost("clustered-25", {100: 1.0}, 8.6, None, 9, (8.5, 8.7))
    assert recommend([full, near]) is full  # 8.7 isn't 5 % less than 8.9
    assert "and the quartiles of their times show no 5 % less" in reason(
        [full, near], full, lengths_of([400]), "cpu"
    )
    few = [replace(x, rounds=4) for x in (full, clear)]
    assert recommend(few) is few[0]
    assert "and rounds=4 show no difference: at least 5 do" in reason(few, few[0], lengths_of([400]), "cpu")
    others = [full, clear, replace(expected("lsh-1", 8.1), step_s={100: 1.0})]
    text = reason(others, clear, lengths_of([400]), "cpu")
    assert "20 % less time per epoch than full" in text
    assert "Time alone: asr compare measures what it costs in errors." in text


def test_a_difference_below_one_percent_is_level() -> None:
    both = [expected("full", 10.0), expected("clustered-25", 10.02)]
    text = reason(both, recommend(both), lengths_of([1900]), "cpu")
    assert "full is level with clustered-25 on this machine's CPU" in text
    assert "fastest" not in text


def test_positions_round_up() -> None:
    training = small_training()
    training.model.subsampling = 4
    assert [lengths_of([1], training).positions(n) for n in (1, 4, 5, 8)] == [1, 1, 2, 2]


def given_row(name: str, length: int, batch: int, seconds: float) -> Evaluation:
    problem = Problem(1, 4, "fp32", "cpu", 0, batch=batch, length=length)
    return row_of(name, problem, "forward+backward", [Seconds(0.0, seconds)] * 5)


def small_training() -> TrainConfig:
    """Two layers, 400 frames per batch."""
    training = TrainConfig()
    training.model.layers, training.model.subsampling, training.data.frames_per_batch = 2, 1, 400
    return training


def rows_of(lengths: list[int], seconds: dict[str, Callable[[int], float]]) -> list[Evaluation]:
    """Return rows of batches of 400 frames: seconds of a step for a sequence, by mechanism and length."""
    batches = {length: max(1, 400 // length) for length in lengths}
    return [given_row(name, n, x, x * each(n)) for n, x in batches.items() for name, each in seconds.items()]


def test_an_epoch_is_the_sum_over_utterances() -> None:
    """A step takes N² / 500 s per sequence, and half a second per frame."""
    rows = rows_of([100, 200], {"full": lambda length: length**2 / 500 + length / 2})
    lengths = np.array([100, 150, 200])
    (found,) = expect(rows, lengths_of([100, 150, 200]), "cpu")
    per_frame = lengths / 500 + 0.5  # linear in the length, as the interpolation is
    assert found.epoch_s == pytest.approx(float((per_frame * lengths).sum()))
    assert found.step_s[200] == pytest.approx(2 * (200**2 / 500 + 100))
    assert found.memory_mib is None


def test_beyond_the_longest_row_the_cost_per_frame_is_constant() -> None:
    """Quadratic extrapolation from one layer's attention invented times that nobody had measured."""
    (full,) = expect(rows_of([1000], {"full": float}), lengths_of([90_000]), "cpu")
    assert full.step_s[90_000] == full.epoch_s == pytest.approx(90_000)


def test_mechanisms_are_measured_up_to_the_longest_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measuring full attention at the length of an utterance of one hour would take hours."""

    def timed(problems: dict[str, Problem], passes: str, clock: str, *limits: float) -> list[Evaluation]:
        assert (passes, clock, limits) == ("forward+backward", "cpu", (1, 25, 20.0))
        assert {x.unit for x in problems.values()} == {"model"}
        return [given_row(name, x.length, x.batch, 1.0) for name, x in problems.items()]

    monkeypatch.setattr(advice, "time_in_turns", timed)
    monkeypatch.setattr(advice, "peak_memory_bytes", lambda name, problem: 2**20 * problem.length)
    options = AdviceConfig(attentions=["full", "clustered-25 frames=2"], longest=1000, device="cpu")
    said: list[str] = []
    rows = measure(options, lengths_of([200, 200, 90_000]), said.append)
    assert [(row.variant, row.length, row.utterances, row.peak_mib) for row in rows] == [
        ("full", 200, 2, None),
        ("clustered-25 frames=2", 200, 2, None),
        ("full", 1000, 1, 1000.0),
        ("clustered-25 frames=2", 1000, 1, 1000.0),
    ]
    memory = ["memory of full", "memory of clustered-25 frames=2"]
    assert said == ["200 positions", "1000 positions", *memory]


def training_results(tmp_path: Path, seconds: dict[str, float], model: str = "tiny") -> Path:
    """Write training steps of 10 s of audio as the user's own map."""
    given = ["unit=model", f"model={model}", f"attentions={list(seconds)}", "lengths=[1000]", "threads=1"]
    bench = Bench(bench_options([*given, "passes=[forward+backward]", f"out={tmp_path / 'x.json'}"]))
    bench.rows = [given_row(name, 1000, 1, x) for name, x in seconds.items()]
    path = tmp_path / "exp" / "map" / "own.json"
    write_json(asdict(bench.results()), path)
    return path


def test_the_map_answers_for_the_same_model_and_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(advice, "folder_of_recipes", lambda: tmp_path / "none")
    path = training_results(tmp_path, {"full": 10.0, "near-25": 9.0, "full frames=2": 7.0})
    options, training = advice_options(["device=cpu", "model=tiny"])
    near, far = lengths_of([1500], training), lengths_of([2100], training)
    found = on_the_map(options, near)
    assert found is not None
    assert found[0] == path.relative_to(tmp_path)
    assert of_the_map(found[1]) == "full frames=2"
    assert on_the_map(options, far) is None
    assert on_the_map(replace(options, measure=True), near) is None
    assert on_the_map(replace(options, threads=2), near) is None
    assert on_the_map(options, lengths_of([1500], advice_options(["model=wsj"])[1])) is None
    monkeypatch.setattr(advice, "machine", lambda environment: "another processor")
    assert on_the_map(options, near) is None


@pytest.mark.parametrize(
    ("seconds", "taken"),
    [
        ({"full": 10.0, "near-25": 9.6}, "full"),
        ({"full": 10.0, "near-25": 9.4, "full layers=2": 5.0}, "near-25"),
        ({"full": 10.0, "near-25": 6.8, "full frames=2": 7.0}, "full frames=2"),
        ({"full": 10.0, "near-25 frames=2": 6.0, "full frames=2": 7.0}, "near-25 frames=2"),
    ],
)
def test_a_row_of_the_map_recommends(
    seconds: dict[str, float], taken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fewer layers are never recommended: they are another model."""
    monkeypatch.chdir(tmp_path)
    (spot,) = spots(read_results(training_results(tmp_path, seconds)))
    assert of_the_map(spot) == taken


def test_every_exchangeable_mechanism_is_measured() -> None:
    """The command left out `shared-full` and `oracle-top-K`, which the table says are exchangeable."""
    for positions_95, clusters in ((90, 25), (800, 100)):
        names = usual_variants(positions_95)
        assert names == given_variants(names)
        assert "full frames=2" in names
        found = {parse_name(mechanism_of(name)).mechanism for name in names}
        assert found == {name for name in MECHANISMS if exchange(name) != "no"}
        assert {"near-25", "local-64", "lsh-1", "lsh-4"} < set(names)
        improved = f"i-clustered-{clusters}"
        assert {f"clustered-{clusters}", improved, f"{improved}:grouping=keys"} < set(names)


@pytest.mark.slow
def test_advice_on_a_manifest(tone_corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    overrides = [
        "attentions=[full,clustered-4:bits=31,iterations=2]",
        "rounds=3",
        "seconds=0",
        "memory=false",
    ]
    model = ["model.layers=1", "model.heads=2", "model.head_dim=16", "data.frames_per_batch=500"]
    assert main(["advise", str(tone_corpus), *overrides, *model]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "60 utterances, " in shown
    assert "clustered-4" in shown
    assert "Your 95th percentile is" in shown
    assert "attention=" in shown


@pytest.mark.slow
def test_the_recipe_that_prepared_the_data_gives_the_sizes(
    tone_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`asr advise data/folder` timed half the positions and batches 20 times larger than
    `asr train recipe=folder` has, and recommended another mechanism.
    """
    data = tmp_path / "data"
    shutil.copytree(tone_corpus, data)
    kinds: dict[str, object] = {"outputs": {}, "audio": {}, "options": {}, "problems": {}}
    record = {"recipe": "folder", "fingerprint": "", **kinds}
    (data / "preparation.json").write_text(json.dumps(record))
    overrides = ["attentions=[clustered-4:bits=31,iterations=2]", "rounds=1", "seconds=0", "memory=false"]
    overrides += ["model.layers=1", "model.heads=1", "model.head_dim=8"]
    assert main(["advise", str(data), *overrides]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "after subsampling by 2" in shown
    assert "with recipe=folder: 1,000 frames" in shown
    assert main(["advise", str(data), *overrides, "recipe=custom"]) == 0
    assert "after subsampling by 4" in capsys.readouterr().out


@pytest.mark.slow
def test_concatenated_and_overlong_utterances_are_reported(
    tone_corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = ["attentions=[clustered-4:bits=31,iterations=2]", "rounds=1", "seconds=0", "memory=false"]
    overrides += ["model.layers=1", "model.heads=1", "model.head_dim=8", "data.frames_per_batch=200"]
    assert main(["advise", str(tone_corpus), *overrides, "data.concatenate_s=8", "longest=20"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "60 utterances, concatenated to " in shown
    assert "longer than a batch" in shown
    assert "not measured beyond 20 positions" in shown
    assert main(["advise", str(tone_corpus), *overrides, "data.max_duration_s=0.5"]) == 0
    assert "utterances are longer than data.max_duration_s=0.5" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([], "found 0"),
        (["nowhere"], "nowhere"),
        (["nowhere", "attentions=[cast-8]"], "not of the softmax family"),
        (["nowhere", "attentions=[linear]"], "not of the softmax family"),
        (["nowhere", "rounds=0"], "rounds=0"),
        (["nowhere", "loss=mmi"], "loss=mmi: has no effect in asr advise"),
        (["nowhere", "optimizer.learning_rate=1e-3"], "optimizer.learning_rate=1e-3: has no effect in asr"),
        (["nowhere", "attention=full"], "attention=full: has no effect in asr advise, attentions names what"),
        (["nowhere", "seed=3"], "seed=3: has no effect"),
        (
            ["nowhere", "augment.speed_factors=[0.9]", "data.frames_per_batch=500"],
            "augment.speed_factors=[0.9]: ",
        ),
        (["nowhere", "augment.speed_factors=[0.9]", "data.frames_per_batch=0"], "nowhere"),
        (["nowhere", "seed=3", "data.concatenate_s=9"], "nowhere"),
        (["nowhere", "model.layesr=0"], "did you mean"),
        (["nowhere", "attentoins=[full]"], "did you mean 'attentions'"),
    ],
)
def test_bad_calls(overrides: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", *overrides]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert "has no effect" in line or "has no effect" not in message
