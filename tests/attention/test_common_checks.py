"""The checks that `asr attention check` runs, on every mechanism of the table."""

import pytest
from mechanisms import OWN, QUERY_KEY, two_iterations

from asr.attention.checks import Check, checks_of
from asr.attention.checks.mechanisms import gradients

CASES = [(check, name) for name in [*QUERY_KEY, *OWN, "none"] for check in checks_of(name)]


@pytest.mark.parametrize(("check", "name"), CASES, ids=[f"{check.__name__}-{name}" for check, name in CASES])
def test_check(check: Check, name: str) -> None:
    check(two_iterations(name) if check is gradients else name)
