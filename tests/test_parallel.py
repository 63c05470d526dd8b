"""Results of interrupted work on disk."""

from pathlib import Path

from asr.parallel import Journal


def test_results_with_line_separators_are_stored(tmp_path: Path) -> None:
    """All results after one with U+0085 or U+2028 were lost."""
    keys = ["one", "two\x85", "three\u2028", "\udcff", "five"]
    journal = Journal(tmp_path / "journal.jsonl", "1")
    for key in keys:
        journal.add(key, [key])
    journal.close()
    assert Journal(tmp_path / "journal.jsonl", "1").stored == {key: [key] for key in keys}
