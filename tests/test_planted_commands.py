"""No command runs what a manifest says."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import soundfile
from asr_recipes.demo import long

from asr.cli import main
from asr.errors import UserError

PLANT = "touch planted"


def planted(corpus: Path, split: str) -> None:
    """Replace the audio of the last utterance of a split by a command that creates the file `planted`."""
    path = corpus / f"{split}.cuts.jsonl.gz"
    *others, last = gzip.decompress(path.read_bytes()).splitlines()
    cut = json.loads(last)
    wav = corpus / cut["recording"]["sources"][0]["source"]
    cut["recording"]["sources"][0] |= {"type": "command", "source": f"{PLANT}; cat {wav}"}
    path.write_bytes(gzip.compress(b"\n".join([*others, json.dumps(cut).encode()]) + b"\n"))


TRAIN = ["model=tiny", "data.workers=0", "trainer.max_steps=2", "trainer.accelerator=cpu"]
COMMANDS = {
    "train": ["train", "data.train=[{data}]", "run=run", *TRAIN],
    "dev": ["train", "data.train=[{other}]", "data.dev={data}", "run=run", *TRAIN],
    "decode": ["decode", "{run}", "data={data}", "output=out"],
    "decode a manifest": ["decode", "{run}", "data={data}/test.cuts.jsonl.gz", "output=out"],
    "align": ["align", "{run}", "data={data}", "output=out"],
    "compare": [
        "compare",
        "recipe=custom",
        "data.train=[{data}]",
        "attentions=[full]",
        "steps=2",
        "model=tiny",
    ],
    "advise": ["advise", "{data}", "model=tiny"],
    "lm train": ["lm", "train", "text={data}", "out=a.arpa"],
    "lm score": ["lm", "score", "text={data}", "lm=a.arpa"],
    "prepare lhotse": ["prepare", "lhotse", "source={data}/train.cuts.jsonl.gz", "folder=out"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_in_a_manifest_is_refused_and_not_run(
    name: str,
    trained: Path,
    corpus_maker: Callable[..., Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`asr decode` of a manifest with a source of type `command` ran that command in a shell."""
    monkeypatch.chdir(tmp_path)
    data, other = corpus_maker("bad"), corpus_maker("good")
    for split in ("train", "dev", "test"):
        planted(data, split)
    arguments = [x.format(data=data, other=other, run=trained) for x in COMMANDS[name]]
    assert main(arguments) == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("asr: ")]
    assert len(lines) == 1
    assert "expected audio in a file, found a source of type 'command'" in lines[0]
    assert not (tmp_path / "planted").exists()


def test_long_recordings_are_not_made_of_commands(
    trained: Path, corpus_maker: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    planted(data := corpus_maker(), "test")
    with pytest.raises(UserError, match="found a source of type 'command'"):
        long.run(long.Options(model=str(trained), data=str(data)))
    assert not (tmp_path / "planted").exists()


def test_kaldi_pipes_are_not_run(tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "kaldi"
    folder.mkdir()
    for number, source in enumerate(
        [f"{PLANT} |", f"| {PLANT}", f"$({PLANT})", f"`{PLANT}`.wav", f";{PLANT};"]
    ):
        (folder / "wav.scp").write_text(f"u {source}\n")
        (folder / "text").write_text("u go on\n")
        assert main(["prepare", "kaldi", "source=kaldi", f"folder=out{number}"]) == 1
        assert "kaldi/wav.scp:1" in (error := capsys.readouterr().err) or "expected an audio file" in error
    assert not (tmp_path / "planted").exists()


def test_the_name_of_a_lhotse_manifest_is_not_run(tmp_path: Path, monkeypatch, capsys) -> None:
    """For lhotse, a name that begins with `pipe:` is a command."""
    monkeypatch.chdir(tmp_path)
    name = f"pipe:{PLANT};.cuts.jsonl"
    Path(name).write_text("{}\n")
    for number, source in enumerate([".", name]):
        assert main(["prepare", "lhotse", f"source={source}", f"folder=out{number}"]) == 1
        assert "expected a recording, found none" in capsys.readouterr().err
    assert not (tmp_path / "planted").exists()


@pytest.mark.parametrize("suffix", ["opus", "sph", "wav", "m4a"])
def test_the_name_of_an_audio_file_is_not_run(suffix, corpus_maker, tmp_path, trained, monkeypatch) -> None:
    """To read .sph, and .opus if an environment variable says so, lhotse put names into a shell command."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LHOTSE_LEGACY_OPUS_LOADING", "1")
    corpus = corpus_maker()
    path = corpus / "test.cuts.jsonl.gz"
    cuts = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    for number, cut in enumerate(cuts):
        name = f"wav/';{PLANT};'{number};{PLANT}; .{suffix}"
        (corpus / cut["recording"]["sources"][0]["source"]).rename(corpus / name)
        cut["recording"]["sources"][0]["source"] = name
    path.write_bytes(gzip.compress(b"\n".join(json.dumps(cut).encode() for cut in cuts)))
    main(["decode", str(trained), f"data={corpus}", "output=out"])
    assert not (tmp_path / "planted").exists()
    assert soundfile.info(str(corpus / name)).samplerate == 16000
