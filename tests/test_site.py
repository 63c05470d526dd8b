"""The site builds strictly, and its reference covers the public names."""

import importlib.util
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import asr
from asr.attention import MECHANISMS

ROOT = Path(__file__).resolve().parent.parent


def test_the_stored_pictures_are_those_of_the_mechanisms() -> None:
    """The site is built from them without PyTorch."""
    path = ROOT / "tools" / "mechanism_pages.py"
    spec = importlib.util.spec_from_file_location("mechanism_pages", path)
    assert spec
    assert spec.loader
    pages = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pages)
    stored = json.loads((pages.MAPS / "mechanisms.json").read_text(encoding="utf-8"))
    assert stored == json.loads(json.dumps(pages.described()))
    for key, name in pages.shown_names().items():
        shown = np.asarray(Image.open(pages.MAPS / f"{key}.png"), dtype=int)
        drawn = np.asarray(Image.open(io.BytesIO(pages.picture(pages.weights(name)))), dtype=int)
        # Rounding differs between processors; with clusters, a query may go to another one.
        assert (abs(shown - drawn).max(axis=-1) > 8).mean() < 0.05, key


@pytest.mark.slow
def test_the_site_builds(tmp_path: Path) -> None:
    """Strictly: a broken link or anchor is an error."""
    for package in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(package, reason="needs the extra clustered-asr[docs]")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "CI": "1"})
    assert done.returncode == 0, done.stderr[-3000:]
    reference = (tmp_path / "reference/asr/index.html").read_text(encoding="utf-8")
    for name in asr.__all__:
        assert name.startswith("__") or f'.{name}"' in reference, name  # an anchor
    page = (tmp_path / "mechanisms/index.html").read_text(encoding="utf-8")
    for key in MECHANISMS:
        assert f'id="{key}"' in page
        assert (tmp_path / f"docs/figures/mechanisms/{key}.png").stat().st_size > 100
    assert (tmp_path / "search/search_index.json").is_file()
    for place in ("index.html", "recipes/demo/RESULTS/index.html", "docs/tutorial/index.html"):
        assert (tmp_path / place).is_file(), place
