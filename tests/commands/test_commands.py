"""The commands end to end on the corpus of tones."""

import json
from pathlib import Path

import pytest

from asr.cli import COMMANDS, main
from asr.scoring.hypotheses import read_hypotheses


def test_decode_and_score(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for decoder in ("greedy", "beam"):
        assert main(["decode", str(trained), f"decoder={decoder}"]) == 0
        folder = trained / "decode" / "test" / f"full-{decoder}"
        assert main(["score", str(folder)]) == 0
        score = json.loads((folder / "score.json").read_text())
        assert score["wer"]["rate"] < 0.1
        assert score["per"]["length"] == sum(
            len(h.reference_tokens or []) for h in read_hypotheses(folder / "hyp.jsonl")
        )
        assert score["utterances"] == 8
        assert score["decode_s"] > 0
    assert "PER" in capsys.readouterr().out


def test_decoding_with_another_mechanism_has_a_folder_of_its_own(trained: Path) -> None:
    assert main(["decode", str(trained), "attention=clustered-3:bits=31"]) == 0
    folder = trained / "decode" / "test" / "clustered-3:bits=31-greedy"
    about = json.loads((folder / "decode.json").read_text())
    assert about["attention"] == "clustered-3:bits=31"
    assert about["real_time_factor"] > 0


def test_two_decodings_give_the_same_hypotheses(trained: Path, tmp_path: Path) -> None:
    for name, frames in (("a", 20000), ("b", 200)):
        assert main(["decode", str(trained), f"output={tmp_path / name}", f"frames_per_batch={frames}"]) == 0
    assert (tmp_path / "a" / "hyp.jsonl").read_text() == (tmp_path / "b" / "hyp.jsonl").read_text()


def test_a_checkpoint_file_is_decoded_like_its_run(trained: Path) -> None:
    assert main(["decode", str(trained / "checkpoints" / "last.ckpt"), "split=dev"]) == 0
    assert (trained / "decode" / "dev" / "full-greedy" / "hyp.jsonl").exists()


def test_transcribe_prints_a_line_for_each_file(
    trained: Path, tone_corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [str(tone_corpus / "wav" / f"test-{i}.wav") for i in range(2)]
    assert main(["transcribe", str(trained), *files, "format=json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["file"] for line in lines] == files
    assert all(line["text"] and line["times_s"] for line in lines)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    assert f"asr {command}" in capsys.readouterr().out


def test_prepare_lists_the_options_of_a_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prepare", "demo", "--help"]) == 0
    assert "train_minutes" in capsys.readouterr().out


def test_without_arguments_the_commands_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    printed = capsys.readouterr().out
    assert all(command in printed for command in COMMANDS)


def test_several_systems_are_compared_in_one_table(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = []
    for attention in ("full", "clustered-2"):
        assert main(["decode", str(trained), f"attention={attention}"]) == 0
        folders.append(str(trained / "decode" / "test" / f"{attention}-greedy"))
    capsys.readouterr()
    assert main(["score", *folders, "details=false"]) == 0
    printed = capsys.readouterr().out
    assert "test/clustered-2-greedy against test/full-greedy" in printed
    rows = [line for line in printed.splitlines() if line.startswith("│") and "-greedy" in line]
    assert len(rows) == 2
    rate = json.loads((Path(folders[1]) / "score.json").read_text())["per"]["rate"]
    assert f"{100 * rate:.2f} (" in rows[1]
