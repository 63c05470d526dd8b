"""Import and export of Kaldi, NeMo and lhotse manifests."""

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile
from asr_recipes.kaldi import prepare as kaldi
from asr_recipes.lhotse import prepare as lhotse_recipe
from asr_recipes.nemo import prepare as nemo
from lhotse import CutSet, load_manifest
from lhotse.kaldi import load_kaldi_data_dir

from asr import cli
from asr.data.interchange import FORMATS
from asr.data.manifest import load_cuts, save_cuts
from asr.errors import UserError
from asr.preparation import recording, utterance_cut

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
            for cut in load_cuts(path)
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


@pytest.mark.parametrize("name", FORMATS)
def test_export_and_import_round_trip(prepared, tmp_path, name, capsys):
    out = tmp_path / "out"
    assert cli.main(["export-data", str(prepared), f"to={name}", f"out={out}"]) == 0
    assert "3 utterances" in capsys.readouterr().out
    assert prepare(name, tmp_path, source=str(out)) == contents(prepared)


def test_kaldi_files(prepared, tmp_path):
    FORMATS["kaldi"](load_cuts(prepared / "dev.cuts.jsonl.gz"), tmp_path, "dev")
    directory = tmp_path / "dev"
    assert (directory / "text").read_text() == "ben-0 part 0\nben-1 part 1\nben-2 part 2\n"
    assert (directory / "segments").read_text().splitlines()[1] == "ben-1 talk 1.125 2.0"
    assert (directory / "spk2utt").read_text() == "ben ben-0 ben-1 ben-2\n"
    recordings, supervisions, _ = load_kaldi_data_dir(directory, RATE)
    assert len(recordings) == 1
    assert [s.start for s in supervisions] == [0.125, 1.125, 2.125]


def test_kaldi_ids_get_a_speaker_prefix_and_have_no_spaces(prepared, tmp_path):
    cuts = list(load_cuts(prepared / "dev.cuts.jsonl.gz"))
    cuts[0].supervisions[0].speaker = "zoe"
    FORMATS["kaldi"](CutSet.from_cuts(cuts), tmp_path, "dev")
    assert (tmp_path / "dev" / "utt2spk").read_text() == "ben-ben-1 ben\nben-ben-2 ben\nzoe-ben-0 zoe\n"
    cuts[0].supervisions[0].speaker = "zo e"
    with pytest.raises(UserError, match="utterance ben-0: Kaldi ids must not contain spaces, found 'zo e'"):
        FORMATS["kaldi"](CutSet.from_cuts(cuts), tmp_path, "dev")


def test_nemo_cannot_name_a_channel(tmp_path):
    wav = write_wav(tmp_path / "two.wav", channels=2)
    cut = utterance_cut("u", recording("r", wav, 2 * RATE, RATE, 2), "go", "ann")
    with pytest.raises(
        UserError, match=r"utterance u: NeMo manifests need one-channel audio, found 2 channels in .*two\.wav"
    ):
        FORMATS["nemo"](CutSet.from_cuts([cut]), tmp_path, "train")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{prepared}", "to=kald", "out=x"], "to=kald: expected a format (did you mean 'kaldi'?)"),
        (["{prepared}", "to=kaldi"], "out= is needed"),
        (["to=kaldi", "out=x"], "takes prepared folders or manifests"),
        (["{prepared}/wav", "to=kaldi", "out=x"], "expected manifests (*.cuts.jsonl.gz), found none"),
        (["{prepared}", "{prepared}", "to=kaldi", "out=x"], "expected each split once, found dev"),
    ],
)
def test_export_errors(prepared, words, message, capsys):
    assert cli.main(["export-data", *(word.format(prepared=prepared) for word in words)]) == 1
    assert message in capsys.readouterr().err


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
        ({"wav.scp": "r1 sph2pipe -f wav r1.sph |\nr2 {wav}/r2.wav\n"}, r"wav\.scp:1: .* pipes are not run"),
        ({"wav.scp": "r1 raw.ark:123\nr2 {wav}/r2.wav\n"}, r"wav\.scp:1: .* the archive offset"),
        ({"wav.scp": "r1\nr2 {wav}/r2.wav\n"}, r"wav\.scp:1: expected the audio file of r1, found none"),
        ({"wav.scp": "r1 {wav}/no.wav\nr2 {wav}/r2.wav\n"}, r"no\.wav: expected an audio file, found none"),
        ({"wav.scp": "r1 {wav}/r1.wav\n"}, r"segments:3: expected the recording r2 in .*wav\.scp"),
        ({"segments": "ann-1 r1 0.5\n"}, r"segments:1: expected `utterance recording start end`"),
        (
            {"segments": KALDI["segments"].replace(" 1.5\n", " 2.5\n")},
            r"to lie within the 2\.000 s of .*found 0\.500 s to 2\.500 s",
        ),
        ({"text": "ann-1 GO\nann-2 GO\n"}, r"segments:3: expected the transcript of ben-1 in .*text"),
        ({"text": KALDI["text"] + "zoe GO\n"}, r"text:4: expected zoe in .*segments, found none"),
        (
            {"text": KALDI["text"].replace(" GO ON", "")},
            r"text:1: expected a transcript of ann-1, found none",
        ),
        ({"text": KALDI["text"] + "ann-1 GO\n"}, r"text:4: expected distinct keys, found ann-1 again"),
        ({"text": b"ann-1 GO\nann-2 \xff\nben-1 X\n"}, r"text:2: expected utf-8 text, found the bytes ff"),
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
        cuts = load_cuts(prepared / f"{split}.cuts.jsonl.gz")
        recordings, supervisions, _ = cuts.decompose()
        pair.mkdir(exist_ok=True)
        recordings.to_file(pair / f"toy_recordings_{split}.jsonl.gz")
        supervisions.to_file(pair / f"toy_supervisions_{split}.jsonl.gz")
    assert prepare("lhotse", tmp_path, source=str(pair)) == contents(prepared)
    (pair / "toy_supervisions_dev.jsonl.gz").unlink()
    with pytest.raises(UserError, match=r"toy_recordings_dev.*: expected its supervisions beside it"):
        prepare("lhotse", tmp_path, source=str(pair))


def test_unusable_lhotse_cuts(prepared, tmp_path):
    cuts = load_cuts(prepared / "train.cuts.jsonl.gz")
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


def test_lhotse_reads_the_export(prepared, tmp_path):
    path = FORMATS["lhotse"](load_cuts(prepared / "dev.cuts.jsonl.gz"), tmp_path, "dev")
    assert load_manifest(path)[0].load_audio().shape == (1, 7000)
