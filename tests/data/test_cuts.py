import copy
import itertools
import json
import shutil
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from lhotse import CutSet
from tone_corpora import save_cuts

from asr.data import entries
from asr.data.cuts import BLOCK, Cuts, Manifest, PackedLines
from asr.data.entries import check_entry
from asr.data.lines import manifest_entries
from asr.data.manifest import read_cuts
from asr.errors import UserError
from tests.data.cut_oracle import is_accepted


@pytest.mark.parametrize("count", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5])
def test_packed_lines_come_back_in_any_order(count: int) -> None:
    expected = [f"{i} ö" * (i % 3) for i in range(count)]
    lines = PackedLines()
    for line in expected:
        lines.append(line)
    assert len(lines) == count
    order = np.random.default_rng(0).permutation(count).tolist()
    assert [lines[i] for i in order] == [expected[i] for i in order]


def test_cuts_are_those_that_lhotse_reads(tone_corpus: Path) -> None:
    path = tone_corpus / "train.cuts.jsonl.gz"
    expected = [cut.with_recording_path_prefix(tone_corpus) for cut in CutSet.from_file(path)]
    cuts = read_cuts(path)
    assert list(cuts) == expected
    assert [cuts[i] for i in reversed(range(len(cuts)))] == expected[::-1]
    assert cuts[-1] == expected[-1]
    assert cuts.durations_s.tolist() == [cut.duration for cut in expected]
    assert list(cuts.texts) == list(cuts.texts) == [cut.supervisions[0].text for cut in expected]
    assert list(cuts.ids()) == [cut.id for cut in expected]


def test_selected_and_joined_cuts_share_their_lines(tone_corpus: Path) -> None:
    train, dev = (read_cuts(tone_corpus / f"{split}.cuts.jsonl.gz") for split in ("train", "dev"))
    joined = Cuts.joined([train.select([5, 1]), dev[:2], train[3:4]])
    assert list(joined) == [train[5], train[1], dev[0], dev[1], train[3]]
    assert list(joined.select([4, 2])) == [train[3], dev[0]]
    assert joined.durations_s.tolist() == [cut.duration for cut in joined]
    assert list(joined.texts) == [cut.supervisions[0].text for cut in joined]
    words = [word for cut in joined for word in (cut.supervisions[0].text or "").split()]
    assert joined.texts.counts() == Counter(words)
    assert joined.select([1]).texts.counts() == Counter((train[1].supervisions[0].text or "").split())


def test_recordings_of_two_manifests_are_kept_apart(tone_corpus: Path, tmp_path: Path) -> None:
    several = []
    for name in ("one", "two"):
        shutil.copytree(tone_corpus, tmp_path / name)
        several.append(read_cuts(tmp_path / name / "train.cuts.jsonl.gz")[:1])
    files = [Path(cut.recording.sources[0].source) for cut in Cuts.joined(several)]
    assert [file.relative_to(tmp_path).parts[0] for file in files] == ["one", "two"]


def test_neighbours_of_one_recording_share_the_object(tone_corpus: Path, tmp_path: Path) -> None:
    cut = read_cuts(tone_corpus / "train.cuts.jsonl.gz")[0]
    halves = [cut.truncate(duration=0.1), cut.truncate(offset=0.1)]
    save_cuts([part.with_id(f"u{i}") for i, part in enumerate(halves)], tmp_path / "x.cuts.jsonl.gz")
    first, second = read_cuts(tmp_path / "x.cuts.jsonl.gz")
    assert first.recording is second.recording


def test_ordinary_entries_are_checked_without_lhotse(
    tone_corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every cut of a large corpus became three objects of lhotse, only to be checked."""
    monkeypatch.setattr(entries, "parse_cut", None)
    assert len(read_cuts(tone_corpus / "train.cuts.jsonl.gz")) > 0


def test_a_cut_takes_little_memory(tone_corpus: Path) -> None:
    """With three objects of lhotse, it took more than 4 kB."""
    path = tone_corpus / "train.cuts.jsonl.gz"
    entries = list(manifest_entries(path))
    part = Manifest(path.parent)
    for number, entry in zip(range(10_000), itertools.cycle(entries), strict=False):
        entry["id"] = f"{number}"
        part.append(json.dumps(entry), entry)
    transcripts = part.transcripts.numbers, part.transcripts.ends
    columns = (part.lines._packed, part.lines._ends, *transcripts, part.durations_s)
    assert sum(map(sys.getsizeof, columns)) < 200 * 10_000


ODD = [None, "", " ", "x\n", "\x1b", "\u2028", True, -1, 0, 1, 1.5, 10**400, float("nan"), float("inf")]
ODD += [[], [0], [True], {}, {"type": "command"}, "file", "url"]
ODD += ["pipe:touch planted", "/", "missing.wav", "../wav"]
EXTRA = ["custom", "features", "transforms", "video", "alignment", "sources", "storage_path", "type", "x"]


def places(entry: object, path: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    """Return the paths of all values in an entry."""
    if isinstance(entry, dict):
        items = list(entry.items())
    else:
        items = list(enumerate(entry)) if isinstance(entry, list) else []
    return [path, *(place for key, value in items for place in places(value, (*path, key)))]


def test_the_check_accepts_what_lhotse_s_objects_would_and_nothing_else(tone_corpus: Path) -> None:
    """Each value is replaced by odd ones, each object gets more fields, and loses each of its own."""
    [original] = itertools.islice(manifest_entries(tone_corpus / "train.cuts.jsonl.gz"), 1)
    accepted = refused = 0
    for place in places(original)[1:]:
        changes = [("replace", value) for value in ODD] + [("add", key) for key in EXTRA] + [("remove", None)]
        for kind, value in changes:
            entry = copy.deepcopy(original)
            *outer, last = place
            holder: object = entry
            for key in outer:
                holder = holder[key]  # type: ignore[index]
            if kind == "replace":
                holder[last] = copy.deepcopy(value)  # type: ignore[index]
            elif kind == "remove":
                del holder[last]  # type: ignore[attr-defined]
            elif isinstance(holder, dict):
                holder[str(value)] = {"sources": ["x"]}
            if not isinstance(entry.get("id"), str):  # refused before
                continue
            expected = is_accepted(copy.deepcopy(entry), tone_corpus)
            try:
                check_entry(entry, "", tone_corpus, set())
                accepted += 1
                assert expected, (place, kind, value)
            except UserError:
                refused += 1
                assert not expected, (place, kind, value)
    assert accepted > 30
    assert refused > 500
    with pytest.raises(UserError):
        check_entry({"id": "x"}, "", tone_corpus, set())
