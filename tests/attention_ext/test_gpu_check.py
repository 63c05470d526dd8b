"""The report of tools/gpu_check.sh."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools import gpu_check

TOOL = Path(gpu_check.__file__)


def test_a_step_that_ran_no_test_is_not_ok(tmp_path: Path) -> None:
    """Where the build had failed, pytest skipped all GPU tests and succeeded: the report said "tests ok"."""
    steps = {
        "build": (124, "c++ -std=c++20 …"),
        "memcheck": (1, "========= ERROR SUMMARY: 1 error"),
        "tests": (0, "SKIPPED [93] test_cuda_gpu.py: no kernels\n93 skipped in 8.27s\n"),
        "training": (0, "60 passed, 3 skipped, 1254 deselected in 37.99s"),
    }
    for name, (status, log) in steps.items():
        (tmp_path / f"{name}.status").write_text(f"{status} 7\n")
        (tmp_path / f"{name}.log").write_text(log)
    assert gpu_check.report(tmp_path) == 3
    text = (tmp_path / "gpu_check.txt").read_text()
    assert "steps: build TIMED OUT, memcheck FAILED, tests FAILED, training ok" in text
    assert "tests.log: 93 skipped in 8.27s" in text
    assert "commit" in text


def test_each_gpu_has_its_own_objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkout shared by an A100 and an H100 kept the first GPU's object, which no other GPU can run."""
    (tmp_path / "setup.py").write_text("def build_kernels(package, objects): objects.mkdir(parents=True)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gpu_check, "why_unavailable", lambda device: None)
    for number in ("8.0", "9.0"):
        monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", number)
        gpu_check.build()  # fails where the folder exists
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "10.0")
    monkeypatch.setattr(gpu_check, "why_unavailable", lambda device: "no libcudart.so.12")
    with pytest.raises(SystemExit, match="no libcudart"):
        gpu_check.build()


def test_figures_of_another_run_are_not_reported(tmp_path: Path) -> None:
    """Where the benchmark failed, the report once showed those of the run before, on whatever device."""
    (tmp_path / "benchmark.json").write_text("{}")
    stub = os.environ | {"PYTHON": "true", "OUT": str(tmp_path)}
    subprocess.run(["bash", TOOL.with_suffix(".sh"), "--dry"], env=stub, check=True)
    assert (tmp_path / "benchmark.status").is_file()
    assert not (tmp_path / "benchmark.json").exists()


@pytest.mark.slow
def test_kernel_tests_are_found_without_the_framework(tmp_path: Path) -> None:
    """Their conftest.py imports from tests/, which was not on the path: the step failed before any test."""
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\ncase "$*" in *confcutdir*) exec {sys.executable} "$@" --collect-only;; esac'
    )
    python.chmod(0o755)
    alone = os.environ | {"PYTHON": str(python), "OUT": str(tmp_path)}
    subprocess.run(["bash", TOOL.with_suffix(".sh"), "--dry"], env=alone, check=True)
    assert (tmp_path / "tests.status").read_text().startswith("0 "), (tmp_path / "tests.log").read_text()
