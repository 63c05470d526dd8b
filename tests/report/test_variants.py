"""Variants of a model on the page: an exchange of a found model's attention, another precision."""

import gzip
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from comparison import forward_times, make_comparison, write_bench

from asr.cli import main
from asr.experiment.results import Results, read_results
from asr.report.figures import accuracy, layers
from asr.report.findings import findings
from asr.report.options import ReportOptions
from asr.report.page import write_report
from asr.report.protocol import protocol_line
from asr.report.tables import differences, exchange, outcome, scores
from asr.report.words import scored
from asr.scoring.statistics import Estimate

STORED = Path(__file__).resolve().parents[2] / "recipes/prompts/results"
SPLIT = "train+dev+test"


@pytest.fixture(scope="module")
def sizes() -> Results:
    """The stored exchange of Whisper's attention."""
    return read_results(STORED / "whisper-sizes.json.gz")


@pytest.fixture
def precisions(tmp_path: Path) -> Results:
    """A comparison in which `full` was run at another precision as well: twice as fast, no less accurate."""
    results = make_comparison(tmp_path, models=["full", "lsh-1"], utterances=6)
    variants = [
        replace(x, variant="full precision=bf16", **(forward_times(4.6) if x.forward_s else {}))
        for x in results.evaluations
        if (x.candidate, x.variant) == ("full", "full")
    ]
    return replace(results, evaluations=[*results.evaluations, *variants])


def test_another_precision_of_a_model_competes_with_it(precisions: Results) -> None:
    """Only candidates were points, so that the fastest way to run a model was in no figure."""
    assert list(precisions.systems("test")) == ["full", "full, precision=bf16", "lsh-1"]
    assert "full, precision=bf16" in precisions.front("test")
    assert "full" not in precisions.front("test")
    rows = {row["name"]: row for row in accuracy.points(precisions, "test", "per")}
    assert rows["full, precision=bf16"]["own"]
    assert rows["full, precision=bf16"]["front"]
    table = outcome.table(precisions)
    assert table is not None
    assert [row[0].text for row in table.rows] == ["full", "full, precision=bf16", "lsh-1", "clustered-400"]
    texts = {finding.head: finding.text for finding in findings(precisions)}
    assert "full, precision=bf16" in texts["Pareto front"]


def test_a_variant_differs_from_its_own_model(precisions: Results) -> None:
    first, second = ("full", "full precision=bf16"), ("full", "full")
    [known] = [x for x in precisions.differences if x.first[0] != x.second[0]]
    results = replace(precisions, differences=[known, replace(known, first=first, second=second)])
    table = differences.table(results, "test")
    assert table is not None
    assert table.title.endswith("compared with full; variants: with their own model")
    assert table.rows[-1][0].text == "full, precision=bf16"


def test_another_precision_is_no_exchange_of_mechanisms(precisions: Results) -> None:
    """Table 1 would have had a column of its own for it."""
    table = exchange.table(precisions, "test")
    assert table is None or "full precision=bf16" not in [x.name for x in table.columns]


def test_the_page_of_an_exchange_is_that_of_its_results(sizes: Results, tmp_path: Path) -> None:
    options = ReportOptions(static=False)
    html = write_report(sizes, tmp_path, options).read_text()
    numbers = re.findall(r'<span class="label">(\w+ \d+)</span>', html)
    assert numbers == ["Figure 1", "Figure 2", "Table 1", "Table 2", "Table 3"]
    assert "whisper-tiny.en: attention exchanged" in html
    assert "The rule is full attention" not in html
    written = (tmp_path / "results.md").read_text()
    assert "| near-25 | 4.85 (2.55 … 8.86) | 0.305 (0.256 … 0.359) |" in written
    assert "| full frames=2 | 1.048 (0.853 … 1.225) |" in written


def test_variants_of_a_found_model_are_points_and_on_the_front(sizes: Results) -> None:
    figure = accuracy.divergence(sizes)
    assert figure is not None
    assert figure.title == "KL against the time of the encoder"
    rows = {row["name"]: row for row in accuracy.points(sizes, SPLIT, "kl")}
    assert len(rows) == 23
    assert rows["full frames=2"]["time_s"] == pytest.approx(0.40, abs=0.005)
    assert rows["full frames=2"]["front"]
    assert rows["near-200"]["front"]
    assert not rows["clustered-100"]["front"]
    texts = {finding.head: finding.text for finding in findings(sizes)}
    assert texts["Fastest"].startswith("full frames=2 takes 0.40 (0.39 … 0.41) of the CPU time of full")
    assert texts["Closest to full attention"].startswith("near-200: KL 0.002")
    assert "i-clustered-100" in texts["Text lost"]


def test_other_programs_are_not_close_to_full_attention_but_the_same() -> None:
    """Transformers in float32 was the closest variant, at `-0.000`."""
    results = read_results(STORED / "whisper-bf16-tiny-again.json.gz")
    texts = {finding.head: finding.text for finding in findings(results)}
    assert texts["Closest to full attention"].startswith("full precision=bf16: KL 0.000")
    assert scored(Estimate(-0.0002, -0.0004, -0.001, 1, "inputs"), "kl") == "0.000 (0.000 … -0.001)"


def test_inputs_are_counted_where_utterances_are_joined() -> None:
    """The page counted the data's 273 utterances."""
    line = protocol_line(read_results(STORED / "whisper-bf16-tiny-again.json.gz"))
    assert "confirm: 12 inputs" in line


def test_the_front_of_a_score_is_the_highest(sizes: Results) -> None:
    """top-1 is better the higher it is."""
    front = sizes.front(SPLIT, "top-1")
    assert "near-25" in front
    assert "clustered-10" not in front


def test_rounding_puts_nothing_on_the_front() -> None:
    """In float32, transformers has a KL of -7e-11 from the same model, and takes 1.8 times as long."""
    results = read_results(STORED / "whisper-bf16-tiny.json.gz")
    front = results.front("confirm", "kl")
    assert front[-1] == "peer:openvino"
    assert "peer:openvino-bf16" in front


def test_a_sweep_over_layers_has_lines_and_a_table_in_order() -> None:
    results = read_results(STORED / "whisper-layers.json.gz")
    table, figure = scores.by_layer(results, SPLIT), layers.figure(results, SPLIT)
    assert table is not None
    assert figure is not None
    assert [cell.text for cell in table.rows[3][:3]] == ["i-clustered-100", "4", "12.28"]
    assert [line.key for line in figure.series] == list(dict.fromkeys(row[0].text for row in table.rows))
    assert accuracy.figure(results) is None


def test_a_benchmark_has_a_page_with_its_figure_and_tables(tmp_path: Path) -> None:
    results = read_results(write_bench(tmp_path / "bench.json"))
    html = write_report(results, tmp_path, ReportOptions(static=False)).read_text()
    numbers = re.findall(r'<span class="label">(\w+ \d+)</span>', html)
    assert numbers == ["Figure 1", "Table 1", "Table 2", "Table 3"]
    assert 'data-figure="figure-bench"' in html
    assert "forward and backward: peak memory per sequence, MiB" in html


def test_a_compressed_file_of_results_has_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only an unpacked results.json could be drawn."""
    monkeypatch.chdir(tmp_path)
    stored = tmp_path / "sizes.json.gz"
    stored.write_bytes((STORED / "whisper-sizes.json.gz").read_bytes())
    assert main(["report", str(stored), "static=false"]) == 0
    assert (tmp_path / "exp" / "sizes" / "report.html").is_file()
    stored.write_bytes(gzip.compress(json.dumps({"format": 2}).encode())[:-9])
    assert main(["report", str(stored), "static=false"]) == 1
