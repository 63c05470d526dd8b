"""Shared fixtures: a tone corpus, and a tiny model that learns it in seconds."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tone_corpora import TINY, make_corpus

from asr import Recognizer
from asr.training.config import train_options
from asr.training.run import train


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that lets tests of training on a GPU run without one."""
    parser.addoption("--gpu-on-cpu", action="store_true", help="run tests/training/test_gpu.py on the CPU")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what takes minutes unless it is asked for."""
    if "exhaustive" not in config.option.markexpr:
        for item in items:
            if "exhaustive" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="takes minutes: pytest -m exhaustive"))


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Use one thread per test process, because tests share the machine."""
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def tone_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared folder with splits train, dev and test."""
    return make_corpus(tmp_path_factory.mktemp("data") / "tones", {"train": 60, "dev": 8, "test": 8})


@pytest.fixture
def corpus_maker(tmp_path: Path) -> Callable[..., Path]:
    """Function that writes a small corpus, for tests that modify the corpus."""

    def make(name: str = "tones", train: int = 6, rate: int = 16000) -> Path:
        return make_corpus(tmp_path / name, {"train": train, "dev": 2, "test": 2}, rate)

    return make


@pytest.fixture(scope="session")
def trained(tone_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run folder of a recogniser trained on the tones."""
    folder = tmp_path_factory.mktemp("exp") / "tones"
    length = ["trainer.max_steps=80", "trainer.validate_every=40"]
    return train(train_options([*TINY, f"data.train=[{tone_corpus}]", f"run={folder}", *length]))


@pytest.fixture(scope="module")
def recognizer(trained: Path) -> Recognizer:
    """The trained recogniser, shared by the tests of a module."""
    return Recognizer.load(trained)
