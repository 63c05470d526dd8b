"""What pays where: rivals by axis, what counts as shown and as close, and the verdict."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from asr.experiment.bench import Bench, bench_options, row_of
from asr.experiment.paying import Spot, spots
from asr.experiment.random_input import Problem
from asr.experiment.results import Results, read_results
from asr.measure import Seconds
from asr.report.figures.paying import figure
from asr.report.findings import findings
from asr.report.tables import paying

STORED = Path(__file__).resolve().parents[2] / "recipes/prompts/results"
TIMES = {  # seconds by length, in frames of 10 ms
    "full": {1000: 1.0, 3000: 5.0, 30_000: 100.0},
    "full frames=2": {1000: 0.97, 3000: 3.0, 30_000: 40.0},
    "full precision=bf16": {1000: 0.99, 3000: 4.9, 30_000: 99.0},
    "full layers=2": {1000: 0.5, 3000: 2.5, 30_000: 50.0},
    "near-25": {1000: 1.2, 3000: 5.1, 30_000: 20.0, 360_000: 240.0},
    "near-25 frames=2": {1000: 1.1, 3000: 3.1, 30_000: 10.0, 360_000: 120.0},
}


def bench(spread: float = 0.01, rounds: int = 5) -> Results:
    """Return a benchmark with these times, each spread by a share around its median."""
    made = Bench(bench_options(["unit=model", "model=tiny", f"attentions={list(TIMES)}", "threads=1"]))
    steps = [(x - rounds // 2) * spread for x in range(rounds)]
    for length in (1000, 3000, 30_000, 360_000):
        problem = Problem(4, 32, "fp32", "cpu", 0, "model", batch=1, length=length)
        for name, known in TIMES.items():
            taken = [Seconds(9.0, known[length] * (1 + x)) for x in steps] if length in known else []
            why = "" if taken else "not measured: more than 60 s per call expected"
            made.rows.append(row_of(name, problem, "forward", taken, why, "" if taken else "missing"))
    return made.results()


def at(results: Results, audio_s: float) -> Spot:
    return next(x for x in spots(results) if x.audio_s == audio_s)


def test_the_fastest_variant_of_each_axis() -> None:
    found = at(bench(), 30)
    assert (found.model, found.trained, found.threads, found.baseline_s) == ("tiny", False, 1, 5.0)
    assert {axis: x.variant for axis, x in found.rivals.items()} == {
        "attention": "near-25",
        "frames": "full frames=2",
        "precision": "full precision=bf16",
        "layers": "full layers=2",
        "together": "near-25 frames=2",
    }
    assert [axis for axis, x in found.rivals.items() if x.shown] == ["frames", "layers", "together"]
    assert found.rivals["frames"].ratio is not None
    assert found.rivals["frames"].ratio.value == pytest.approx(0.6)


@pytest.mark.parametrize(("spread", "rounds", "shown"), [(0.01, 5, True), (0.5, 5, False), (0.01, 4, False)])
def test_a_saving_is_shown_by_quartiles_of_five_rounds(spread: float, rounds: int, shown: bool) -> None:
    assert at(bench(spread, rounds), 30).rivals["frames"].shown is shown


def test_the_verdict_says_when_attention_pays_and_when_nothing_does() -> None:
    """Fewer layers save time at 10 s, but with random weights nothing says what they cost."""
    said = paying.verdict(spots(bench()))
    assert said == {
        "Attention pays": "in encoding: 0.20 with near-25 at 5 min; at 1 h full takes too long to time, "
        "near-25 4 min 00 s.",
        "Frames and precision pay": "in encoding: 0.60 with frames=2 at 30 s, 0.40 with frames=2 at "
        "5 min; several axes at once in encoding: 0.62 with near-25 frames=2 at 30 s, 0.10 with "
        "near-25 frames=2 at 5 min.",
        "Nothing pays": "in encoding at 10 s.",
    }
    assert [x.head for x in findings(bench())][:3] == list(said)


def test_several_models_have_ranges_and_how_many_save() -> None:
    faster, slow = bench(), bench(spread=0.5)  # little is shown with such a spread
    for row in faster.evaluations:
        if row.variant == "near-25":
            row.forward_cpu_repeats_s = [x / 2 for x in row.forward_cpu_repeats_s]
    measured = [*spots(bench()), *spots(faster), *spots(slow)]
    assert [[str(x) for x in row] for row in paying.across(measured).rows] == [
        ["encoding", "10 s", "0.60 with near-25 (1 of 3)", "–", "–"],
        [
            *("encoding", "30 s", "0.51 with near-25 (1 of 3)", "0.60 with frames=2 (2 of 3)"),
            "0.62 with near-25 frames=2 (2 of 3)",
        ],
        [
            *("encoding", "5 min", "0.10 to 0.20 with near-25", "0.40 with frames=2 (2 of 3)"),
            "0.10 with near-25 frames=2",
        ],
        ["encoding", "1 h", "4 min 00 s", "–", "2 min 00 s"],
    ]
    said = paying.verdict(measured)["Attention pays"]
    assert said.count("at 1 h full takes too long to time, near-25 4 min 00 s.") == 1
    own = spots(bench())
    hour = next(x for x in own if x.audio_s == 3600)
    slower = replace(hour, rivals={"attention": replace(hour.rivals["attention"], seconds=300.0)})
    said = paying.verdict([*own, slower])["Attention pays"]
    assert said.endswith("; at 1 h full takes too long to time, near-25 4 min 00 s to 5 min 00 s.")


def test_the_verdict_tells_what_was_not_measured_from_what_does_not_pay() -> None:
    results = bench(rounds=4)
    assert paying.verdict(spots(results))["Frames and precision pay"] == "at no length measured."
    results.evaluations = [x for x in results.evaluations if x.variant in ("full", "near-25")]
    assert paying.verdict(spots(results))["Frames and precision pay"] == "not measured."


def test_what_was_left_out_is_said_with_its_reason() -> None:
    table = paying.table(bench())
    assert table is not None
    assert (
        "1 h: full, full frames=2, full precision=bf16, full layers=2 not measured: more than"
        in table.caption
    )
    assert [str(x) for x in table.rows[3]][:4] == ["1 h", "encoding", "–", "near-25: 4 min 00 s"]


def test_trained_models_have_variants_that_are_close() -> None:
    """With KL 0.012, half the frames of tiny.en don't count, however fast they are."""
    results = read_results(STORED / "whisper-sizes.json.gz")
    (found,) = spots(results)
    assert (found.audio_s, found.trained, found.processor) == (29.5, True, "AMD EPYC (avx512_bf16)")
    near, halved = found.rivals["attention"], found.rivals["frames"]
    assert near.shown
    assert near.kl is not None
    assert near.kl <= 0.01
    assert (halved.variant, halved.close, halved.shown) == ("full frames=2", False, False)
    table = paying.table(results)
    assert table is not None
    assert "none close enough (full frames=2: 0.40" in table.markdown()


def test_without_divergence_errors_decide() -> None:
    results = read_results(STORED / "whisper-base-en.json.gz")
    for row in results.evaluations:
        row.rates.pop("kl")
    found = at(results, 29.5)
    assert found.rivals["frames"].variant == "full frames=1,2*5"  # more errors with frames=2 are shown
    assert found.rivals["frames"].kl is None


def test_other_results_have_no_map(tmp_path: Path) -> None:
    mechanisms = Bench(bench_options(["attentions=full", f"out={tmp_path / 'x.json'}"])).results()
    assert spots(mechanisms) == []
    assert paying.table(mechanisms) is None
    assert paying.verdict([]) == {}
    assert spots(replace(mechanisms, protocol={})) == []


def test_the_figure_has_the_shares_of_the_fastest_variants() -> None:
    """What isn't close enough, and lengths at which the baseline wasn't timed, are left out."""
    drawn = figure(bench())
    assert drawn is not None
    assert [x.key for x in drawn.series] == list(paying.HEADS.values())
    (panel,) = drawn.panels
    assert "'5 min'" in json.dumps(panel.spec, ensure_ascii=False)
    rows = next(rows for layer in panel.spec["layer"] if "series" in (rows := layer["data"]["values"])[0])
    at_5_min = {x["series"]: x["share"] for x in rows if x["audio"] == "5 min"}
    assert at_5_min == pytest.approx(
        {
            "another attention": 0.2,
            "fewer frames": 0.4,
            "lower precision": 0.99,
            "fewer layers": 0.5,
            "several of them": 0.1,
        }
    )
    assert {x["audio"] for x in rows} == {"10 s", "30 s", "5 min"}


def test_one_length_has_no_figure() -> None:
    assert figure(read_results(STORED / "whisper-confirm.json.gz")) is None
