"""Runs a test with each instruction set that this machine supports."""

from collections.abc import Iterator

import pytest
from kernel_cases import instruction_sets

from attention_ext import library


@pytest.fixture(params=instruction_sets())
def each_set(request: pytest.FixtureRequest) -> Iterator[None]:
    library.instruction_set(request.param)
    yield
    library.instruction_set()
