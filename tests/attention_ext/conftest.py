"""Instruction sets that this machine supports, and compiled libraries that later test runs reuse."""

import functools
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from kernel_cases import instruction_sets
from once import built

from attention_ext import library


@pytest.fixture(params=instruction_sets())
def each_set(request: pytest.FixtureRequest) -> Iterator[None]:
    library.instruction_set(request.param)
    yield
    library.instruction_set()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run all cases on the widest instruction set, and those that a test calls the hardest on every one."""
    widest, left_out = instruction_sets()[-1:], []
    for item in items:
        hardest = item.get_closest_marker("hardest")
        given = item.callspec.params if hardest else {}  # type: ignore[attr-defined]
        if hardest and given["each_set"] not in widest:
            left_out += [item] if any(given[name] not in x for name, x in hardest.kwargs.items()) else []
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in set(left_out)]


@pytest.fixture(scope="session")
def build_once(request: pytest.FixtureRequest) -> Callable[..., Path]:
    """Function of a name, a compiler, words and a build, which runs when a source or a word has changed."""
    cache = request.config.cache.mkdir("builds")

    def build(name: str, compiler: str, words: list[str], make: Callable[[Path], object]) -> Path:
        here = Path(__file__).parent
        folders = here, here.parents[1] / "attention_ext"
        sources = sorted(x for folder in folders for x in folder.rglob("*") if x.suffix in SOURCES)
        return built(cache, name, [*sources, *words, version(compiler), torch.__version__], make)

    return build


SOURCES = (".cpp", ".cu", ".h")


@functools.cache
def version(compiler: str) -> str:
    return subprocess.run([compiler, "--version"], check=True, capture_output=True, text=True).stdout
