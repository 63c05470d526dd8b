"""The programs in tools/: their options, and the installation."""

import importlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from asr import config
from asr.commands.bench import parse

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ROOT / "tools"


@pytest.fixture(autouse=True)
def _tools_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(TOOLS)


@pytest.fixture
def speed() -> ModuleType:
    return importlib.import_module("speed")


def test_help_names_every_measurement(speed: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert speed.main(["--help"]) == 0
    shown = capsys.readouterr().out
    for measurement in speed.MEASUREMENTS:
        assert f"python tools/speed.py {measurement}" in shown
        assert f"\n{measurement}\n" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["layer"], "speed: layer: unknown measurement (did you mean 'layers'?)"),
        (["layers", "rows=[0]"], "speed: rows=0: expected a number ≥ 1"),
        (["layers", "files=3"], "files"),
    ],
)
def test_errors_are_one_line(
    speed: ModuleType, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert speed.main(arguments) == 1
    shown = capsys.readouterr().err
    assert message in shown
    assert shown.count("\n") == 1


def test_layers_are_measured(
    speed: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speed, "PRODUCTS", 1)
    assert speed.main(["layers", "rows=[8]", "sizes=[16]", "rounds=1"]) == 0
    assert capsys.readouterr().out.count("16 → ") == 8


def quoted(command: str) -> list[list[str]]:
    """Return the arguments of a command wherever documents and notes quote it."""
    found = []
    for folder in ("docs", "recipes", "attention_ext", "asr"):
        for path in sorted((ROOT / folder).rglob("*.md")):
            text = path.read_text().replace("\\\n", "")
            found += re.findall(rf"{command}((?:\s+[\w.]+=[^\s`)]+)*)", text)
    return [shlex.split("".join(parts)) for parts in found]


def test_quoted_measurements_have_these_options(speed: ModuleType) -> None:
    spec = importlib.util.spec_from_file_location("distance", ROOT / "recipes/demo/results/distance.py")
    assert spec is not None
    assert spec.loader is not None
    distance = importlib.util.module_from_spec(spec)
    sys.modules["distance"] = distance  # where its dataclass looks for it
    spec.loader.exec_module(distance)
    programs = {f"tools/speed.py {name}": schema for name, (schema, _) in speed.MEASUREMENTS.items()}
    for program, schema in (programs | {"demo/results/distance.py": distance.Distance}).items():
        found = quoted(re.escape(program))
        assert found, program
        for overrides in found:
            config.parse(schema, overrides)


def test_quoted_benchmarks_have_these_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    commands = [overrides for overrides in quoted("asr bench") if overrides]
    assert len(commands) > 15
    for overrides in commands:
        if not any("peer:" in x for x in overrides):
            parse(overrides)


PIP = """#!/bin/sh
case "$*" in
  *--upgrade*) echo "Collecting pip" ;;
  *"torch torchaudio"*) echo "  Downloading torch-2.11.0-cp312.whl (530.6 MB)" ;;
  *) echo "  c++ -O3 -c attention_ext/hashing/cpu.cpp -o x.o"
     [ -z "$FAILS" ] || { echo "no such package"; exit 1; } ;;
esac
"""


@pytest.mark.parametrize("fails", ["", "1"])
def test_the_installation_shows_its_progress(fails: str, tmp_path: Path) -> None:
    """One line stood still for five to twelve minutes."""
    for name in ("pyproject.toml", "setup.py", "constraints.txt", "attention_ext/a.h", ".venv/bin/python"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(PIP)
    (tmp_path / ".venv/bin/python").chmod(0o755)
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools/environment.sh", tmp_path / "tools")
    command = ["bash", "-c", "source tools/environment.sh demo; echo ready", "tools/demo.sh"]
    environment = {**os.environ, "FAILS": fails, "PYTHON": sys.executable}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert "downloading torch-2.11.0-cp312.whl (530.6 MB)\n" in done.stdout
    assert "compiling attention_ext/hashing/cpu.cpp\n" in done.stdout
    assert ("ready" in done.stdout, done.returncode) == (not fails, bool(fails))
    assert ("no such package" in done.stderr) == bool(fails)
