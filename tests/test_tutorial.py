"""The notebook docs/tutorial.ipynb runs, cell by cell, with less speech and shorter trainings."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parent.parent / "docs" / "tutorial.ipynb"
SMALL = {"SECONDS = 60": "SECONDS = 3", "MINUTES = 10": "MINUTES = 0.5", "test_minutes=2": "test_minutes=0.2"}


def cells(kind: str) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == kind]


def run(source: str, names: dict[str, Any]) -> Any:
    """Run a cell; return the value of its last line, which a notebook shows, or None."""
    body = ast.parse(source).body
    last = body.pop() if isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), str(NOTEBOOK), "exec"), names)
    return eval(compile(ast.Expression(last.value), str(NOTEBOOK), "eval"), names) if last else None


def test_the_stored_outputs_are_those_of_one_run() -> None:
    """From top to bottom, without errors."""
    found = cells("code")
    assert [cell["execution_count"] for cell in found] == list(range(1, len(found) + 1))
    assert not [x for cell in found for x in cell["outputs"] if x["output_type"] == "error"]


@pytest.mark.slow
def test_the_tutorial_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("espeakng_loader", reason="needs the extra clustered-asr[demo]")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "tutorial"}
    replaced = dict(SMALL)
    shown = []
    for cell in cells("code"):
        source = "".join(cell["source"])
        for text in [text for text in replaced if text in source]:
            source = source.replace(text, replaced.pop(text))
        shown.append(run(source, names))
    assert not replaced
    charts = [value._repr_mimebundle_() for value in shown if hasattr(value, "_repr_mimebundle_")]
    assert [list(bundle[0] if isinstance(bundle, tuple) else bundle) for bundle in charts] == [
        ["image/png"]
    ] * 2
    assert "<th>per_low</th>" in shown[-1]._repr_html_()
    assert names["status"] == 0  # of asr attention check
    assert set(names["runs"]) == {"full", "i-clustered-25", "dilated"}
