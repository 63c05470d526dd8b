"""Static export of figures."""

import resource
from dataclasses import fields
from pathlib import Path

import pytest
from PIL import Image

from asr.errors import UserError
from asr.report import html
from asr.report.figure import Figure, Panel, Provenance, export

NOWHERE = Provenance(**{item.name: "" for item in fields(Provenance)})


@pytest.mark.slow
def test_panels_side_by_side_keep_their_params(tmp_path: Path) -> None:
    """Reports on two splits failed: a filter used a param that Vega-Lite drops from panels."""
    spec = {
        "params": [{"name": "labels", "value": True}],
        "data": {"values": [{"x": 1, "y": 2}]},
        "transform": [{"filter": "labels"}],
        "mark": "point",
        "encoding": {
            "x": {"field": "x", "type": "quantitative"},
            "y": {"field": "y", "type": "quantitative"},
        },
    }
    widths = []
    for count in (1, 2):
        panels = [Panel(f"split {i}", spec) for i in range(count)]
        png, pdf, text = export(Figure("figure", "", "", "", panels), tmp_path / str(count), NOWHERE)
        picture = Image.open(png)
        widths.append(picture.width)
        assert picture.info["Description"] == text.read_text()
        assert pdf.read_bytes().startswith(b"%PDF")
    assert widths[1] > widths[0]


def test_too_little_virtual_memory_to_draw_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under `ulimit -v`, V8 ended `asr bench` with a stack trace after its tables."""
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (16 << 30, 16 << 30))
    with pytest.raises(UserError, match=r"b\.png: drawing reserves .* `ulimit -v` allows 16\.0 GiB"):
        export(Figure("b", "", "", "", [], NOWHERE), tmp_path)


def test_too_little_memory_for_the_script_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under `ulimit -v 3500000`, `asr compare` ended with status 134, killed by a library."""
    monkeypatch.setattr(html, "SCRIPT_MEMORY", 1 << 60)
    with pytest.raises(UserError, match=r"script needs \d+ MiB of memory: Cannot allocate memory"):
        html.chart_library.__wrapped__()
