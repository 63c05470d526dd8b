"""The checks that `asr attention check` runs, on every mechanism of the table.

All checks run on each mechanism, and with values of its options that draw planes or take further branches;
those that depend on the other values, too, run with each of them, unless `test_equations.py` and
`test_half_precision.py` compare these with oracles.
"""

import pytest
from mechanisms import BIASED, KEYS, OWN, QUERY_KEY, SHARED, two_iterations
from quick import quick

from asr.attention.checks import Check, checks_of, layers, mechanisms
from asr.attention.checks.mechanisms import gradients
from asr.config.names import split_name

NAMES = [*QUERY_KEY, *OWN, "none"]
FIRST = {split_name(name)[0]: name for name in reversed(NAMES)}.values()  # of each mechanism
ALL = {*FIRST, BIASED, KEYS[-1], SHARED[-1], OWN[7]}
BY_VALUE = {
    mechanisms.padding_and_batch,
    mechanisms.gradients,
    layers.layer_padding_and_batch,
    layers.layer_gradients,
}
CASES = [(check, name) for name in NAMES for check in checks_of(name) if name in ALL or check in BY_VALUE]


@pytest.mark.parametrize(
    ("check", "name"),
    quick(CASES, lambda case: case[1] in FIRST),
    ids=[f"{check.__name__}-{name}" for check, name in CASES],
)
def test_check(check: Check, name: str) -> None:
    check(two_iterations(name) if check is gradients else name)
