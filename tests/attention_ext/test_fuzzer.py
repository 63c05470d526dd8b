"""The fuzzer: a short run, and what it reports of faulty processes."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from kernel_cases import needs_kernels

from tools import fuzz_operators


@pytest.mark.slow
@needs_kernels
def test_random_calls_neither_crash_nor_deviate(tmp_path: Path) -> None:
    counts = fuzz_operators.fuzz(200, 0, tmp_path, sanitize=False)
    assert counts["crash"] == counts["deviates"] == 0, (tmp_path / "outcomes.jsonl").read_text()
    assert counts["equal"] > 60
    assert counts["refused"] > 25


@needs_kernels
def test_an_interrupted_run_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process reports three cases, the last one as a crash."""
    started: list[int] = []

    def three(command: list[str], _: object, report: Callable[[int, str], None]) -> None:
        first, end = map(int, command[-2:])
        started.append(first)
        for number in range(first, min(first + 3, end)):
            report(number, "equal" if number < first + 2 else "crash, exit status -11")

    monkeypatch.setattr(fuzz_operators, "watch", three)
    assert fuzz_operators.fuzz(7, 0, tmp_path, sanitize=False) == {"equal": 5, "crash": 2}
    assert fuzz_operators.fuzz(11, 0, tmp_path, sanitize=False) == {"equal": 8, "crash": 3}
    assert started == [0, 3, 6, 7, 10]


def test_a_crash_is_attributed_to_its_case() -> None:
    script = "import os; print('case 7\\noutcome equal\\ncase 8', flush=True); os.abort()"
    outcomes: dict[int, str] = {}
    fuzz_operators.watch([sys.executable, "-c", script], {}, outcomes.__setitem__)
    assert outcomes[7] == "equal"
    assert outcomes[8].startswith("crash, exit status -6")


def test_a_silent_process_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz_operators, "SECONDS", 0.5)
    script = "import time; print('case 3', flush=True); time.sleep(600)"
    outcomes: dict[int, str] = {}
    fuzz_operators.watch([sys.executable, "-c", script], {}, outcomes.__setitem__)
    assert outcomes[3].startswith("crash, exit status -9")


def test_a_process_that_fails_before_its_first_case_ends_the_run() -> None:
    with pytest.raises(SystemExit, match="failed outside a case"):
        fuzz_operators.watch([sys.executable, "-c", "raise SystemExit(3)"], {}, lambda *_: None)
