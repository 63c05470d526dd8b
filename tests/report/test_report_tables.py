"""Tables, findings and labels agree with the results."""

import copy
import dataclasses
import itertools
from pathlib import Path

import pytest
from comparison import forward_times, make_comparison

from asr.attention import MECHANISMS
from asr.console import Table, TableCell, duration
from asr.experiment.records import Conditions, Difference, Failure
from asr.experiment.results import Results
from asr.report import theme
from asr.report.figures.accuracy import _log_axes, figure, points
from asr.report.findings import findings
from asr.report.labels import ANCHORS, place_labels
from asr.report.page import ReportOptions, write_report
from asr.report.protocol import protocol_line
from asr.report.tables import costs, differences, exchange, outcome, search, seeds
from asr.report.tables.cells import tone
from asr.report.tables.exchange import gap
from asr.report.words import candidate_look_ahead, changed
from asr.scoring.statistics import Estimate


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Tests set rates and times themselves if they check them."""
    folder = tmp_path_factory.mktemp("tables")
    return make_comparison(folder, models=["full", "shared-full", "lsh-1", "cast-8"], utterances=4)


def set_rates(results: Results, rates: dict[str, tuple[float, float, float]]) -> None:
    """Set rate and interval of every evaluation by its mechanism, and differences that follow from them."""
    for evaluation in results.evaluations:
        rate, low, high = rates[evaluation.variant]
        evaluation.rates["per"] |= {"rate": rate, "interval": [low, high]}
    own = [(x.label, x.attention) for x in results.candidates if x.attention in rates]
    results.differences = [
        Difference("test", "per", first, second, apart(rates[first[1]], rates[second[1]]))
        for first, second in itertools.combinations(own, 2)
    ]


def apart(one: tuple[float, float, float], other: tuple[float, float, float]) -> Estimate:
    return Estimate(one[0] - other[0], one[1] - other[2], one[2] - other[1], 1, "utterances")


def column(table: Table | None, name: str) -> list[TableCell]:
    assert table is not None
    index = [column.name for column in table.columns].index(name)
    return [row[index] for row in table.rows]


def test_gaps_have_a_reason(results: Results) -> None:
    assert gap(results, "full", "test", "lsh-1") == "keys not tied"
    assert gap(results, "full", "test", "shared-full") == "keys not tied"
    assert gap(results, "cast-8", "test", "full") == "not exchangeable"
    assert gap(results, "full", "test", "cast-8") == "not exchangeable"
    assert gap(results, "clustered-400", "test", "full") == "not trained"
    assert gap(results, "lsh-1", "test", "clustered-25") == "not evaluated"


def test_the_matrix_has_every_pair_and_frames_the_own_mechanism(results: Results) -> None:
    table = exchange.table(results, "test")
    heads = [column.name for column in table.columns]
    assert heads == ["trained with", "full", "shared-full", "lsh-1"]
    assert "because not exchangeable: cast-8." in table.caption
    softmax = [x for x in results.candidates if x.mechanism != "cast"]
    for row, candidate in zip(table.rows, softmax, strict=True):
        for name, cell in zip(heads[1:], row[1:], strict=True):
            estimate = results.error_rate(candidate.label, "test", "per", name)
            assert cell.own == (name == candidate.attention)
            assert cell.sort == (estimate.value if estimate else None)
            assert (cell.text == "–") == (estimate is None)


def test_without_exchanges_there_is_no_matrix(results: Results) -> None:
    """With evaluate=[own], the report had a table of dashes around a diagonal that another table has, too."""
    own = [x for x in results.evaluations if results.is_own(x)]
    without = dataclasses.replace(results, evaluations=own)
    assert exchange.table(without, "test") is None
    assert exchange.changes(without, "test") is None


def test_each_exchange_has_its_paired_difference(results: Results) -> None:
    """Table 1 has means alone: whether an exchange costs anything could only be guessed from them."""
    table = exchange.changes(results, "test")
    assert table is not None
    assert [x.name for x in table.columns] == [x.name for x in exchange.table(results, "test").columns]
    shown = 0
    for row in table.rows:
        trained = row[0].text
        for name, cell in zip([x.name for x in table.columns[1:]], row[1:], strict=True):
            own = results.own(trained)
            found = results.difference((trained, name), (trained, own), "test", "per")
            assert cell.own == (name == own)
            assert (cell.text == "–") == (found is None or name == own)
            if cell.text != "–":
                shown += 1
                assert str(cell) == changed(found, "per")
    assert shown


def test_the_lowest_rate_has_the_strongest_colour() -> None:
    assert tone(0.1, [0.1, 0.15, 0.3]) == 1
    assert tone(0.15, [0.1, 0.15, 0.3]) == pytest.approx(0.5)
    assert tone(0.3, [0.1, 0.15, 0.3]) == 0
    assert tone(0.0, [0.0, 0.2]) == 1
    assert tone(0.2, [0.0, 0.2]) == 0


def test_costs_follow_the_clock_of_the_protocol(results: Results) -> None:
    for training in results.trainings:
        if training.status == "done":
            training.seconds_per_epoch, training.train_cpu_s, training.epochs = 50.0, 600.0, 30.0
    results.protocol["clock"] = "cpu"
    table = costs.table(results)
    results.protocol["clock"] = "wall"
    assert column(table, "per epoch")[0].text == "20.0 s"
    assert column(costs.table(results), "per epoch")[0].text == "50.0 s"
    assert "peak GPU memory" not in [column.name for column in table.columns]  # there was no GPU


def test_look_ahead_follows_from_mechanism_layers_and_frames(results: Results) -> None:
    local = dataclasses.replace(results.candidates[0], layers=6, subsampling=4)
    names = ["full", "local-64", "local-64:right=2", "local-64:right=0,chunk=16", "full*2,local-4*4", "none"]
    results.protocol["training"]["features.frame_shift_ms"] = 8.0
    candidates = [dataclasses.replace(local, attention=name) for name in names]
    shown = [candidate_look_ahead(results, x) for x in candidates]
    assert shown == ["utterance", "12,288", "384", "480", "utterance", "0"]
    assert column(outcome.table(results), "look-ahead, ms")[0].text == "utterance"
    other = {"features.frame_shift_ms": 10.0}
    assert candidate_look_ahead(results, dataclasses.replace(candidates[2], overrides=other)) == "480"
    variants = ["local-64:right=2 precision=bf16", "local-64:right=2 frames=2", "full"]
    shown = [candidate_look_ahead(results, candidates[2], x) for x in variants]
    assert shown == ["384", "800", "utterance"]  # the table had 384 for all three
    pretrained = {"model.encoder": "models/parakeet"}
    assert candidate_look_ahead(results, dataclasses.replace(candidates[2], overrides=pretrained)) == "–"
    del results.protocol["training"]["features.frame_shift_ms"]
    assert candidate_look_ahead(results, candidates[2]) == "–"


def test_findings_name_the_best_the_fastest_and_the_front(results: Results) -> None:
    set_rates(
        results,
        {
            "full": (0.08, 0.075, 0.085),
            "shared-full": (0.20, 0.19, 0.21),
            "lsh-1": (0.084, 0.08, 0.09),
            "cast-8": (0.3, 0.29, 0.31),
        },
    )
    results.trainings[0].skipped_batches = 3
    texts = {finding.head: finding.text for finding in findings(results)}
    assert f"in memory ({results.trainings[0].candidate}: 3)" in texts["Skipped"]
    assert [x.text for x in column(costs.table(results), "skipped")].count("3") == 1
    assert texts["Most accurate"].startswith("full has the lowest PER on test: 8.00")
    assert texts["Fastest"] == (
        "lsh-1 takes 4.10 s (4.06 … 4.18 s) wall-clock time for a forward pass over test. "
        "full takes 2.24 times as long as lsh-1: 9.20 s (9.11 … 9.38 s)."
    )
    assert texts["Pareto front"].startswith("lsh-1 and full, from the fastest to the most accurate.")
    assert "shared-full and cast-8 are dominated by a model that is at least" in texts["Pareto front"]
    assert texts["Failed"].startswith("1 cell failed (clustered-400)")


def test_level_times_have_no_winner(tmp_path: Path) -> None:
    """The page crowned a model that was 0.2 % faster, much less than the repeats differed."""
    results = make_comparison(tmp_path, models=["full", "shared-full", "lsh-1"], utterances=4)
    rates = {"full": (0.08, 0.07, 0.09), "shared-full": (0.2, 0.19, 0.21), "lsh-1": (0.3, 0.29, 0.31)}
    set_rates(results, rates)

    def set_times(seconds: dict[str, float]) -> dict[str, str]:
        for x in results.evaluations:
            if x.forward_s is not None:
                vars(x).update(forward_times(seconds[x.variant]))
        return {finding.head: finding.text for finding in findings(results)}

    def forward_details() -> list[str]:
        return [cell.detail for cell in column(outcome.table(results), "forward, test")]

    texts = set_times({"full": 4.008, "shared-full": 4.0, "lsh-1": 5.0})
    assert texts["Fastest"] == (
        "No single winner: shared-full (4.00 s (3.96 … 4.08 s)) and full (4.01 s (3.97 … 4.09 s)) are level, "
        "because the ranges of their repeats overlap (wall-clock time of a forward pass over test). "
        "lsh-1 takes 1.25 times as long as shared-full: 5.00 s (4.95 … 5.10 s)."
    )
    assert texts["Pareto front"] == "full alone: no other model is faster or more accurate."
    assert forward_details() == [
        "3.97 … 4.09 s, level, front, 3 × real time",
        "3.96 … 4.08 s, level, 3 × real time",
        "4.95 … 5.10 s, 3 × real time",
        "",  # failed
    ]
    rows = {row["model"]: row for row in points(results, "test", "per") if row["own"]}
    assert [name for name, row in rows.items() if row["front"]] == ["full"]

    texts = set_times({"full": 4.5, "shared-full": 4.0, "lsh-1": 5.0})
    assert texts["Fastest"].startswith("shared-full takes 4.00 s")
    assert texts["Pareto front"].startswith("shared-full and full, from the fastest")
    assert ["fastest" in detail for detail in forward_details()] == [False, True, False, False]

    set_rates(results, {**rates, "shared-full": (0.085, 0.075, 0.095)})
    texts = set_times({"full": 4.008, "shared-full": 4.0, "lsh-1": 5.0})
    assert "shared-full and full are level in time. lsh-1 is dominated" in texts["Pareto front"]
    line = [row["model"] for row in points(results, "test", "per") if row["step"]]
    assert line == []  # a line from the one to the other would claim a difference in time

    texts = set_times({"full": 4.008, "shared-full": 4.0, "lsh-1": 3.0})
    line = [row["model"] for row in points(results, "test", "per") if row["step"]]
    assert sorted(line) == ["full", "lsh-1"]


def test_a_single_repeat_has_no_spread(tmp_path: Path) -> None:
    results = make_comparison(tmp_path, models=["full", "lsh-1"], utterances=4)
    for x in results.evaluations:
        x.forward_repeats_s = x.forward_repeats_s[:1]
    text = next(finding.text for finding in findings(results) if finding.head == "Fastest")
    assert text.startswith("lsh-1 takes 4.10 s wall-clock time")
    assert text.endswith("Each pass was timed only once, so the spread is unknown.")
    cells = itertools.chain(*outcome.table(results).rows)
    assert not any(word in cell.detail for cell in cells for word in ("fastest", "level"))


def test_training_times_show_their_range_over_seeds(tmp_path: Path) -> None:
    results = make_comparison(tmp_path, models=["full", "i-clustered-25"], utterances=4)
    results.candidates = results.candidates[:2]
    given = {"full": [61.0, 60.0, 63.0], "i-clustered-25": [62.0, 61.5, 64.0]}
    for x in results.trainings[:-1]:
        x.seconds_per_epoch = given[x.candidate][x.seed]
    results.trainings.pop()  # the failed one
    assert [(cell.text, cell.detail) for cell in column(costs.table(results), "per epoch")] == [
        ("61.0 s", "60.0 … 63.0 s, level"),
        ("62.0 s", "61.5 … 64.0 s, level"),
    ]


@pytest.mark.slow
def test_the_page_states_the_load_during_timing(tmp_path: Path) -> None:
    results = make_comparison(tmp_path, models=["full"], utterances=4)
    options = ReportOptions(audio=0, maps=False, static=False)
    page = write_report(results, tmp_path, options).read_text()
    assert "were timed with 1 thread on a quiet machine" in page
    results.conditions["test"] = Conditions("cpu", 1, wall_s=60.0, cpu_s=40.0, other_cpus=1.5)
    page = write_report(results, tmp_path, options).read_text()
    assert "on a busy machine, so times are less reliable" in page
    assert "on a CPU for 67 % of the time and other processes kept 1.5 CPUs busy" in page
    assert "<dt>Busy machine</dt>" in page


def test_the_paired_difference_decides(tmp_path: Path) -> None:
    """Systems with overlapping intervals were called level, though the same utterances set them apart."""
    results = make_comparison(tmp_path, models=["shared-full", "lsh-1"], utterances=4)
    set_rates(results, {"shared-full": (0.10, 0.08, 0.12), "lsh-1": (0.11, 0.09, 0.13)})
    assert "The 95 % intervals show no difference to lsh-1." in findings(results)[0].text
    assert verdicts(results) == [("lsh-1", "+1.00 (−3.00 … 5.00)", "none shown")]
    [found] = results.differences
    estimate = Estimate(-0.01, -0.015, -0.005, 1, "utterances")
    results.differences = [dataclasses.replace(found, estimate=estimate)]
    assert "Next is lsh-1 with 11.00 % (9.00 … 13.00)." in findings(results)[0].text
    assert verdicts(results) == [("lsh-1", "+1.00 (0.50 … 1.50)", "worse")]


def test_without_a_paired_interval_the_models_own_must_be_apart(tmp_path: Path) -> None:
    """Official rates of one seed have none: 60 and 15 % were level, and no model was dominated."""
    results = make_comparison(tmp_path, models=["shared-full", "lsh-1"], utterances=4)
    for rate, verdict in ((0.60, "worse"), (0.155, "none shown")):
        set_rates(results, {"shared-full": (0.15, 0.145, 0.155), "lsh-1": (rate, rate - 0.005, rate + 0.005)})
        results.differences = [
            dataclasses.replace(x, estimate=Estimate(x.estimate.value, None, None, 1, ""))
            for x in results.differences
        ]
        assert [found for _, _, found in verdicts(results)] == [verdict]


def verdicts(results: Results) -> list[tuple[str, ...]]:
    table = differences.table(results, "test")
    assert table is not None
    return [(row[0].text, row[1].text, row[-1].text) for row in table.rows]


def test_differences_are_those_to_full_attention(results: Results) -> None:
    rates = {"full": (0.2, 0.19, 0.21), "shared-full": (0.1, 0.09, 0.11)}
    set_rates(results, rates | {"lsh-1": (0.3, 0.29, 0.31), "cast-8": (0.205, 0.195, 0.215)})
    assert [(name, verdict) for name, _, verdict in verdicts(results)] == [
        ("shared-full", "better"),
        ("lsh-1", "worse"),
        ("cast-8", "none shown"),
    ]
    results.differences = []
    assert differences.table(results, "test") is None


def test_all_pairs_are_compared(results: Results) -> None:
    """Row less column, best first; an exchange of mechanisms is no candidate."""
    rates = {"full": (0.2, 0.19, 0.21), "shared-full": (0.1, 0.09, 0.11)}
    set_rates(results, rates | {"lsh-1": (0.3, 0.29, 0.31), "cast-8": (0.205, 0.195, 0.215)})
    table = differences.pairs(results, "test")
    assert table is not None
    assert [column.name for column in table.columns] == ["model", "full", "cast-8", "lsh-1"]
    assert [[str(cell) for cell in row] for row in table.rows] == [
        ["shared-full", "−10.00 (−12.00 … −8.00)", "−10.50 (−12.50 … −8.50)", "−20.00 (−22.00 … −18.00)"],
        ["full", "", "−0.50 (−2.50 … 1.50)", "−10.00 (−12.00 … −8.00)"],
        ["cast-8", "", "", "−9.50 (−11.50 … −7.50)"],
    ]
    assert differences.pairs(dataclasses.replace(results, candidates=results.candidates[:2]), "test") is None


def test_every_training_is_shown(tmp_path: Path) -> None:
    """Means hid that one of three seeds had failed to learn."""
    results = make_comparison(tmp_path, models=["full", "lsh-1"], utterances=4)
    [first, *others] = [x for x in results.trainings if x.candidate == "full"]
    for training, steps in zip((first, *others), (1200, 950, None), strict=True):
        training.steps, training.train_s = steps, 61.4
    set_rates(results, dict.fromkeys(("full", "lsh-1"), (0.2, 0.19, 0.21)))
    results.evaluations_of("full", "test")[1].rates["per"]["rate"] = 0.9
    table = seeds.table(results)
    assert table is not None
    assert [x.name for x in table.columns] == ["model", "seeds", "PER %, test", "steps", "training, s"]
    assert [x.text for x in table.rows[0]] == [
        *("full", "0, 1, 2", "20.00, 90.00, 20.00"),
        *("1,200, 950, –", "61, 61, 61"),
    ]
    assert [x.text for x in table.rows[-1]] == ["clustered-400", "–", "–", "–", "–"]
    with_one = [x for x in results.trainings if x.seed == 0]
    assert seeds.table(dataclasses.replace(results, trainings=with_one)) is None


def test_without_results_the_findings_are_failures(tmp_path: Path) -> None:
    results = make_comparison(tmp_path, models=["full"], utterances=4)
    results.evaluations.clear()
    results.failures.append(Failure("evaluate", "full", 0, "killed", "log"))
    assert [finding.text for finding in findings(results)] == [
        "2 cells failed (clustered-400 and full); the report has the others."
    ]


def test_the_protocol_chooses_the_main_error_rate(results: Results) -> None:
    for evaluation in results.evaluations:
        evaluation.rates["wer"] = evaluation.rates["per"]
        evaluation.rates["official-swbd"] = evaluation.rates["per"]
    assert results.metrics() == ["per", "wer", "official-swbd"]
    results.protocol["metric"] = "official-swbd"
    assert exchange.table(results, "test").title.endswith("official WER, swbd in % on test")
    results.protocol |= {"metric": "", "decoder": "beam"}
    assert results.metrics("test")[0] == "per"
    assert results.metrics("nowhere") == []


def test_training_shows_the_main_error_rate(results: Results) -> None:
    """Models of characters were judged by words, which are all wrong long before the characters are, and a
    beam search over words still was.
    """
    results = copy.deepcopy(results)
    results.protocol |= {"metric": "", "decoder": "greedy"}
    for evaluation in results.evaluations:
        evaluation.rates = {"cer": evaluation.rates["per"], "wer": evaluation.rates["per"]}
    for training in results.trainings:
        training.dev_error_name = "dev_cer"
    assert results.metrics("test") == ["cer", "wer"]
    assert outcome.table(results).columns[1].name == "CER %, test"
    results.protocol["decoder"] = "beam"
    results.evaluations[0].closed = True
    assert outcome.table(results).columns[1].name == "CER %, test (closed vocabulary)"


def test_models_that_learned_nothing_win_nothing(results: Results) -> None:
    """Empty output is fast and has 100 %: it had the star, and "the best of 4 exchanges" changed nothing."""
    results = copy.deepcopy(results)
    results.protocol |= {"metric": "per"}
    set_rates(results, dict.fromkeys(results.variants(), (1.0, 1.0, 1.0)))
    assert results.front("test") == []
    assert "front" not in str(column(outcome.table(results), "forward, test"))
    found = {finding.head: finding.text for finding in findings(results)}
    assert not {"Most accurate", "Pareto front", "Exchange"} & found.keys()
    assert "Left out of the front." in found["Nothing learned"]
    set_rates(results, dict.fromkeys(results.variants(), (0.9, 0.8, 0.95)))
    for evaluation in results.evaluations:
        evaluation.constant = evaluation.variant != "full"
    assert results.front("test") == ["full"]


def test_the_page_says_which_kernels_were_missing(results: Results) -> None:
    assert "No kernels" not in {finding.head for finding in findings(results)}
    notice = "near runs without compiled kernels: times say nothing about the mechanism (no compiler)"
    told = dataclasses.replace(results, protocol=results.protocol | {"kernels": notice})
    assert [x.text for x in findings(told) if x.head == "No kernels"] == [f"{notice}."]


def test_tuned_weights_have_a_table(results: Results) -> None:
    assert search.table(results) is None
    results.protocol |= {"tune": "dev", "decoder": "beam", "beam": {"lm": "3gram.arpa"}}
    weights = {"lm": "3gram.arpa", "lm_weight": 1.5, "word_score": -0.25, "size": 100}
    for evaluation in results.evaluations:
        evaluation.beam = weights
    table = search.table(results)
    assert [cell.text for cell in table.rows[0][-3:]] == ["1.5", "-0.25", "100"]
    assert len(table.rows) == len(results.evaluations)
    assert len({len(table.columns), *(len(row) for row in table.rows)}) == 1


def test_only_own_mechanisms_are_on_the_front(results: Results) -> None:
    rows = points(results, "test", "per")
    assert {row["model"] for row in rows if row["front"]} <= {row["model"] for row in rows if row["own"]}
    assert all(row["own"] for row in rows if row["front"])
    assert any(not row["own"] for row in rows)


def test_labels_of_neighbours_take_different_sides() -> None:
    bare = {"low": None, "high": None, "time_low": None, "time_high": None, "step": False, "front": False}
    rows = [
        {"name": "i-clustered-100", "time_s": 5.0, "rate": 10.0, **bare},
        {"name": "i-clustered-200", "time_s": 5.1, "rate": 10.05, **bare},
        {"name": "agglomerative-8", "time_s": 9.0, "rate": 12.0, **bare},
    ]
    wide = place_labels(rows, rows, 700)
    assert set(wide) <= set(ANCHORS)
    assert wide[0] != wide[1]
    assert str(wide[2]).startswith("left")  # at the right edge
    assert place_labels(rows, rows[:1], 200)[1:] == [None, None]


def test_labels_of_a_crowded_front_do_not_overlap() -> None:
    """On a phone, four names of the front stood on each other."""
    bare = {"low": None, "high": None, "time_low": None, "time_high": None, "step": False, "front": True}
    crowd = [{"name": f"near-{i}", "time_s": 5.0, "rate": 10.0, **bare} for i in range(9)]
    rows = [*crowd, {"name": "full", "time_s": 9.0, "rate": 5.0, **bare}]
    sides = [side for side in place_labels(rows, rows, 230)[:9] if side]
    assert sides
    assert len(set(sides)) == len(sides)


def test_colours_have_enough_contrast_in_both_themes() -> None:
    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    def contrast(a: str, b: str) -> float:
        high, low = sorted((luminance(a), luminance(b)), reverse=True)
        return (high + 0.05) / (low + 0.05)

    for dark in (False, True):
        table = theme.colours(dark)
        for name in theme.FAMILIES:
            assert contrast(table[theme.token(name)], table["~card"]) >= 3, (name, dark)
        for number in range(20):
            further = theme.further_look(number)
            assert contrast(further.dark if dark else further.light, table["~card"]) >= 3, (number, dark)
        for name in ("~ink", "~muted", "~accent", "~substitution", "~deletion", "~insertion"):
            assert contrast(table[name], table["~card"]) >= 4.5, (name, dark)
        for name in ("~substitution", "~deletion", "~insertion"):
            assert contrast(table[name], table[f"{name}-paper"]) >= 4.5, (name, dark)


def test_an_axis_has_a_least_span(tmp_path: Path) -> None:
    """The axis for a single time of 0.76 s was labelled 1, and a difference of 0.2 % filled the picture."""

    def ends() -> list[float]:
        drawn = figure(results)
        domains = [layer["encoding"]["x"]["scale"]["domain"] for layer in drawn.panels[0].spec["layer"]]
        assert all(domain == domains[0] for domain in domains)
        return list(domains[0])

    results = make_comparison(tmp_path, models=["full", "shared-full"], utterances=4)
    for x, seconds in zip((x for x in results.evaluations if x.forward_s), (1.0, 1.002, 1.0), strict=False):
        vars(x).update(forward_times(seconds))
    low, high = ends()
    assert (low, high) == pytest.approx((0.9055, 1.1067), abs=0.001)
    results = make_comparison(tmp_path, models=["cast-8"], utterances=4)
    low, high = ends()
    assert low < 5.5 < high
    assert high - low == pytest.approx(0.2 * 5.5, rel=0.02)
    assert "1 training " in protocol_line(results)
    assert "2 candidates" in protocol_line(results)


def test_error_rates_of_zero_have_an_axis(tmp_path: Path) -> None:
    """If all models were perfect, the report ended with a ValueError."""
    results = make_comparison(tmp_path, models=["shared-full", "lsh-1"], utterances=4)
    set_rates(results, dict.fromkeys(("shared-full", "lsh-1"), (0.0, 0.0, 0.0)))
    drawn = figure(results)
    assert drawn is not None
    assert {row["rate"] for row in points(results, "test", "per")} == {0.0}
    assert drawn.panels[0].spec["layer"][0]["encoding"]["y"]["scale"]["domain"] == [0.0, 1.0]


def test_crowded_models_get_a_logarithmic_axis() -> None:
    """On real data, one slow mechanism left six labels in one place."""
    common = {"time_low": None, "time_high": None, "own": True, "step": False, "front": False}
    rows = [
        {"name": "full", "time_s": 0.61, "rate": 2.7, "low": 2.2, "high": 3.2, **common},
        {"name": "lsh-4", "time_s": 3.77, "rate": 5.0, "low": 4.0, "high": 6.0, **common},
    ]
    assert _log_axes(rows) == ("x",)
    assert _log_axes([{**rows[0], "low": 0.0}, rows[1]]) == ("x",)  # log scales need positive values
    assert _log_axes([rows[0], {**rows[1], "rate": 9.0}]) == ("x", "y")
    near = [{**rows[0], "time_s": 0.5 + i / 10, "name": f"m{i}"} for i in range(3)] + [rows[1]]
    linear, log = (place_labels(near, near, 490, axes) for axes in ((), ("x",)))
    assert linear != log


def test_every_mechanism_looks_different() -> None:
    assert {*MECHANISMS, theme.BY_LAYER, theme.PROGRAMS} == set(theme.FAMILIES)
    # Further mechanisms get a look of their own as well.
    looks = [*theme.FAMILIES.values(), *map(theme.further_look, range(len(theme.FURTHER), 20))]
    for values in ([x.light for x in looks], [x.dark for x in looks], [x.shape for x in looks]):
        assert len(set(values)) == len(values)


def test_mechanisms_of_ones_own_look_different_and_come_last_in_legends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(theme, "_drawn", {})
    names = ["my_mixing:Mean", "full", "b.c:Mean-8", "b.c:Mean-4:half=true", "unknown-3"]
    families = [theme.family(name) for name in names]
    assert families == ["my_mixing:Mean", "full", "b.c:Mean", "b.c:Mean", "unknown"]
    assert [theme.token(name) for name in families[:3]] == ["~my_mixing-Mean", "~full", "~b-c-Mean"]
    assert theme.token("unknown") == "~other"
    looks = [*theme.FAMILIES.values(), theme.look("my_mixing:Mean"), theme.look("b.c:Mean"), theme.OTHER]
    assert len({x.light for x in looks}) == len(looks)
    assert theme.colours(dark=True)["~b-c-Mean"] == theme.look("b.c:Mean").dark
    assert theme.in_family_order(names) == [names[1], names[0], names[3], names[2], names[4]]


def test_colour_tokens_in_data_are_kept() -> None:
    spec = {"mark": {"color": "~full"}, "data": {"values": [{"token": "~full"}]}}
    assert theme.coloured(spec, {"~full": "#123456"}) == {
        "mark": {"color": "#123456"},
        "data": {"values": [{"token": "~full"}]},
    }


def test_times_that_round_up_to_the_next_unit() -> None:
    assert [duration(x) for x in (59.96, 99.96, 119.6, 3599.7, None, float("nan"))] == [
        "60.0 s",
        "100.0 s",
        "2 min 00 s",
        "1 h 00 min",
        "–",
        "–",
    ]
