"""Shared fixtures: a tone corpus, and a tiny model that learns it in seconds.

Fixtures import what they need: pytest-xdist's first process loads this file too, and runs no test.
"""

import gc
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from once import once

if TYPE_CHECKING:
    from asr import Recognizer


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that lets tests of training on a GPU run without one."""
    parser.addoption("--gpu-on-cpu", action="store_true", help="run tests/training/test_gpu.py on the CPU")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what takes minutes unless it is asked for."""
    if "exhaustive" not in config.option.markexpr:
        for item in items:
            if "exhaustive" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="takes minutes: pytest -m exhaustive"))


def pytest_collection_finish() -> None:
    """Leave what is imported out of garbage collections: timed rounds begin with one, which took 0.3 s."""
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Use one thread per test process, because tests share the machine."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def user_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget the code of its own that a test loads."""
    from asr.config import user_code

    monkeypatch.setattr(user_code, "_loaded", {})
    yield
    for name in user_code.sources():
        sys.modules.pop(Path(name).stem if name.endswith(".py") else name, None)


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of this test run that all its processes share; see `once`."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def tone_corpus(shared: Path) -> Path:
    """Prepared folder with splits train, dev and test."""
    from tone_corpora import make_corpus

    return once(shared / "tones", partial(make_corpus, sizes={"train": 60, "dev": 8, "test": 8}))


@pytest.fixture
def corpus_maker(tmp_path: Path) -> Callable[..., Path]:
    """Function that writes a small corpus, for tests that modify the corpus."""
    from tone_corpora import make_corpus

    def make(name: str = "tones", train: int = 6, rate: int = 16000) -> Path:
        return make_corpus(tmp_path / name, {"train": train, "dev": 2, "test": 2}, rate)

    return make


@pytest.fixture(scope="session")
def trained(tone_corpus: Path, shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run folder of a recogniser trained on the tones; a copy for each process, which decodes into it."""
    from tone_corpora import TINY

    from asr.training.config import train_options
    from asr.training.run import train

    def make(folder: Path) -> None:
        length = ["trainer.max_steps=80", "trainer.validate_every=40"]
        train(train_options([*TINY, f"data.train=[{tone_corpus}]", f"run={folder}", *length]))

    return shutil.copytree(once(shared / "trained", make), tmp_path_factory.mktemp("exp") / "tones")


@pytest.fixture(scope="module")
def recognizer(trained: Path) -> "Recognizer":
    """The trained recogniser, shared by the tests of a module."""
    from asr import Recognizer

    return Recognizer.load(trained)
