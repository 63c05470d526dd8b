"""Static export of figures."""

from dataclasses import fields
from pathlib import Path

from PIL import Image

from asr.report.figure import Figure, Panel, Provenance, export


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
    nowhere = Provenance(**{item.name: "" for item in fields(Provenance)})
    widths = []
    for count in (1, 2):
        panels = [Panel(f"split {i}", spec) for i in range(count)]
        png, pdf, text = export(Figure("figure", "", "", "", panels, nowhere), tmp_path / str(count))
        picture = Image.open(png)
        widths.append(picture.width)
        assert picture.info["Description"] == text.read_text()
        assert pdf.read_bytes().startswith(b"%PDF")
    assert widths[1] > widths[0]
