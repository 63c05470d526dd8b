"""Results of interrupted work on disk."""

import contextlib
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from asr.errors import UserError
from asr.parallel import CLIENT_CALL, CLUSTER_CALL, Journal, _check_answer, ray_cluster


def test_results_with_line_separators_are_stored(tmp_path: Path) -> None:
    """All results after one with U+0085 or U+2028 were lost."""
    keys = ["one", "two\x85", "three\u2028", "\udcff", "five"]
    journal = Journal(tmp_path / "journal.jsonl", "1")
    for key in keys:
        journal.add(key, [key])
    journal.close()
    assert Journal(tmp_path / "journal.jsonl", "1").stored == {key: [key] for key in keys}


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


HTTP2 = b"\0\0\0\4" + bytes(5)  # the settings with which a server begins
NOT_FOUND = HTTP2 + b"\0\0\1\1\5\0\0\0\1\x8d"  # the headers of the first answer: status 404
REPLIES = [b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", None, HTTP2, NOT_FOUND]


@pytest.mark.slow
@pytest.mark.parametrize("reply", REPLIES)
@pytest.mark.parametrize("client", ["", "ray://"])
def test_something_else_than_a_ray_cluster_is_noticed(
    reply: bytes | None, client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray waited for half a minute for the answer of an SSH server, for minutes for that of a web server."""
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray, "init", lambda **options: pytest.fail("Ray was left to wait"))
    monkeypatch.setattr("asr.parallel.CONNECT_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            with contextlib.suppress(OSError):  # when the server is closed, or the other side gives up
                while True:
                    connection, _ = server.accept()
                    connection.settimeout(2)  # gRPC closes none before it has answered
                    with connection:
                        if reply and connection.recv(64):
                            connection.sendall(reply)
                        while reply != b"" and connection.recv(64):
                            pass

        thread = threading.Thread(target=answer)
        thread.start()
        address = f"{client}127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(UserError) as error:
            ray_cluster(address).__enter__()
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert str(error.value) == (
        f"address={address}: no connection to a Ray cluster: something else than Ray answers there"
    )


class AnswersCalls(grpc.GenericRpcHandler):
    """Answers calls of the given names; gRPC calls all others unimplemented."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        if details.method not in self.names:
            return None
        return grpc.unary_unary_rpc_method_handler(lambda request, context: request)


@pytest.mark.parametrize(
    ("client", "known"), [("", ""), ("ray://", ""), ("ray://", CLUSTER_CALL[0]), ("", CLIENT_CALL[0])]
)
def test_a_grpc_server_with_other_calls_is_no_ray_cluster(
    client: str, known: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as the other port of a cluster: Ray asked it for three minutes."""
    ray = pytest.importorskip("ray")
    connected = []
    monkeypatch.setattr(ray, "init", lambda **options: connected.append(options["address"]))
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    server = grpc.server(ThreadPoolExecutor(1), handlers=[AnswersCalls(known)])
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        with pytest.raises(UserError, match=r"something else than Ray answers there$"):
            ray_cluster(f"{client}{address}").__enter__()
        assert not connected
        if known:
            other = "" if client else "ray://"
            with ray_cluster(f"{other}{address}"):
                assert connected == [f"{other}{address}"]
    finally:
        server.stop(None)


@pytest.mark.slow
def test_a_ray_cluster_is_recognised() -> None:
    """By the call that other servers don't know."""
    ray = pytest.importorskip("ray")
    with ray_cluster(""):
        address = ray.get_runtime_context().gcs_address
        host, _, port = address.rpartition(":")
        _check_answer(host, int(port), CLUSTER_CALL)
        with pytest.raises(ConnectionError):
            _check_answer(host, int(port), CLIENT_CALL)


def test_a_client_address_without_port_has_rays() -> None:
    """Ray waited for half a minute for a host that isn't there."""
    pytest.importorskip("ray")
    with pytest.raises(
        UserError, match=r"^address=ray://no\.invalid: no connection .*: .*(known|resolution)"
    ):
        ray_cluster("ray://no.invalid").__enter__()
