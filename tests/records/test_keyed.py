import json
from pathlib import Path

import pytest

from asr.errors import UserError
from asr.records.keyed import KeyedRecord, differences
from asr.records.shards import read_shards


def test_results_are_found_while_they_are_stored_and_by_the_next_process(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    record = KeyedRecord(path, {"seed": 0})
    assert record.obtain("a", lambda: (1, 2)) == [1, 2]  # as it will be read back
    assert record.obtain("a", lambda: pytest.fail("computed twice")) == [1, 2]
    record.close()
    record.add("b", 3)  # after closing: the file is written anew, with all results
    record.close()
    again = KeyedRecord(path, {"seed": 0})
    assert again.positions(["b", "c", "a", "b"]) == {0: 3, 2: [1, 2], 3: 3}
    assert KeyedRecord(path, {"seed": 1}).stored == {}
    again.remove()
    again.remove()
    assert not path.exists()


def test_a_missing_entry_and_one_without_a_value_are_the_same() -> None:
    assert differences({"a": {"b": 1, "c": None}}, {"a": {"b": 1}, "d": None}) == {}
    assert differences({"a": None}, {"a": {"b": 1}}) == {"a.b": (None, 1)}


@pytest.mark.parametrize(
    "head",
    [
        '{"shard": [1, 1], "job": [1], "total": 0}',
        '{"shard": [1, 1], "job": null, "total": 0}',
        '{"shard": [1, 1], "job": {}, "total": "0"}',
        '{"shard": "1", "job": {}, "total": 0}',
        '{"shard": [1, 1], "job": {}}',
        "[1]",
        "null",
        "3",
    ],
)
def test_a_broken_shard_is_one_line(head: str, tmp_path: Path) -> None:
    path = tmp_path / "shards" / "1-of-1.jsonl"
    path.parent.mkdir()
    path.write_text(f'{head}\n["record", {{}}]\n')
    with pytest.raises(UserError, match=r"^[^\n]*1-of-1\.jsonl:1: [^\n]*expected [^\n]*$"):
        read_shards(tmp_path)
    good = '{"shard": [1, 1], "job": {"command": "align"}, "total": 1}'
    path.write_text(f'{good}\n["0", [3, null, {{}}]]\n["record", {{}}]\n')
    with pytest.raises(UserError, match=r"1-of-1\.jsonl:2: expected dict\[str, str\], found 3$"):
        read_shards(tmp_path)


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/x", "", ".", "a\0b"])
def test_a_shards_files_stay_in_the_folder(name: str, tmp_path: Path) -> None:
    path = tmp_path / "shards" / "1-of-1.jsonl"
    path.parent.mkdir()
    head = {"shard": [1, 1], "job": {"command": "transcribe"}, "total": 1}
    lines = [head, ["0", [{name: "text"}, None, {}]], ["record", {}]]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(UserError, match=r"1-of-1\.jsonl:2: expected a file in the folder, found "):
        read_shards(tmp_path)
