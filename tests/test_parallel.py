"""Ray clusters that aren't there, or have too little."""

import socket

import pytest

from asr.errors import UserError
from asr.parallel import ray_cluster


def test_a_ray_cluster_that_is_not_there_is_one_line() -> None:
    """Ray waited for more than two minutes for an address at which nobody listens."""
    pytest.importorskip("ray", reason="needs the extra clustered-asr[launchers]")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # without listen(): connections are refused
        address = f"127.0.0.1:{free.getsockname()[1]}"
        with (
            pytest.raises(UserError, match=f"^address={address}: no connection .*: Connection refused$"),
            ray_cluster(address),
        ):
            pass


def test_a_task_that_needs_more_than_this_machine_has_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """`asr compare launcher=ray launch=num_gpus=1` waited for ever on a machine without a GPU."""
    ray = pytest.importorskip("ray")
    ended = []
    monkeypatch.setattr(ray, "init", lambda **options: None)
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 2.0})
    monkeypatch.setattr(ray, "shutdown", lambda: ended.append(True))
    for needed in ({"num_gpus": 1}, {"num_cpus": 2.5, "num_gpus": 0}):
        with pytest.raises(UserError, match=r"^num_(gpus=1: expected at most 0|cpus=2.5: expected .* 2),"):
            ray_cluster("", needed).__enter__()
    assert ended == [True, True]
    with ray_cluster("", {"num_cpus": 2}), ray_cluster("auto", {"num_gpus": 1}):
        pass


def test_a_client_address_without_port_has_rays() -> None:
    """Ray waited for half a minute for a host that isn't there."""
    pytest.importorskip("ray")
    with pytest.raises(
        UserError, match=r"^address=ray://no\.invalid: no connection .*: .*(known|resolution)"
    ):
        ray_cluster("ray://no.invalid").__enter__()
