"""The checks that `asr attention check` runs, on every mechanism of the table."""

import pytest
from mechanisms import OWN, QUERY_KEY, two_iterations
from quick import quick

from asr.attention.checks import Check, checks_of
from asr.attention.checks.mechanisms import gradients
from asr.config.names import split_name

NAMES = [*QUERY_KEY, *OWN, "none"]
FIRST = {split_name(name)[0]: name for name in reversed(NAMES)}.values()  # of each mechanism
CASES = [(check, name) for name in NAMES for check in checks_of(name)]


@pytest.mark.parametrize(
    ("check", "name"),
    quick(CASES, lambda case: case[1] in FIRST),
    ids=[f"{check.__name__}-{name}" for check, name in CASES],
)
def test_check(check: Check, name: str) -> None:
    check(two_iterations(name) if check is gradients else name)
