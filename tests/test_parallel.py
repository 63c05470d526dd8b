"""Results of interrupted work on disk."""

import socket
from pathlib import Path

import pytest

from asr.errors import UserError
from asr.parallel import Journal, ray_cluster


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
