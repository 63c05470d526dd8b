"""Results of interrupted work on disk: found again by the same job, in one process or in shards."""

import json
from pathlib import Path
from typing import Any

import pytest

from asr.errors import UserError
from asr.records.job import Job, differences, identity, read_shards
from asr.records.options import Shard

SAME = {"command": "align", "options": {"seed": 0}}


def test_results_are_found_while_they_are_stored_and_by_the_next_process(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    job = Job(path, SAME)
    assert job.obtain("a", lambda: (1, 2)) == [1, 2]  # as it will be read back
    assert job.obtain("a", lambda: pytest.fail("computed twice")) == [1, 2]
    job.close()
    job.add("b", 3)  # after closing
    job.close()
    again = Job(path, SAME)
    assert again.positions(["b", "c", "a", "b"]) == {0: 3, 2: [1, 2], 3: 3}
    again.remove()
    again.remove()
    assert not path.exists()
    assert again.add("d", 4) == 4
    assert Job(path, SAME).stored == {"b": 3, "a": [1, 2], "d": 4}


def test_another_job_says_in_a_line_why_it_does_not_resume(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "results.jsonl"
    Job(path, SAME).add("a", 1)
    assert Job(path, {"command": "align", "options": {"seed": 1}}).stored == {}
    assert capsys.readouterr().err == f"{path}: begun anew: options.seed was 0, is now 1\n"
    for old in (json.dumps(SAME), '"asr.data.facts.audio_facts label 12ab"', "[1]", "", "\0", "[" * 100_000):
        path.write_text(f'{old}\n["a", 1]\n')
        assert Job(path, SAME).stored == {}
        assert capsys.readouterr().err == f"{path}: begun anew: another version of the program wrote it\n"


def test_a_torn_line_is_done_again_and_a_damaged_one_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "results.jsonl"
    job = Job(path, SAME)
    for key in "abc":
        job.add(key, {"files": {"x.txt": key}})
    job.close()
    whole = path.read_text()
    for size in range(whole.index("\n") + 1, len(whole)):
        path.write_text(whole[:size])
        found = Job(path, SAME)
        assert list(found.stored) == list("abc")[: whole[:size].count("\n") - 1]
        assert capsys.readouterr().err == ""
    found.add("c", 3)
    assert Job(path, SAME).stored == {"a": job.stored["a"], "b": job.stored["b"], "c": 3}
    path.write_text(whole.replace('"x.txt": "b"', '"x.txt": "B"'))
    assert list(Job(path, SAME).stored) == ["a"]
    line = f"{path}: damaged after 1 item; what follows is done again\n"
    assert capsys.readouterr().err == line


def test_results_with_line_separators_are_stored(tmp_path: Path) -> None:
    """All results after one with U+0085 or U+2028 were lost."""
    keys = ["one", "two\x85", "three\u2028", "\udcff", "five"]
    job = Job(tmp_path / "journal.jsonl", SAME)
    for key in keys:
        job.add(key, [key])
    job.close()
    assert Job(tmp_path / "journal.jsonl", SAME).stored == {key: [key] for key in keys}


def test_a_job_without_a_file_keeps_results_in_memory(tmp_path: Path) -> None:
    job = Job(None, SAME)
    job.add("a", 1)
    job.close()
    job.finish({})
    assert (job.stored, job.record) == ({"a": 1}, {})
    assert not list(tmp_path.iterdir())


def test_a_missing_entry_and_one_without_a_value_are_the_same() -> None:
    assert differences({"a": {"b": 1, "c": None}}, {"a": {"b": 1}, "d": None}) == {}
    assert differences({"a": None}, {"a": {"b": 1}}) == {"a.b": (None, 1)}


def test_the_key_is_that_of_all_that_the_results_depend_on() -> None:
    same = identity("decode", {"split": "dev"}, model="1f")
    assert Job(None, same).key == Job(None, identity("decode", {"split": "dev"}, model="1f")).key
    others: list[dict[str, Any]] = [
        identity("align", {"split": "dev"}, model="1f"),
        identity("decode", {"split": "test"}, model="1f"),
        identity("decode", {"split": "dev"}, model="2f"),
        identity("decode", {"split": "dev"}, model="1f", program="another"),
    ]
    assert len({Job(None, x).key for x in [same, *others]}) == 5


def write_shards(folder: Path) -> None:
    for index in (1, 2):
        shard = Job.in_folder(folder, SAME, Shard(index, 2))
        shard.add(str(index), [{}, None, {}])
        shard.finish({"shard": index})


def test_the_union_of_shards_has_their_results_and_the_first_record(tmp_path: Path) -> None:
    write_shards(tmp_path)
    union = read_shards(tmp_path)
    assert union.stored == {"1": [{}, None, {}], "2": [{}, None, {}]}
    assert union.record == {"shard": 1}
    assert union.identity == SAME


@pytest.mark.parametrize("number", range(1, 3))
def test_a_damaged_shard_is_one_line(number: int, tmp_path: Path) -> None:
    write_shards(tmp_path)
    path = tmp_path / "shards" / "2-of-2.jsonl"
    whole = path.read_bytes()
    for at in range(0, len(whole), 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ number]) + whole[at + 1 :])
        with pytest.raises(UserError, match=r"^[^\n]*2-of-2\.jsonl: expected [^\n]*$"):
            read_shards(tmp_path)
