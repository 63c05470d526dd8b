"""Work on Ray actors: each item's result, lost actors, errors of the set-up."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from asr.errors import UserError
from asr.transcription import actors
from asr.transcription.actors import on_actors

ray = pytest.importorskip("ray", reason="needs the extra clustered-asr[launchers]")


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the actors don't know the tests' folder
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=int(1e8), log_to_driver=False)
    yield
    ray.shutdown()
    ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def set_up(folder: Path) -> Callable[[list[str]], list[str]]:
    """Return a function that dies at `poison`, and once at `fright`."""
    (folder / f"{os.getpid()}.pid").touch()

    def work(group: list[str]) -> list[str]:
        for item in group:
            frightened = folder / item
            if item == "poison" or (item == "fright" and not frightened.exists()):
                frightened.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            if item == "wrong":
                raise UserError("expected a number, found wrong")
        return [item.upper() for item in group]

    return work


def fail(message: str) -> Any:
    raise UserError(message)


def die() -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_a_lost_actor_costs_one_item_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = partial(on_actors, partial(set_up, tmp_path), actors=2, resources={"num_cpus": 0.5})
    groups = [["a", "b"], ["c", "fright", "d"], ["e", "poison", "f"], ["g"]]
    found = dict(work(groups))
    items = [item for group in groups for item in group]
    assert found == {item: None if item == "poison" else item.upper() for item in items}
    # two to begin with, one for each loss: fright's, poison's in its group and alone, which may be the last
    assert len(list(tmp_path.glob("*.pid"))) in (4, 5)
    with pytest.raises(UserError, match=r"^expected a number, found wrong$"):
        list(work([["wrong"]]))
    with pytest.raises(UserError, match=r"^no such model$"):
        list(on_actors(partial(fail, "no such model"), [["a"]], actors=1, resources={"num_cpus": 1}))
    monkeypatch.setattr(actors, "MOST_LOSSES", 3)
    with pytest.raises(UserError, match="4 processes in succession were lost"):
        list(on_actors(die, [["a"]] * 20, actors=2, resources={"num_cpus": 0.5}))
    assert list(work([])) == []
