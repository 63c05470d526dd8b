"""Import of Kaldi, NeMo and lhotse manifests."""

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile
from asr_recipes.kaldi import prepare as kaldi
from asr_recipes.lhotse import prepare as lhotse_recipe
from asr_recipes.nemo import prepare as nemo
from lhotse import CutSet, load_manifest
from lhotse.kaldi import export_to_kaldi
from tone_corpora import save_cuts

from asr.data.manifest import read_cuts
from asr.errors import UserError
from asr.preparation.cuts import recording, utterance_cut
from tests.recipes.pipeline import assert_shards_join

RATE = 8000
RECIPES = {"kaldi": kaldi, "nemo": nemo, "lhotse": lhotse_recipe}


def write_wav(path: Path, seconds: float = 2.0, channels: int = 1) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(len(path.name)).standard_normal((round(seconds * RATE), channels))
    soundfile.write(path, 0.1 * noise, RATE)
    return path


def prepare(name, tmp_path, **options):
    recipe = RECIPES[name]
    recipe.prepare(recipe.Options(workers=1, **options), tmp_path / "data")
    return contents(tmp_path / "data")


def contents(folder):
    """Return text, speaker, file, start, duration and channel of each utterance, by split."""
    return {
        path.name.partition(".")[0]: {
            cut.id: (
                cut.supervisions[0].text,
                cut.supervisions[0].speaker,
                Path(cut.recording.sources[0].source).resolve(),
                cut.start,
                cut.duration,
                cut.channel,
            )
            for cut in read_cuts(path)
        }
        for path in sorted(folder.glob("*.cuts.jsonl.gz"))
    }


@pytest.fixture
def prepared(tmp_path):
    """A prepared folder: whole files in train, parts of one in dev."""
    folder = tmp_path / "original"
    whole = [
        utterance_cut(f"ann-{i}", recording(f"ann-{i}", wav, 2 * RATE, RATE), f"go {i} é", "ann")
        for i, wav in enumerate(write_wav(folder / "wav" / f"{i}.wav") for i in range(3))
    ]
    long = recording("talk", write_wav(folder / "wav" / "talk.wav", 9.0), 9 * RATE, RATE)
    parts = [
        utterance_cut(f"ben-{i}", long, f"part {i}", "ben", start_s=i + 0.125, duration_s=0.875)
        for i in range(3)
    ]
    save_cuts(whole, folder / "train.cuts.jsonl.gz")
    save_cuts(parts, folder / "dev.cuts.jsonl.gz")
    return folder


def to_toolkit(name, prepared, out):
    """Write the prepared folder in a toolkit's format: lhotse's and Kaldi's by lhotse, NeMo's by hand."""
    out.mkdir()
    for split in ("train", "dev"):
        cuts = CutSet.from_file(prepared / f"{split}.cuts.jsonl.gz").with_recording_path_prefix(prepared)
        if name == "lhotse":
            cuts.to_file(out / f"lhotse_cuts_{split}.jsonl.gz")
            continue
        if name == "kaldi":
            cuts = cuts.to_eager()
            export_to_kaldi(*cuts.decompose()[:2], out / split)
            continue
        lines = [
            {"audio_filepath": x.recording.sources[0].source, "duration": x.duration, "offset": x.start}
            | {"text": x.supervisions[0].text, "speaker": x.supervisions[0].speaker, "id": x.id}
            for x in cuts
        ]
        (out / f"{split}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize("name", RECIPES)  # shar is trained from as it is: tests/data/test_shar.py
def test_import_round_trip(prepared, tmp_path, name):
    """`docs/commands.md` names lhotse's own export."""
    to_toolkit(name, prepared, tmp_path / "out")
    assert prepare(name, tmp_path, source=str(tmp_path / "out")) == contents(prepared)


@pytest.mark.parametrize("name", RECIPES)
def test_shards_are_joined(prepared, tmp_path, name):
    to_toolkit(name, prepared, tmp_path / "out")
    assert_shards_join(tmp_path / "data", name, f"source={tmp_path / 'out'}", "tokenizers=[character]")


def test_two_utterances_are_enough(tmp_path):
    """One was held out for dev and the other for test, and training had none."""
    source = kaldi_directory(tmp_path / "kaldi", segments=None, utt2spk=None, text="r1 go\nr2 on\n")
    splits = prepare("kaldi", tmp_path, source=str(source))
    assert {name: len(found) for name, found in splits.items()} == {"train": 1, "dev": 1}


KALDI = {
    "wav.scp": "r1 {wav}/r1.wav\nr2 {wav}/r2.wav\n",
    "segments": "ann-1 r1 0.5 1.5\nann-2 r1 1.5 -1\nben-1 r2 0 2.05\n",
    "text": "ann-1 GO ON\nann-2 <NOISE> GO\nben-1 ON\n",
    "utt2spk": "ann-1 ann\nann-2 ann\nben-1 ben\n",
}


def kaldi_directory(folder, **changes):
    folder.mkdir(parents=True)
    for name in ("r1", "r2"):
        write_wav(folder.parent / "wav" / f"{name}.wav")
    for name, text in {**KALDI, **changes}.items():
        if text is not None:
            content = text.format(wav=folder.parent / "wav") if isinstance(text, str) else text
            (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def test_a_kaldi_directory(tmp_path):
    wav = tmp_path / "wav"
    source = kaldi_directory(tmp_path / "kaldi")
    splits = prepare("kaldi", tmp_path, source=str(source), dev_share=0, test_share=0)
    assert splits["train"] == {
        "ann-1": ("go on", "ann", wav / "r1.wav", 0.5, 1.0, 0),
        "ann-2": ("<NOISE> go", "ann", wav / "r1.wav", 1.5, 0.5, 0),
        "ben-1": ("on", "ben", wav / "r2.wav", 0.0, 2.0, 0),
    }


def test_a_kaldi_directory_without_segments_and_speakers(tmp_path):
    changes = {"segments": None, "utt2spk": None, "text": "r1 go\nr2 on\n"}
    source = kaldi_directory(tmp_path / "kaldi", **changes)
    splits = prepare("kaldi", tmp_path, source=str(source), dev_share=0, test_share=0, text="none")
    assert {name: found[:2] for name, found in splits["train"].items()} == {
        "r1": ("go", "r1"),
        "r2": ("on", "r2"),
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"wav.scp": "r1 sph2pipe -f wav r1.sph |\nr2 {wav}/r2.wav\n"},
            r"wav\.scp:1: .* commands in data are not run",
        ),
        ({"wav.scp": "r1 raw.ark:123\nr2 {wav}/r2.wav\n"}, r"wav\.scp:1: .* the archive offset"),
        ({"wav.scp": "r1\nr2 {wav}/r2.wav\n"}, r"wav\.scp:1: expected the audio file of r1, found none"),
        ({"wav.scp": "r1 {wav}/no.wav\nr2 {wav}/r2.wav\n"}, r"no\.wav: expected an audio file, found none"),
        ({"wav.scp": "r1 {wav}/r1.wav\n"}, r"segments:3: expected the recording r2 in .*wav\.scp"),
        ({"segments": "ann-1 r1 0.5\n"}, r"segments:1: expected `utterance recording start end`"),
        (
            {"segments": KALDI["segments"].replace(" 1.5\n", " 2.5\n")},
            r"segments:1: expected ann-1 to lie within the 2\.000 s of .*found 0\.500 s to 2\.500 s",
        ),
        ({"text": "ann-1 GO\nann-2 GO\n"}, r"segments:3: expected the transcript of ben-1 in .*text"),
        ({"text": KALDI["text"] + "zoe GO\n"}, r"text:4: expected zoe in .*segments, found none"),
        (
            {"text": KALDI["text"].replace(" GO ON", "")},
            r"text:1: expected a transcript of ann-1, found none",
        ),
        ({"text": KALDI["text"] + "ann-1 GO\n"}, r"text:4: expected distinct keys, found ann-1 again"),
        ({"text": b"ann-1 GO\nann-2 \xff\nben-1 X\n"}, r"text:2: expected utf-8 text, found the bytes ff"),
        ({"utt2spk": "ann-1 ann\nann-2 ann\n"}, r"utt2spk: expected the speaker of ben-1, found none"),
        ({"utt2spk": "ann-1 ann\nann-2\nben-1 ben\n"}, r"utt2spk: expected the speaker of ann-2, found"),
        ({"text": None}, r"kaldi/text: expected a text file, found none"),
    ],
)
def test_inconsistent_kaldi_directory(tmp_path, changes, message):
    source = kaldi_directory(tmp_path / "kaldi", **changes)
    with pytest.raises(UserError, match=message):
        prepare("kaldi", tmp_path, source=str(source), dev_share=0, test_share=0)


def test_nemo_lines(tmp_path):
    write_wav(tmp_path / "audio" / "a.wav")
    lines = [
        {"audio_filepath": "audio/a.wav", "duration": 1.99, "text": "whole file", "speaker": 7},
        {"audio_filepath": str(tmp_path / "audio/a.wav"), "offset": 0.5, "duration": 1, "text": "part"},
    ]
    (tmp_path / "train.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    splits = prepare("nemo", tmp_path, source=str(tmp_path / "train.json"), dev_share=0, test_share=0)
    wav = tmp_path / "audio" / "a.wav"
    assert splits["train"] == {
        "a": ("whole file", "7", wav, 0.0, 2.0, 0),
        "a-00000500": ("part", "a-00000500", wav, 0.5, 1.0, 0),
    }


@pytest.mark.parametrize(
    ("stated", "length_s"),
    [(2.0, 2.0), (1.9, 2.0), (2, 2.0), (1, 2.0), (0.5, 0.5), (0.25, 0.25), (None, 2.0), (2.05, 2.0)],
)
def test_a_duration_without_an_offset_is_the_whole_file_rounded_or_its_beginning(tmp_path, stated, length_s):
    """The duration was ignored: a line of 2 s had the audio of its whole file of 10 s."""
    write_wav(tmp_path / "a.wav")
    line = {"audio_filepath": "a.wav", "text": "go"} | ({} if stated is None else {"duration": stated})
    (tmp_path / "train.json").write_text(json.dumps(line) + "\n")
    splits = prepare("nemo", tmp_path, source=str(tmp_path / "train.json"), dev_share=0, test_share=0)
    assert splits["train"]["a"][3:5] == (0.0, length_s)


def test_a_stated_duration_beyond_the_file_is_refused(tmp_path):
    write_wav(tmp_path / "a.wav")
    (tmp_path / "train.json").write_text('{"audio_filepath": "a.wav", "text": "go", "duration": 3.5}\n')
    with pytest.raises(UserError, match=r"train\.json:1: expected a to lie within .*found 0\.000 s to 3\.5"):
        prepare("nemo", tmp_path, source=str(tmp_path / "train.json"), dev_share=0, test_share=0)


def test_nemo_splits_whose_names_begin_alike_are_kept_apart(tmp_path):
    """`test_clean` and `test_other` became one split."""
    names = ["train_1", "train_2", "validation_manifest", "test_clean", "test_other"]
    for i, name in enumerate(names):
        write_wav(tmp_path / f"{i}.wav")
        line = json.dumps({"audio_filepath": f"{i}.wav", "text": "go"})
        (tmp_path / f"{name}.json").write_text(line + "\n")
    splits = prepare("nemo", tmp_path, source=str(tmp_path))
    assert set(splits["train"]) == {"0", "1"}
    assert set(splits["dev"]) == {"2"}
    assert set(splits["test_clean"]) == {"3"}
    assert set(splits["test_other"]) == {"4"}


def test_nemo_ids_of_files_with_the_same_name(tmp_path):
    """Ids were the file names: `ann/1.wav` and `ben/1.wav` were the same utterance."""
    files = ["ann/1.wav", "ben/1.wav", "ben/1.flac", "ben/two words.wav"]
    for file in files:
        write_wav(tmp_path / file)
    for split, own in (("train", files[:3]), ("dev", files[3:])):
        lines = [json.dumps({"audio_filepath": file, "text": "go"}) + "\n" for file in own]
        (tmp_path / f"{split}.json").write_text("".join(lines))
    splits = prepare("nemo", tmp_path, source=str(tmp_path))
    assert set(splits["train"]) == {"ann-1.wav", "ben-1.wav", "ben-1.flac"}
    assert set(splits["dev"]) == {"ben-two_words.wav"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('[\n {"audio_filepath": "a.wav"}\n]', r"m\.json:1: .*one object per line"),
        ('{"text": "x"}', r"m\.json:1: expected an object with audio_filepath"),
        ('{"audio_filepath": "a.wav"}', r"m\.json:1: expected a transcript of a, found none"),
        ('{"audio_filepath": "a.wav", "text_filepath": "a.txt"}', "expected the transcript as text"),
        (
            '{"audio_filepath": "a.wav", "text": "x", "offset": 0, "duration": "y"}',
            "expected a number as duration, found 'y'",
        ),
        ('{"audio_filepath": "no.wav", "text": "x"}', r"no\.wav: expected an audio file, found none"),
    ],
)
def test_broken_nemo_lines(tmp_path, content, message):
    write_wav(tmp_path / "a.wav")
    (tmp_path / "m.json").write_text(content)
    with pytest.raises(UserError, match=message):
        prepare("nemo", tmp_path, source=str(tmp_path / "m.json"))


def test_lhotse_recordings_and_supervisions(prepared, tmp_path):
    pair = tmp_path / "pair"
    for split in ("train", "dev"):
        cuts = CutSet.from_cuts(read_cuts(prepared / f"{split}.cuts.jsonl.gz"))
        recordings, supervisions, _ = cuts.decompose()
        pair.mkdir(exist_ok=True)
        recordings.to_file(pair / f"toy_recordings_{split}.jsonl.gz")
        supervisions.to_file(pair / f"toy_supervisions_{split}.jsonl.gz")
    assert prepare("lhotse", tmp_path, source=str(pair)) == contents(prepared)
    (pair / "toy_supervisions_dev.jsonl.gz").unlink()
    with pytest.raises(UserError, match=r"toy_recordings_dev.*: expected its supervisions beside it"):
        prepare("lhotse", tmp_path, source=str(pair))


def test_no_lhotse_manifest_hides_another(prepared, tmp_path):
    folder = tmp_path / "manifests"
    folder.mkdir()
    cuts = CutSet.from_cuts(read_cuts(prepared / "train.cuts.jsonl.gz"))
    for name, part in {"one": cuts.subset(first=1), "two": cuts.subset(last=2)}.items():
        part.to_file(folder / f"{name}_cuts_train.jsonl.gz")
    CutSet.from_cuts(read_cuts(prepared / "dev.cuts.jsonl.gz")).to_file(folder / "dev.cuts.jsonl.gz")
    assert prepare("lhotse", tmp_path, source=str(folder)) == contents(prepared)
    (folder / "one_cuts_train.jsonl").write_text("")
    with pytest.raises(
        UserError, match=r"one_cuts_train.*: expected one manifest of this name, found one_cuts"
    ):
        prepare("lhotse", tmp_path, source=str(folder))


def test_unusable_lhotse_cuts(prepared, tmp_path):
    cuts = CutSet.from_cuts(read_cuts(prepared / "train.cuts.jsonl.gz"))
    for changed, message in [
        (cuts.perturb_speed(1.1), "expected unmodified audio in a file, found transforms"),
        (cuts.pad(3.0), "expected a MonoCut with a recording, found MixedCut"),
        ([cut.drop_supervisions() for cut in cuts], "expected a supervision, found none"),
    ]:
        CutSet.from_cuts(changed).to_file(tmp_path / "x_cuts_train.jsonl.gz")
        with pytest.raises(UserError, match=message):
            prepare("lhotse", tmp_path, source=str(tmp_path / "x_cuts_train.jsonl.gz"))
    (tmp_path / "x_cuts_train.jsonl.gz").write_bytes(b"no gzip")
    with pytest.raises(UserError, match="expected a whole gzip file, found a broken one"):
        prepare("lhotse", tmp_path, source=str(tmp_path / "x_cuts_train.jsonl.gz"))


@pytest.mark.parametrize("name", RECIPES)
def test_wrong_sources(name, tmp_path):
    (tmp_path / "empty").mkdir()
    cases = {
        "": "source= is needed",
        "nowhere": "source=nowhere: expected",
        str(tmp_path / "empty"): "found none",
    }
    for source, message in cases.items():
        with pytest.raises(UserError, match=message):
            prepare(name, tmp_path, source=source)


def test_lhotse_reads_a_prepared_folder(prepared, monkeypatch):
    """Audio in the folder has a relative path."""
    monkeypatch.chdir(prepared)
    assert load_manifest("dev.cuts.jsonl.gz")[0].load_audio().shape == (1, 7000)


def two_recordings(name: str, folder: Path) -> str:
    """Write a manifest of audio/a.wav and audio/b.wav, relative to the current folder."""
    files = {"a": "audio/a.wav", "b": "audio/b.wav"}
    if name == "kaldi":
        for file, values in {"wav.scp": files, "text": dict.fromkeys(files, "go")}.items():
            (folder / file).write_text("".join(f"{key} {value}\n" for key, value in values.items()))
        return str(folder)
    if name == "nemo":
        lines = [{"audio_filepath": f"../{file}", "text": "go"} for file in files.values()]
    else:
        sound = {"sampling_rate": RATE, "num_samples": 2 * RATE, "duration": 2.0, "channel_ids": [0]}
        lines = []
        for key, file in files.items():
            source = {"type": "file", "channels": [0], "source": file}
            words = [{"id": key, "recording_id": key, "start": 0.0, "duration": 2.0, "text": "go"}]
            cut = {"id": key, "start": 0.0, "duration": 2.0, "channel": 0, "supervisions": words}
            lines.append({**cut, "type": "MonoCut", "recording": {"id": key, "sources": [source], **sound}})
    path = folder / ("m.json" if name == "nemo" else "m.jsonl")
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


@pytest.mark.parametrize("name", RECIPES)
def test_audio_that_arrives_changes_or_goes_is_noticed(name, tmp_path, monkeypatch, capsys):
    """`nothing to do`: a file that was still being copied never got in, a replaced one kept its length."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "manifests").mkdir()
    source = two_recordings(name, tmp_path / "manifests")
    wav = write_wav(Path("audio/a.wav"))

    def again() -> tuple[bool, dict]:
        capsys.readouterr()
        found = prepare(
            name, tmp_path, source=source, split="train", allow_partial=["missing_audio"], tokenizers=[]
        )
        return "nothing to do" in capsys.readouterr().out, found["train"]

    assert set(again()[1]) == {"a"}
    assert again()[0]
    write_wav(Path("audio/b.wav"))
    assert set(again()[1]) == {"a", "b"}
    assert again()[0]
    wav.unlink()
    assert set(again()[1]) == {"b"}
    assert again()[0]
