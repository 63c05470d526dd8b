"""Which parameters of a test run quickly; the others are marked as slow."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def quick(cases: Iterable[Any], chosen: Callable[[Any], bool]) -> list[Any]:
    """Return the parameters of a test, of which the quick run takes the chosen ones.

    Example:
        >>> [type(case).__name__ for case in quick([1, 5, 100], lambda size: size == 5)]
        ['ParameterSet', 'int', 'ParameterSet']
    """

    def slow(case: Any) -> Any:
        return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)

    return [case if chosen(case) else slow(case) for case in cases]
