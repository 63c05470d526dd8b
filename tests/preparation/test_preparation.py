import gzip
import json
import os
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import soundfile
from lhotse import MonoCut
from rich.console import Console

from asr import cli
from asr.config import option
from asr.data.facts import audio_facts
from asr.data.manifest import read_cuts
from asr.errors import UserError
from asr.files import file_digest, file_state, locked, write_bytes
from asr.preparation.cuts import recording, utterance_cut
from asr.preparation.options import KINDS, PreparationOptions
from asr.preparation.run import Preparation
from asr.text.lexicon import Lexicon
from asr.text.prepared import find_prepared
from asr.text.tokenizer import build_tokenizer

LEXICON = Lexicon({"go": [("G", "OW")], "on": [("AA", "N")]})


@dataclass
class Options(PreparationOptions):
    flavour: str = option("plain", help="anything", affects="result")


@pytest.fixture
def wav(tmp_path):
    path = tmp_path / "corpus" / "a.wav"
    path.parent.mkdir()
    soundfile.write(path, np.zeros(16000, dtype=np.float32), 16000)
    return path


@pytest.fixture
def start(tmp_path):
    """Return a function that starts a preparation; `.console.export_text()` returns its output."""

    def begin(**options):
        console = Console(record=True, width=300)
        return Preparation("toy", tmp_path / "data", Options(workers=1, **options), console=console)

    return begin


def cut(wav, name="u1", text="go on", speaker="ann", **place):
    return utterance_cut(name, recording("a", wav, 16000, 16000), text, speaker, **place)


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_finish_writes_all_outputs_and_a_summary(start, wav, tmp_path):
    run = start(flavour="salt")
    run.drop("u9", "too short", "go")
    train = [cut(wav), cut(wav, "u2", "go off <NOISE> off", "ben", start_s=0.25)]
    run.finish(
        {"train": train, "dev": [cut(wav, speaker="u1")]},
        lexicon=LEXICON,
        texts={"train": ["go on", "go off"]},
        sources=[wav],
        notes={"Licence": "Free."},
    )
    folder = tmp_path / "data"
    assert sorted(contents(folder)) == [
        "README.md",
        "dev.cuts.jsonl.gz",
        "excluded.tsv",
        "lexicon.txt",
        "lm/train.txt",
        "oov.tsv",
        "preparation.json",
        "tokenizers/phone.json",
        "train.cuts.jsonl.gz",
    ]
    cuts = read_cuts(folder / "train.cuts.jsonl.gz")
    assert [(c.id, c.start, c.duration, c.supervisions[0].text) for c in cuts] == [
        ("u1", 0.0, 1.0, "go on"),
        ("u2", 0.25, 0.75, "go off <NOISE> off"),
    ]
    assert Lexicon.load(folder / "lexicon.txt") == LEXICON
    assert (folder / "lm/train.txt").read_text() == "go on\ngo off\n"
    assert (folder / "oov.tsv").read_text() == "word\tcount\noff\t2\n"
    assert (folder / "excluded.tsv").read_text() == "utterance\treason\ttext\nu9\ttoo short\tgo\n"
    card = (folder / "README.md").read_text()
    assert """asr prepare toy 'tokenizers=["phone"]' flavour=salt""" in card
    assert "| train | 2 | 1.8 s | 2 | 6 | 2 (1 distinct) |" in card
    assert "| dev | 1 | 1 s | – | 2 | 0 (0 distinct) |" in card  # its own speaker: unknown
    assert "* 1 × too short" in card
    assert "## Licence\n\nFree." in card
    assert LEXICON.digest in card
    printed = run.console.export_text()
    assert "2 (1 distinct)" in printed
    assert "1 left out" in printed
    assert "1 × too short" in printed


def test_preparing_again_is_skipped_or_gives_the_same_bytes(start, wav, tmp_path):
    for _ in range(2):
        run = start()
        run.finish({"train": [cut(wav)]}, sources=[wav.parent])
        first = contents(tmp_path / "data")
    assert contents(tmp_path / "data") == first
    again = start()
    assert again.is_done([wav.parent])
    assert "nothing to do" in again.console.export_text()


@pytest.mark.parametrize("change", ["options", "corpus", "manifest", "sources"])
def test_changed_options_sources_or_outputs_are_prepared_again(start, wav, tmp_path, change):
    start().finish({"train": [cut(wav)]}, sources=[wav.parent])
    options = {"flavour": "salt"} if change == "options" else {}
    if change == "corpus":
        (wav.parent / "b.txt").touch()
    if change == "manifest":
        (tmp_path / "data/train.cuts.jsonl.gz").write_bytes(b"")
    assert not start(**options).is_done([wav] if change == "sources" else [wav.parent])


@pytest.mark.parametrize(
    "change", [lambda x: x.unlink(), lambda x: x.write_bytes(b"other"), lambda x: os.utime(x, (1, 1))]
)
def test_watched_files_that_change_are_read_again(start, wav, tmp_path, change):
    """Audio beside the corpus, which manifests name."""
    beside, missing = tmp_path / "beside.wav", tmp_path / "missing.wav"
    beside.write_bytes(b"audio")
    run = start()
    run.watch([str(beside), str(missing)])
    run.finish({"train": [cut(wav)]}, sources=[wav])
    assert start().is_done([wav])
    change(beside)
    again = start()
    assert not again.is_done([wav])
    assert "beside.wav has changed since the last preparation" in again.console.export_text()
    again.watch([str(beside), str(missing)])
    again.finish({"train": [cut(wav)]}, sources=[wav])
    missing.touch()
    assert not start().is_done([wav])


def test_the_corpus_is_no_output_folder(start, wav, tmp_path):
    """After all its work, it said `files changed while they were read`, every time."""
    (tmp_path / "data").mkdir()
    with pytest.raises(UserError, match="data: expected an output folder apart from the corpus, found the"):
        start().is_done([wav, tmp_path / "corpus" / ".." / "data"])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("options", "prepared before with flavour=plain (now salt)"),
        ("recipe", "prepared before by the recipe toy"),
        ("corpus", "the corpus or the program has changed since the last preparation"),
        ("output", "lexicon.txt has changed since the last preparation"),
        ("missing", "lexicon.txt is missing"),
        ("audio", "wav/a.wav has changed since the last preparation"),
        ("record", ""),
        ("nothing", "nothing to do"),
    ],
)
def test_the_reason_to_prepare_again_is_printed(start, wav, tmp_path, change, reason):
    """`asr prepare demo` with another seed replaced a corpus without a word."""
    folder = tmp_path / "data"
    write_bytes(b"made", folder / "wav/a.wav")
    audio = {"wav/a.wav": file_digest(folder / "wav/a.wav")}
    start().finish({"train": [cut(wav)]}, lexicon=LEXICON, sources=[wav], audio=audio)
    if change == "corpus":
        os.utime(wav, ns=(0, 0))
    if change == "output":
        (folder / "lexicon.txt").write_text("go G\n")
    if change == "missing":
        (folder / "lexicon.txt").unlink()
    if change == "audio":
        (folder / "wav/a.wav").write_bytes(b"mad")
    if change == "record":
        (folder / "preparation.json").write_text("[" * 100_000)
    run = start(flavour="salt") if change == "options" else start()
    run.recipe = "other" if change == "recipe" else "toy"
    assert run.is_done([wav]) == (change == "nothing")
    assert reason in run.console.export_text()


def test_a_killed_replacement_is_cleaned_up_by_the_next_run(start, wav, tmp_path, monkeypatch):
    """Drafts lay beside the outputs, and files put in place by a killed run were never removed."""
    start().finish({"train": [cut(wav)], "old": [cut(wav)]}, lexicon=LEXICON)
    replace = Path.replace

    def killed(path, target):
        if path.name == "train.cuts.jsonl.gz":
            raise KeyboardInterrupt
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        start(flavour="salt").finish({"train": [cut(wav)], "dev": [cut(wav)]}, texts={"own": ["go"]})
    monkeypatch.undo()
    start().finish({"train": [cut(wav)]})
    names = sorted(contents(tmp_path / "data"))
    assert names == ["README.md", "excluded.tsv", "preparation.json", "train.cuts.jsonl.gz"]
    assert not (tmp_path / "data/lm").exists()


@pytest.mark.parametrize("name", ["../own.txt", "{}/own.txt"])
def test_a_record_removes_no_file_outside_its_folder(start, wav, tmp_path, name):
    """A record with an absolute path removed that file."""
    (tmp_path / "own.txt").touch()
    start().finish({"train": [cut(wav)]})
    path = tmp_path / "data/preparation.json"
    record = json.loads(path.read_text())
    record["outputs"][name.format(tmp_path)] = ""
    path.write_text(json.dumps(record))
    start().finish({"train": [cut(wav)]})
    assert (tmp_path / "own.txt").exists()


def test_a_corpus_that_changes_meanwhile_is_not_prepared(start, wav, tmp_path):
    """The manifests described the old file."""
    run = start()
    assert not run.is_done([wav.parent])
    os.utime(wav, ns=(0, 0))
    with pytest.raises(UserError, match="corpus: files changed while they were read: run the command again"):
        run.finish({"train": [cut(wav)]}, sources=[wav.parent])
    assert contents(tmp_path / "data") == {}


def test_the_output_folder_may_lie_in_the_corpus(start, wav, tmp_path):
    for done in (False, True):
        run = start()
        assert run.is_done([tmp_path]) == done
        run.finish({"train": [cut(wav)]}, sources=[tmp_path])


def test_a_second_preparation_of_a_folder_gets_one_line(tmp_path, capsys):
    with locked(tmp_path / "out", "asr prepare"):
        assert cli.main(["prepare", "folder", f"audio={tmp_path}", f"folder={tmp_path / 'out'}"]) == 1
    assert "another asr prepare is running in this folder" in capsys.readouterr().err


def test_damaged_audio_that_was_fetched_says_how_to_fetch_it_again(start, tmp_path):
    run = start()
    fetched = tmp_path / "data/corpus"
    run.is_done([fetched])
    run.problem(f"{fetched}/a.wav: expected 100 bytes, found 50")
    with pytest.raises(UserError, match=rf"; delete {fetched} to fetch it again"):
        run.check()


def test_outputs_of_a_previous_run_are_removed_and_other_files_kept(start, wav, tmp_path):
    start().finish({"train": [cut(wav)], "old": [cut(wav)]}, lexicon=LEXICON)
    (tmp_path / "data/lm").mkdir()
    (tmp_path / "data/lm/own.txt").touch()
    start().finish({"train": [cut(wav)]})
    names = sorted(contents(tmp_path / "data"))
    assert names == ["README.md", "excluded.tsv", "lm/own.txt", "preparation.json", "train.cuts.jsonl.gz"]


def test_the_user_s_own_files_are_not_overwritten(start, wav, tmp_path):
    """With folder=., a lexicon beside the recordings was replaced by that of the corpus."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data/lexicon.txt").write_text("hello HH AH L OW\n")
    with pytest.raises(UserError, match=r"data/lexicon.txt: expected no file, .*folder=…"):
        start().finish({"train": [cut(wav)]}, lexicon=LEXICON)
    assert contents(tmp_path / "data").keys() == {"lexicon.txt"}
    assert (tmp_path / "data/lexicon.txt").read_text() == "hello HH AH L OW\n"


def test_a_readme_that_is_not_a_data_card_is_not_overwritten(start, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/README.md").write_text("My thesis\n")
    with pytest.raises(UserError, match=r"data/README.md: expected a data card or no file.*folder=…"):
        start()


@pytest.mark.parametrize(
    ("spoil", "kind", "message"),
    [
        (
            lambda wav: [cut(wav), cut(wav)],
            "duplicates",
            "utterance 'u1': expected ids to be distinct",
        ),
        (lambda wav: [cut(wav, text=" ")], "missing_text", "'u1': expected a transcript, found none"),
        (lambda wav: [cut(wav, duration_s=2.0)], "times", "recording of 1.0 s, found 0.0 s \\+ 2.0 s"),
        (
            lambda wav: [cut(wav.with_name("b.wav"))],
            "missing_audio",
            "expected an audio file, found none",
        ),
        (lambda wav: [], "missing_parts", "split train: expected utterances, found none"),
    ],
)
def test_bad_cuts_are_rejected_and_existing_output_is_kept(start, wav, tmp_path, spoil, kind, message):
    start().finish({"train": [cut(wav)]})
    before = contents(tmp_path / "data")
    run = start()
    with pytest.raises(UserError, match=message) as error:
        run.finish({"train": spoil(wav), "dev": [cut(wav)]}, lexicon=LEXICON)
    after = contents(tmp_path / "data")
    after.pop("problems.tsv", None)
    assert after == before
    assert re.search(rf"allow_partial=\S*{kind}\S* leaves such parts out", str(error.value))
    assert "\n" not in str(error.value)


def test_several_problems_are_shown_counted_and_listed(start, tmp_path):
    run = start()
    for number in range(12):
        run.problem(f"file{number}.wav: expected audio,\nfound none")
    run.expect("index si84", 7138, 7137)
    with pytest.raises(UserError, match=r"^13 problems .12 × .*, 1 × counts., the first: file0.wav"):
        run.check()
    printed = run.console.export_text()
    assert "file4.wav" in printed
    assert "file5.wav" not in printed
    assert "… and 7 more × damaged_text" in printed
    assert "* index si84: expected 7138, found 7137" in printed  # ten of another kind hid it
    listed = (tmp_path / "data/problems.tsv").read_text().splitlines()
    assert listed[0] == "kind\tproblem"
    assert listed[-1] == "counts\tindex si84: expected 7138, found 7137"
    assert len(listed) == 14


def test_allow_partial_skips_and_lists_problems(start, wav, tmp_path):
    run = start(allow_partial=["counts", "duplicates"])
    run.expect("index", 3, 2)
    run.check()
    run.finish({"train": [cut(wav), cut(wav)]}, sources=[wav])
    assert len(read_cuts(tmp_path / "data/train.cuts.jsonl.gz")) == 1
    problems = (tmp_path / "data/problems.tsv").read_text()
    assert problems.startswith("kind\tproblem\ncounts\tindex: expected 3, found 2\nduplicates\t")
    assert "expected ids to be distinct" in problems
    assert "accepted 1 × duplicates, 1 × counts, listed in" in run.console.export_text()
    assert "* 1 × counts: numbers of files, " in (tmp_path / "data/README.md").read_text()
    again = start(allow_partial=["counts", "times", "duplicates"])
    assert again.is_done([wav])
    assert "accepted 1 × duplicates, 1 × counts" in again.console.export_text()
    assert not start(allow_partial=["counts"]).is_done([wav])


def test_problems_of_other_kinds_are_not_accepted(start, wav):
    """`allow_partial` was a switch: accepting one utterance with unknown markup hid truncated files."""
    run = start(allow_partial=["damaged_text"])
    run.problem("a.dot:1: unknown markup")
    run.check()
    wav.write_bytes(wav.read_bytes()[:-100])
    assert run.map(audio_facts, [str(wav)], "audio") == [None]
    with pytest.raises(UserError, match=r"file\?\) \(allow_partial=truncated_audio,damaged_text leaves"):
        run.check()


@pytest.mark.parametrize("value", ["true", "[missing_audio,shorts]"])
def test_unknown_kinds_of_problems_are_refused(value, tmp_path, capsys):
    arguments = ["prepare", "librispeech", f"corpus={tmp_path}", f"allow_partial={value}"]
    assert cli.main(arguments) == 1
    found = capsys.readouterr().err
    assert "allow_partial" in found
    if value != "true":
        assert f"expected one of {', '.join(KINDS)}" in found.replace("\n", " ")


SENTENCES = ["go on and on", "an odd end", "no gain", "<NOISE> on and off", "a good deed"]


@pytest.mark.parametrize("lexicon", [LEXICON, None])
def test_tokenizers_equal_those_built_for_training(start, wav, tmp_path, lexicon):
    run = start(tokenizers=["phone", "character", "sentencepiece-14", "sentencepiece-9000"])
    cuts = [cut(wav, f"u{i}", text) for i, text in enumerate(SENTENCES)]
    run.finish({"si": cuts, "dev": [cut(wav, text="quiz")]}, lexicon=lexicon, train="si")
    written = {path.name for path in (tmp_path / "data/tokenizers").iterdir()}
    expected = {"character.json", "sentencepiece-14.json", "sentencepiece-14.model"}
    assert written == expected | ({"phone.json"} if lexicon else set())
    card, printed = (tmp_path / "data/README.md").read_text(), run.console.export_text()
    for name, kind in {
        "phone": "phone",
        "character": "character",
        "sentencepiece-14": "sentencepiece",
    }.items():
        if kind == "phone" and not lexicon:
            assert "| phone | none | there is no lexicon |" in card
            continue
        made = build_tokenizer(kind, SENTENCES, lexicon, 14)
        found = find_prepared(tmp_path / "data", kind, 14, SENTENCES, lexicon)
        assert found is not None
        assert found.state() == made.state()
        assert f"| {name} | {len(made)} | `{made.digest}` |" in card
        assert f"{name} ({len(made)} symbols)" in printed
    assert "| sentencepiece-9000 | none | pieces=9000: sentencepiece can't learn that many" in card
    assert "no tokenizer sentencepiece-9000: pieces=9000" in printed


def test_requested_tokenizers_replace_previous_ones(start, wav, tmp_path):
    start(tokenizers=["character"]).finish({"train": [cut(wav)]}, sources=[wav])
    again = start(tokenizers=["phone"])
    assert not again.is_done([wav])
    again.finish({"train": [cut(wav)]}, lexicon=LEXICON, sources=[wav])
    assert [path.name for path in (tmp_path / "data/tokenizers").iterdir()] == ["phone.json"]
    assert start(tokenizers=["phone"]).is_done([wav])
    (tmp_path / "data/tokenizers/phone.json").unlink()
    assert not start(tokenizers=["phone"]).is_done([wav])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sentencpiece-500", "there is no 'sentencpiece-500'.*sentencepiece"),
        (
            "sentencepiece",
            "expected sentencepiece-500, with the number of pieces, at most 1,000,000, found sentencepiece",
        ),
        ("sentencepiece-x", "expected sentencepiece-500"),
        ("sentencepiece-99999999999", "pieces, at most 1,000,000, found sentencepiece-99999999999$"),
        ("phone-40", "expected phone, found phone-40"),
    ],
)
def test_an_unknown_tokenizer_is_rejected_before_any_work(start, name, message):
    with pytest.raises(UserError, match=message):
        start(tokenizers=["phone", name])


def double(number):
    if number == 13:
        raise UserError("13: unlucky")
    return (number, 2 * number)


@pytest.mark.parametrize("workers", [1, 2])
def test_map_keeps_the_order_and_collects_errors(tmp_path, workers):
    run = Preparation("toy", tmp_path, Options(workers=workers), console=Console(quiet=True))
    results = run.map(double, range(400), "doubling")
    assert results == [None if n == 13 else (n, 2 * n) for n in range(400)]
    assert run.problems == [("damaged_audio", "13: unlucky")]


def test_a_function_with_some_arguments_given_is_mapped(start):
    """It has no name of its own, which only keys need: the prompts could not be prepared."""
    assert start().map(partial(pow, 2), [3, 4], "powers") == [8, 16]


def test_an_interrupted_map_resumes(start, wav, tmp_path):
    calls = []

    def work(number):
        calls.append(number)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return [number, {"text": "ä"}]

    with pytest.raises(KeyboardInterrupt):
        start().map(work, [1, 2, 3, 4, 5], "work", key=str)
    run = start()
    assert run.map(work, [1, 2, 3, 4, 5], "work", key=str) == [[n, {"text": "ä"}] for n in range(1, 6)]
    assert calls == [1, 2, 3, 4, 4, 5]
    assert "work: reusing 3 of 5 results from an interrupted run" in run.console.export_text()
    run.finish({"train": [cut(wav)]})
    assert not (tmp_path / "data/.unfinished").exists()


def test_file_state_changes_with_size_and_modification_time(tmp_path):
    path, link = tmp_path / "a.txt", tmp_path / "link"
    path.write_text("a")
    os.utime(path, ns=(0, 0))
    states = [file_state(path)]
    path.write_text("ab")
    os.utime(path, ns=(0, 0))
    states.append(file_state(path))
    os.utime(path, ns=(0, 1))
    states.append(file_state(path))
    assert states == [f"{path} 1 0", f"{path} 2 0", f"{path} 2 1"]
    link.symlink_to(tmp_path / "nothing")
    assert file_state(link) == str(link)


def test_a_truncated_journal_loses_only_its_last_line(start, tmp_path):
    calls = []

    def work(number):
        calls.append(number)
        return number

    start().map(work, [1, 2, 3], "work", key=str)
    journal = tmp_path / "data/.unfinished/items.jsonl"
    journal.write_bytes(journal.read_bytes()[:-3])
    assert start().map(work, [1, 2, 3], "work", key=str) == [1, 2, 3]
    assert calls == [1, 2, 3, 3]


def test_manifests_equal_lhotse_serialisation(start, wav, tmp_path):
    """The fast writer and `MonoCut.to_dict` give the same bytes, custom fields included."""
    plain, shared = cut(wav), recording("a", wav, 16000, 16000, channels=2)
    rich = cut(wav, "u2")
    rich.supervisions[0].custom = {"dialect": "north"}
    sides = [utterance_cut(f"s{c}", shared, "go", "ann", channel=c, start_s=0.1) for c in (0, 1)]
    cuts = [plain, rich, *sides]
    start().finish({"train": cuts})
    lines = gzip.decompress((tmp_path / "data/train.cuts.jsonl.gz").read_bytes()).decode().splitlines()
    assert [json.loads(line) for line in lines] == [c.to_dict() for c in cuts]
    assert lines[0] == json.dumps(plain.to_dict())
    assert [MonoCut.from_dict(c.to_dict()) for c in cuts] == list(
        read_cuts(tmp_path / "data/train.cuts.jsonl.gz")
    )


def test_the_recipes_are_listed(capsys):
    assert cli.main(["prepare", "--help"]) == 0
    printed = capsys.readouterr().out
    assert "librispeech" in printed
    assert "your own" in printed.lower()
    assert "copy" not in printed  # nothing to prepare
    assert cli.main(["prepare", "librispeech", "--help"]) == 0
    assert "allow_partial" in capsys.readouterr().out
    assert cli.main(["prepare"]) == 1
    assert "takes one recipe" in capsys.readouterr().err
