"""Decode, align and transcribe in shards, or interrupted: the files are those of one undisturbed process."""

import json
import math
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from processes import in_a_fork

from asr.cli import main
from asr.errors import UserError
from asr.library.transcribing import JOURNAL
from asr.lm.arpa import write_arpa
from asr.lm.kneser_ney import estimate
from asr.records.job import Job
from asr.records.options import parse_shard
from asr.records.results import Result, Results

COMMANDS = {
    "decode": ["decode", "{run}", "split=dev", "frames_per_batch=200"],
    "align": ["align", "{run}", "split=dev"],
    "align with failures": ["align", "{run}", "split=dev", "min_fit=0.99"],
    "transcribe": ["transcribe", "{run}", "{wav}", "format=json"],
}


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder except locks, the record of decoding, which has times, and a journal."""
    names = ("lock", "decode.json", JOURNAL)
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in names and path.suffix != ".lock"
    }


@pytest.fixture
def arguments(trained: Path, tone_corpus: Path, request: pytest.FixtureRequest) -> list[str]:
    return [x.format(run=trained, wav=tone_corpus / "wav") for x in COMMANDS[request.param]]


@pytest.mark.parametrize("arguments", COMMANDS, indirect=True)
def test_the_union_is_what_one_process_writes(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asr.transcription.batches.GROUP", 3)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    failed = main([*arguments, f"output={whole}"])
    error = capsys.readouterr().err.replace(f"transcripts: {whole}\n", "")  # asr merge says "joined"
    for index in (2, 3, 1):
        main([*arguments, f"output={parts}", f"shard={index}/3"])
    assert set(contents(parts)) == {f"shards/{index}-of-3.jsonl" for index in (1, 2, 3)}
    capsys.readouterr()
    assert main(["merge", str(parts)]) == failed
    assert contents(parts) == contents(whole)
    assert capsys.readouterr().err == error
    if arguments[0] == "decode":
        one, union = (json.loads((folder / "decode.json").read_text()) for folder in (whole, parts))
        assert union["audio_s"] == pytest.approx(one["audio_s"])
        assert {key: union[key] for key in ("lexicon", "pronunciations", "beam")} == {
            key: one[key] for key in ("lexicon", "pronunciations", "beam")
        }
    assert main(["merge", str(parts)]) == 1
    assert "expected shards/1-of-" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", COMMANDS, indirect=True)
@pytest.mark.parametrize("shards", [[[]], [["shard=1/2"], ["shard=2/2"]]], ids=["whole", "shards"])
def test_interrupted_work_goes_on(
    arguments: list[str],
    shards: list[list[str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("asr.transcription.batches.GROUP", 3)
    undisturbed, folder = tmp_path / "undisturbed", tmp_path / "interrupted"
    failed = main([*arguments, f"output={undisturbed}"])
    expected = capsys.readouterr()
    added: list[int] = []

    def stopping(add: Callable[..., None], most: float) -> Callable[..., None]:
        def wrapper(store: object, position: int, *result: Result) -> None:
            if len(added) == most:
                raise KeyboardInterrupt
            add(store, position, *result)
            added.append(position)

        return wrapper

    def run(shard: list[str], most: float) -> int:
        """Run the command, interrupted after some results."""
        added.clear()
        with monkeypatch.context() as patch:
            patch.setattr(Results, "add", stopping(Results.add, most))
            return main([*arguments, *shard, f"output={folder}"])

    assert run(shards[0], 3) == 130
    first = set(added)
    if len(shards) > 1:
        assert main(["merge", str(folder)]) == 1
        assert "1-of-2.jsonl: expected a finished shard, found 3 items" in capsys.readouterr().err
    capsys.readouterr()
    status = run(shards[0], math.inf)
    assert first - set(added)
    found = capsys.readouterr()
    assert "finished" in found.err
    for shard in shards[1:]:
        run(shard, math.inf)
        capsys.readouterr()
        status = main(["merge", str(folder)])
        found = capsys.readouterr()
    assert status == failed
    assert contents(folder) == contents(undisturbed)
    assert errors(found.err) == errors(expected.err)
    if arguments[0] == "align" and len(shards) == 1:
        assert found.out == expected.out.replace(str(undisturbed), str(folder))


def killed_after(results: int, arguments: list[str]) -> None:
    """Run a command in a process that is killed after some results."""
    add, added = Results.add, []

    def deadly(work: Results, position: int, result: Result) -> None:
        if len(added) == results:
            os.kill(os.getpid(), signal.SIGKILL)
        add(work, position, result)
        added.append(position)

    Results.add = deadly  # type: ignore[method-assign]
    main(arguments)


@pytest.mark.slow
@pytest.mark.parametrize("lm", [False, True], ids=["no lm", "lm"])
def test_ties_of_a_killed_shard_are_broken_as_in_undisturbed_work(
    lm: bool, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where scores tied, the best text, or the alternatives, were others in each process."""
    pytest.importorskip("flashlight.lib.text", reason="flashlight-text is not installed")
    lexicon = tmp_path / "lexicon.txt"
    lexicon.write_text("sea S IY\nsee S IY\nbe B IY\nbee B IY\na AA\ne IY\ns S\nb B\ncat K AA T\nt T\nk K\n")
    command = ["decode", str(trained), "split=dev", "decoder=beam", f"beam.lexicon={lexicon}", "beam.nbest=4"]
    command += ["beam.word_score=0", "beam.size=20", "frames_per_batch=200"]
    if lm:
        write_arpa(estimate([["a", "cat"]], 2, vocabulary=["a", "cat", "sea", "see"]), tmp_path / "lm.arpa")
        command.append(f"beam.lm={tmp_path / 'lm.arpa'}")
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert main([*command, f"output={whole}"]) == 0
    assert in_a_fork(killed_after, 3, [*command, f"output={parts}", "shard=1/2"]) == -signal.SIGKILL
    capsys.readouterr()
    for shard in ("1/2", "2/2"):
        assert main([*command, f"output={parts}", f"shard={shard}"]) == 0
    assert "1-of-2.jsonl: 3 of " in capsys.readouterr().err
    assert main(["merge", str(parts)]) == 0
    assert contents(parts) == contents(whole)
    assert b'"nbest"' in contents(whole)["hyp.jsonl"]


def errors(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("asr: ")]


@pytest.mark.slow
def test_missing_and_foreign_shards_are_refused(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["decode", str(trained), "split=dev", f"output={tmp_path}"]

    def merge() -> str:
        capsys.readouterr()
        assert main(["merge", str(tmp_path)]) == 1
        return capsys.readouterr().err

    assert main([*arguments, "shard=1/2"]) == 0
    assert "2-of-2.jsonl: expected shard 2 of 2, found none" in merge()
    assert main([*arguments, "shard=2/2", "attention=clustered-5"]) == 0
    line = merge()
    assert "2-of-2.jsonl: expected the job of" in line
    assert "found another: options.attention is 'clustered-5' instead of ''" in line
    assert main([*arguments, "shard=2/2", "split=test"]) == 0
    assert "found another: options.split is 'test' instead of 'dev'" in merge()
    assert main([*arguments, "shard=2/2"]) == 0
    assert main([*arguments, "shard=2/3"]) == 0
    assert "expected a shard of 2" in merge()
    (tmp_path / "shards" / "2-of-3.jsonl").unlink()
    shard = tmp_path / "shards" / "2-of-2.jsonl"
    shard.write_text(shard.read_text()[:-20])
    assert "2-of-2.jsonl" in merge()
    first = (tmp_path / "shards" / "1-of-2.jsonl").read_text()
    shard.write_text(first)
    assert "2-of-2.jsonl: expected a shard, found another file" in merge()
    shard.unlink()
    assert main([*arguments, "shard=2/2"]) == 0
    assert main(["merge", str(tmp_path)]) == 0


def test_options_that_do_not_fit_a_shard(
    trained: Path, tone_corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wav = str(tone_corpus / "wav" / "test-0.wav")
    for arguments, message in [
        (["decode", str(trained), "shard=3/2"], "shard=3/2: expected i/n with 1 ≤ i ≤ n"),
        (["decode", str(trained), "shard=1/2", "decoder=prefix", "tune=dev"], "tune before dividing"),
        (["transcribe", str(trained), wav, "shard=1/2"], "expected output=<folder>"),
        (["align", str(trained), wav, "shard=1/2"], "shard=1/2: has no effect"),
        (["merge"], "asr merge takes <output folder of asr"),
    ]:
        assert main(arguments) == 1
        assert message in capsys.readouterr().err
    assert parse_shard("") is None


def test_a_shard_is_given_to_one_process_at_a_time(tmp_path: Path) -> None:
    """A second process replaced the journal of the first, whose results were lost if that one was killed."""
    parts = [Job.in_folder(tmp_path, {"command": "decode"}, parse_shard("1/2"))]
    child = os.fork()
    if child == 0:
        parts.append(Job.in_folder(tmp_path, {"command": "decode"}, parse_shard("2/2")))
        try:
            Job.in_folder(tmp_path, {"command": "decode"}, parse_shard("1/2"))
        except UserError as error:
            os._exit(0 if "1-of-2.jsonl: another process works on this shard" in str(error) else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
