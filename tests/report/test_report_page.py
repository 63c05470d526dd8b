"""The page is complete and small, needs no network, and copes with hostile text and missing parts."""

import dataclasses
import json
import math
import re
import shutil
import threading
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from comparison import INJECTION, make_comparison, write_bench
from hypothesis_files import write_hypotheses

from asr import config
from asr.cli import main
from asr.commands import report
from asr.errors import UserError
from asr.experiment.results import write_results
from asr.files import locked
from asr.report import page
from asr.report.figures import benchmark, curves
from asr.report.figures.benchmark import benchmarks_beside
from asr.report.page import ReportOptions, write_report
from asr.report.provenance import of_results
from asr.scoring.hypotheses import Hypothesis
from asr.training.options import recipe_module

FIGURES = ["figure-accuracy", "figure-curves", "figure-bench", "figure-maps", "figure-distance"]
QUICK = ReportOptions(audio=0, maps=False, static=False)


class Elements(HTMLParser):
    """Collects start tags, scripts, and all text outside scripts and styles."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.scripts: list[str] = []
        self._within = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._within = tag if tag in ("script", "style") else ""
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self._within == "script":
            self.scripts[-1] += data
        elif not self._within:
            self.text += data

    def handle_endtag(self, tag: str) -> None:
        self._within = ""


@pytest.fixture(scope="module")
def html(written: Path) -> str:
    return written.read_text()


@pytest.fixture(scope="module")
def elements(html: str) -> Elements:
    return Elements(html)


def test_every_figure_and_table_has_its_section(elements: Elements) -> None:
    ids = [attributes.get("id") for _, attributes in elements.tags]
    wanted = ["summary", "failures", *FIGURES, "exchange-test", "outcome", "costs", "errors", "protocol"]
    assert set(wanted) <= set(ids)
    assert len(ids) - ids.count(None) == len({name for name in ids if name})


def test_the_page_needs_no_network(html: str, elements: Elements) -> None:
    for tag, attributes in elements.tags:
        for name in ("src", "href", "srcset", "action", "poster"):
            link = attributes.get(name) or "#"
            assert link.startswith(("#", "data:")), (tag, link)
    (policy,) = [x["content"] for tag, x in elements.tags if tag == "meta" and "http-equiv" in x]
    assert policy
    assert policy.startswith("default-src 'none'")
    assert "unsafe-eval" not in policy
    style = html[html.index("<style>") : html.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style


def test_below_five_megabytes_with_attention_maps(html: str) -> None:
    """The page also contains the audio of two utterances per model."""
    assert len(html.encode()) < 5_000_000
    assert "data:audio/mpeg;base64," in html
    assert "data:image/png;base64," in html


def test_hostile_text_stays_text(html: str, elements: Elements) -> None:
    """The page has only its own three scripts; text from the manifest is escaped data in one of them."""
    assert len(elements.scripts) == 3
    data = json.loads(elements.scripts[0])
    first = data["errors"]["systems"][0]
    assert INJECTION in {entry["speaker"] for entry in first["utterances"]}
    tokens = {
        token if isinstance(token, str) else token[1]
        for entry in first["utterances"]
        for token in entry["edits"]
    }
    assert {"</script><!--", INJECTION, "~full"} <= tokens
    assert INJECTION not in html
    assert not any("onerror" in attributes for _, attributes in elements.tags)
    assert "out of memory <b>" in elements.text
    assert "clustered-25 <img src=x onerror=alert(1)>" in elements.text


def test_the_page_has_its_provenance_once(elements: Elements, written: Path) -> None:
    """It stood below each figure and table. A benchmark, which was measured apart, has its own."""
    about = "commit 0123456789 (with changes) · seeds 0, 1, 2 · hardware Intel(R) Xeon(R) Processor, 2 cores"
    assert elements.text.count(about) == 1
    assert elements.text.count("data train 5b2f0c1d9a77") == 1
    for name in ("figure-accuracy", "figure-maps"):
        assert about in (written.parent / "figures" / f"{name}.txt").read_text()
    assert "commit feedbeeffe · seeds 7 · hardware Bench CPU" in elements.text
    assert "asr compare recipe=demo" in elements.text


def test_commits_and_machines_of_trainings_are_named(tmp_path: Path) -> None:
    results = make_comparison(tmp_path, models=["full"], utterances=4)
    before = of_results(results)
    for training, commit in zip(results.trainings, ("a" * 40, "b" * 40 + "+", "b" * 40 + "+"), strict=False):
        training.commit, training.hardware = commit, "Cluster node, 1 × H200"
    after = of_results(results)
    assert after.commit == f"{before.commit}, trained at aaaaaaaaaa, bbbbbbbbbb (with changes)"
    assert after.hardware == f"{before.hardware}, trained on Cluster node, 1 × H200"


def test_every_figure_is_exported(written: Path) -> None:
    folder = written.parent / "figures"
    assert sorted(path.stem for path in folder.glob("*.png")) == sorted(FIGURES)
    for name in FIGURES:
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (folder / f"{name}.pdf").read_bytes().startswith(b"%PDF")


def test_a_comparison_without_results_still_has_a_page(tmp_path: Path) -> None:
    results = make_comparison(tmp_path, models=["full"], utterances=4)
    trainings = [x for x in results.trainings if x.status == "failed"]
    results = dataclasses.replace(results, trainings=trainings, evaluations=[])
    text = Elements(write_report(results, tmp_path, QUICK).read_text()).text
    assert "1 cell failed (clustered-400)" in text
    assert "out of memory <b>" in text


@pytest.mark.slow
def test_missing_hypotheses_leave_out_their_system_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Results without any hypotheses, as they are stored, had a warning for each system."""
    results = make_comparison(tmp_path, models=["full", "lsh-1"], utterances=6)
    (tmp_path / results.evaluations[0].folder / "hyp.jsonl").unlink()
    page = Elements(write_report(results, tmp_path, QUICK).read_text())
    names = [system["name"] for system in json.loads(page.scripts[0])["errors"]["systems"]]
    assert names
    assert "full" not in names
    [warning] = caplog.messages
    assert warning.endswith(
        f"hyp.jsonl is missing for 1 of {len(names) + 1} systems; their worst utterances are left out"
    )


@pytest.mark.slow
def test_the_error_browser_uses_the_word_filter_of_the_scores(tmp_path: Path) -> None:
    """Words that scoring ignores are not errors."""
    results = make_comparison(tmp_path, models=["full"], utterances=4)
    folder = tmp_path / results.evaluations[0].folder
    heard = Hypothesis("u1", "s1", 1.0, "yes uh no", None, [], [], "yes no", "character")
    write_hypotheses(folder / "hyp.jsonl", [heard])
    (folder / "score.json").write_text(json.dumps({"word_filter": {"drop": ["uh"]}}))
    page = Elements(write_report(results, tmp_path, QUICK).read_text())
    (entry,) = json.loads(page.scripts[0])["errors"]["systems"][0]["utterances"]
    assert entry["edits"] == ["yes", "no"]


@pytest.mark.slow
def test_a_recipe_adds_a_figure_of_its_own(tmp_path: Path) -> None:
    """The recipe `copy` draws a map of each family, with all lengths in each."""
    results = make_comparison(
        tmp_path, models=["full", "clustered-25", "clustered-100", "lsh-1"], utterances=4
    )
    results = dataclasses.replace(results, recipe="copy")
    results.protocol["training"] = {"recipe.length": 31}
    (lsh,) = (x for x in results.candidates if x.label == "lsh-1")
    lsh.overrides["recipe.length"] = 63
    page = Elements(write_report(results, tmp_path, QUICK).read_text())
    assert "Counterpart of Figure 5 of Vyas et al." in page.text
    figure = recipe_module("copy", "figure").figure(results)
    found = [(panel.title, panel.height, panel.width) for panel in figure.panels]
    assert found == [("full", 26, 144), ("clustered", 52, 144), ("lsh", 26, 144)]
    rows = [row for panel in figure.panels for row in panel.spec["data"]["values"]]
    lengths = {"full": 31, "clustered-25": 31, "clustered-100": 31, "lsh-1": 63}
    assert {row["attention"]: row["length"] for row in rows} == lengths
    assert rows[0]["accuracy"] == pytest.approx(91.9)
    assert recipe_module("demo", "figure") is None


@pytest.mark.slow
def test_a_comparison_without_recordings_has_no_attention_maps(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Language models and long-range classifiers made the page warn of a skipped figure."""
    results = dataclasses.replace(make_comparison(tmp_path, models=["full"], utterances=4), data={})
    write_report(results, tmp_path, dataclasses.replace(QUICK, maps=True))
    assert not caplog.messages


def test_benchmarks_are_found_above_the_folder(tmp_path: Path) -> None:
    """`asr bench` writes exp/bench.json, `asr compare` writes to exp/compare/<recipe>."""
    inner = tmp_path / "compare" / "demo"
    inner.mkdir(parents=True)
    assert benchmarks_beside(inner) == []
    written = [write_bench(tmp_path / name) for name in ("bench-layers.json", "bench.json")]
    assert benchmarks_beside(inner) == written


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"evaluations": []}, "bench.json: expected results of asr bench, with times"),
        ({"forward_cpu_s": 0.0}, "expected a positive time, found 0.0"),
        ({"forward_cpu_s": float("nan")}, "expected a positive time, found nan"),
    ],
)
def test_times_that_cannot_be_drawn_are_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    """A time of zero ended the report with `math domain error`."""
    path = write_bench(tmp_path / "bench.json")
    values = json.loads(path.read_text())
    values |= {key: x for key, x in change.items() if key in values}
    values["evaluations"] = [row | change for row in values["evaluations"]]
    path.write_text(json.dumps(values))
    with pytest.raises(UserError, match=re.escape(message)):
        benchmark.read_bench(path)


def test_a_benchmark_of_another_format_is_refused_in_one_line(tmp_path: Path) -> None:
    """Memory by name and length, without passes, ended the report with a traceback."""
    (tmp_path / "bench.json").write_text(json.dumps({"timings": [], "memory": {"full": {"512": 2**21}}}))
    with pytest.raises(UserError, match=r"bench\.json: expected results of format 2, found None"):
        benchmark.read_bench(tmp_path / "bench.json")


def test_a_loss_that_is_not_a_number_is_a_gap(tmp_path: Path) -> None:
    """A training that diverged put NaN into the page, which is not JSON, so that no browser drew the page."""
    results = make_comparison(tmp_path, models=["full"], utterances=4)
    first, second, third = results.trainings[0].curve[:3]
    first.loss, second.dev_loss, third.dev_error = math.nan, math.inf, math.nan
    rows = curves.curve_rows(results, "wall")
    gaps = [{name for name, value in row.items() if value is None} for row in rows]
    assert gaps == [{"loss"}, {"dev_loss"}, {"dev_error"}, *[set()] * (len(rows) - 3)]
    drawn = curves.figure(results)
    assert drawn is not None
    json.dumps([panel.spec for panel in drawn.panels], allow_nan=False)


@pytest.mark.parametrize(
    ("measure", "words"),
    [
        ("dev_per", "Dev error rates are for greedy search."),
        ("dev_wer", "Dev WER is for beam search on 150 utterances drawn from the dev set."),
    ],
)
def test_the_curves_name_the_search_behind_the_dev_error_rate(
    measure: str, words: str, tmp_path: Path
) -> None:
    """The caption named greedy search also where beam search had selected the checkpoints."""
    results = make_comparison(tmp_path, models=["full"], utterances=4)
    results.trainings[0].dev_error_name = measure
    results.protocol["training"] = {"select.metric": "wer", "select.utterances": 150}
    drawn = curves.figure(results)
    assert drawn is not None
    assert drawn.caption.endswith(words)


@pytest.mark.slow
def test_a_subset_of_official_scores_can_be_the_metric(tmp_path: Path) -> None:
    """`asr report` refused metric=official-swbd, which `asr compare` takes."""
    results = make_comparison(tmp_path, models=["full"], utterances=4)
    for evaluation in results.evaluations:
        evaluation.rates["official-swbd"] = evaluation.rates["per"]
    options = config.parse(ReportOptions, ["metric=official-swbd", "maps=false", "static=false", "audio=0"])
    assert "official WER, swbd" in write_report(results, tmp_path, options).read_text()


def test_the_command_writes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_results(make_comparison(tmp_path, models=["full"], utterances=4), tmp_path)
    assert main(["report", str(tmp_path), "audio=0", "maps=false", "static=false"]) == 0
    assert f"report: {tmp_path / 'report.html'}" in capsys.readouterr().out
    assert (tmp_path / "report.html").is_file()
    assert main(["report", str(tmp_path / "nothing")]) == 1
    assert "expected a folder of asr train or compare, found none" in capsys.readouterr().err


@pytest.mark.slow
def test_tables_and_figures_are_redrawn_from_results_alone(tmp_path: Path) -> None:
    """All but hypotheses with audio and the maps of a model, which are no part of results.json."""
    results = make_comparison(tmp_path, models=["full", "clustered-25", "i-clustered-25"], utterances=4)
    write_results(results, tmp_path)
    before = cards(write_report(results, tmp_path, ReportOptions(maps=False, static=False)))
    assert {"exchange-test", "differences-test", "figure-accuracy", "figure-curves"} <= before.keys()
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    shutil.copy(tmp_path / "results.json", moved)
    assert main(["report", str(moved), "maps=false", "static=false"]) == 0
    assert cards(moved / "report.html") == before


def cards(page: Path) -> dict[str, tuple[str, Any]]:
    """Return HTML and data of the tables and figures of a page."""
    html = page.read_text()
    drawn = json.loads(re.search(r'id="report-data">(.*?)</script>', html, re.S)[1])["figures"]  # type: ignore[index]
    found = re.findall(r'<section class="card" id="([^"]*)">(.*?)</section>', html, re.S)
    return {key: (text, drawn.get(key)) for key, text in found if key not in ("errors", "protocol")}


def test_a_comparison_that_has_just_begun_has_no_report_yet(tmp_path: Path) -> None:
    """It was said to be no folder of a comparison."""
    with locked(tmp_path, "asr compare"), pytest.raises(UserError, match="no results yet"):
        report.run([tmp_path], ReportOptions())
    with pytest.raises(UserError, match=r"neither config\.yaml nor results\.json"):
        report.run([tmp_path], ReportOptions())
    (tmp_path / "trainings").mkdir()  # interrupted
    with pytest.raises(UserError, match="no results yet"):
        report.run([tmp_path], ReportOptions())


@pytest.mark.slow
def test_a_running_comparison_is_followed_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop was tested with trainings alone."""
    pages: list[str] = []
    real = page.write_text

    def write_text(text: str, path: Path) -> None:
        real(text, path)
        if path.name == page.FILE:
            pages.append(text)

    monkeypatch.setattr(page, "write_text", write_text)
    results = make_comparison(tmp_path, models=["full", "lsh-1"])
    first = dataclasses.replace(
        results, evaluations=[x for x in results.evaluations if x.candidate == "full"]
    )
    write_results(first, tmp_path)
    asked = ["report", str(tmp_path), "refresh=1", "maps=false", "static=false", "audio=0"]
    following = threading.Thread(target=main, args=(asked,))
    with locked(tmp_path, "asr compare"):
        following.start()
        while not pages:
            time.sleep(0.05)
        write_results(results, tmp_path)
    following.join()
    assert '<meta http-equiv="refresh" content="1">' in pages[0]
    assert 'http-equiv="refresh"' not in pages[-1]
    forward = [len(re.findall("real time", Elements(x).text)) for x in (pages[0], pages[-1])]
    assert 0 < forward[0] < forward[1]
