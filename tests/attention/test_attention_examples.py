"""The docstring examples run."""

import doctest
import importlib

import pytest


@pytest.mark.parametrize(
    "module",
    [
        "asr.attention",
        "asr.attention.spec",
        "attention_ext.hashing.reference",
        "attention_ext.kmeans.reference",
    ],
)
def test_docstring_examples(module: str) -> None:
    result = doctest.testmod(importlib.import_module(module))
    assert result.attempted > 0
    assert result.failed == 0
