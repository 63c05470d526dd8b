"""The wheel contains configuration and recipes, and can be built without a compiler."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_a_wheel_built_without_a_compiler_contains_all_but_the_kernels(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for name in ("asr", "attention_ext", "conf", "recipes"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, source)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", str(tmp_path)]
    environment = {**os.environ, "CXX": "/nonexistent/c++", "FORCE_CUDA": "0"}
    subprocess.run([*command, str(source)], check=True, capture_output=True, env=environment)
    (wheel,) = tmp_path.glob("clustered_asr-*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    for group in ("conf", "recipes"):
        expected = {
            f"asr_{group}/{path.relative_to(ROOT / group)}"
            for suffix in ("py", "yaml", "txt")
            for path in (ROOT / group).rglob(f"*.{suffix}")
        }
        assert expected <= names
    assert {"asr/cli.py", "asr/attention/table.py", "attention_ext/__init__.py", "asr/py.typed"} <= names
    assert {
        f"asr/report/templates/{name}" for name in ("report.html.jinja", "report.js", "style.css")
    } <= names
    assert not any(name.endswith(".so") for name in names)
    (build,) = [name for name in names if name.endswith("attention_ext/build.json")]
    assert "/nonexistent/c++" in zipfile.ZipFile(wheel).read(build).decode()
