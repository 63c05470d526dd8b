"""The fuzzer: a short run, and what it reports of faulty processes."""

import sys
from pathlib import Path

import pytest
from kernel_cases import needs_kernels

from tools import fuzz_operators


@needs_kernels
def test_random_calls_neither_crash_nor_deviate(tmp_path: Path) -> None:
    """200 cases, of which the first 50 are resumed from the journal."""
    fuzz_operators.fuzz(50, 0, tmp_path, sanitize=False)
    journal = (tmp_path / "outcomes.jsonl").read_text()
    counts = fuzz_operators.fuzz(200, 0, tmp_path, sanitize=False)
    assert (tmp_path / "outcomes.jsonl").read_text().startswith(journal)
    assert counts["crash"] == counts["deviates"] == 0, (tmp_path / "outcomes.jsonl").read_text()
    assert counts["equal"] > 60
    assert counts["refused"] > 25


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
