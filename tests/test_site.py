"""The site builds strictly, and its reference covers the public names."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import asr
from asr.attention import MECHANISMS

ROOT = Path(__file__).resolve().parent.parent


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
        assert (tmp_path / f"mechanisms/{key}.png").stat().st_size > 100
    assert (tmp_path / "search/search_index.json").is_file()
    for place in ("index.html", "recipes/demo/RESULTS/index.html", "docs/tutorial/index.html"):
        assert (tmp_path / place).is_file(), place
