"""Work on a Ray cluster: actors, set up once, process groups of items; a lost actor costs at most one."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from asr.config import user_code
from asr.errors import UserError
from asr.parallel import ray_cluster

LOST = "the process that worked on it was killed (out of memory?)"
# Successive losses after which no further actor is started: a set-up may kill its process every time.
MOST_LOSSES = 10


class _Actor:
    """Is set up with its first group, because Ray hides errors of constructors."""

    def __init__(self, set_up: Callable[[], Callable[[list[Any]], list[Any]]], sources: list[str]) -> None:
        self.set_up, self.sources = set_up, sources
        self.work: Callable[[list[Any]], list[Any]] | None = None

    def run(self, group: list[Any]) -> list[Any]:
        """Return a result for each item."""
        if self.work is None:
            user_code.load_all(self.sources)
            self.work = self.set_up()
        return self.work(group)


def on_actors(
    set_up: Callable[[], Callable[[list[Any]], list[Any]]],
    groups: Sequence[Sequence[Any]],
    *,
    actors: int,
    address: str = "",
    resources: Mapping[str, float],
) -> Iterator[tuple[Any, Any]]:
    """Yield each item with its result, in any order; None if the item's process was killed each time.

    The items of a group whose actor is lost are tried again, one by one, on a new actor.

    Args:
        set_up: called once by each actor; returns a function that maps the items of a group to results. Both
            functions are defined at module level.
        groups: groups of items; they are sent to the actors, so items should be file names, not contents.
        actors: number of actors.
        address: address of the cluster; empty: an existing connection, or a cluster on this machine.
        resources: `num_cpus` and `num_gpus` of an actor.

    Raises:
        UserError: raised by the function or the set-up; or Ray is not installed, or all actors are lost.
    """
    try:
        import ray  # noqa: F401
    except ImportError:
        raise UserError("engine=ray: needs ray: pip install 'clustered-asr[launchers]'") from None
    with ray_cluster(address, resources):
        yield from _results(set_up, groups, actors, resources)


def _results(
    set_up: Callable[[], Callable[[list[Any]], list[Any]]],
    groups: Sequence[Sequence[Any]],
    actors: int,
    resources: Mapping[str, float],
) -> Iterator[tuple[Any, Any]]:
    """Like `on_actors`, with an existing connection."""
    import ray
    from ray.exceptions import RayActorError, RayTaskError

    start = partial(ray.remote(_Actor).options(**resources).remote, sources=user_code.sources())
    waiting: list[tuple[list[Any], bool]] = [(list(group), False) for group in reversed(groups)]
    running: dict[Any, tuple[Any, list[Any], bool]] = {}  # actor, items, whether they were lost before
    idle: list[Any] = [start(set_up) for _ in range(min(actors, len(groups)))]
    losses = 0
    try:
        while waiting or running:
            while idle and waiting:
                actor, (group, again) = idle.pop(), waiting.pop()
                running[actor.run.remote(group)] = (actor, group, again)
            (reference,), _ = ray.wait(list(running))
            actor, group, again = running.pop(reference)
            try:
                yield from zip(group, ray.get(reference), strict=True)
                losses = 0
            except RayTaskError as error:
                raise (error.cause if isinstance(error.cause, UserError) else error) from None
            except RayActorError as error:
                losses += 1
                if losses > MOST_LOSSES:
                    last = str(error).strip().splitlines()[-1]
                    raise UserError(f"{losses} processes in succession were lost, the last: {last}") from None
                actor = start(set_up)
                if again:
                    yield from ((item, None) for item in group)
                else:
                    waiting += [([item], True) for item in reversed(group)]
            idle.append(actor)
    finally:
        for actor in [*idle, *(actor for actor, _, _ in running.values())]:
            ray.kill(actor)
