"""The commands, end to end on the tone corpus."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import soundfile
import torch
from lhotse.utils import fastcopy
from processes import Asr
from tone_corpora import save_cuts

from asr import Recognizer
from asr.cli import main
from asr.commands import COMMANDS
from asr.data.manifest import read_cuts
from asr.model.options import LoadOptions
from asr.scoring.hypotheses import read_hypotheses
from asr.search.decoder import Weights
from asr.search.decoders.beam import Beam
from asr.search.tune import Trial, record
from asr.transcription import pipeline
from asr.transcription.posteriors import encode


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


def test_results_on_other_data_have_folders_of_their_own(
    trained: Path, tone_corpus: Path, tmp_path: Path
) -> None:
    """Decoding another folder's test split, or a manifest given by its path, replaced the hypotheses of the
    run's own test split, because the folder was named after `split` and the decoder only.
    """
    run = tmp_path / "run"
    shutil.copytree(trained, run, ignore=shutil.ignore_patterns("decode", "align"))
    ids = {name: [x.id for x in read_cuts(tone_corpus / f"{name}.cuts.jsonl.gz")] for name in ("dev", "test")}
    others = list(read_cuts(tone_corpus / "train.cuts.jsonl.gz"))[:2]
    save_cuts(others, tmp_path / "other" / "test.cuts.jsonl.gz")
    for data in ([], [f"data={tmp_path}/other"], [f"data={tone_corpus}/dev.cuts.jsonl.gz"]):
        assert main(["decode", str(run), *data]) == 0
        assert main(["align", str(run), "min_fit=0", *data]) == 0
    ids["other/test"] = [x.id for x in others]
    for place, expected in ids.items():
        hypotheses = read_hypotheses(run / "decode" / place / "full-greedy" / "hyp.jsonl")
        assert [x.id for x in hypotheses] == expected
    tables = {str(path.relative_to(run / "align")) for path in run.glob("align/**/*.jsonl")}
    assert tables == {"test/test.jsonl", "other/test/test.jsonl", "dev/dev.jsonl"}
    assert main(["score", str(run)]) == 0
    assert len([*run.glob("decode/**/score.json")]) == 3


@pytest.mark.parametrize("command", ["decode", "align"])
def test_results_of_other_data_with_the_same_name_are_not_replaced(
    command: str, trained: Path, tone_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second folder `other` elsewhere replaced the results of the first without a word."""
    run, cuts = tmp_path / "run", list(read_cuts(tone_corpus / "train.cuts.jsonl.gz"))
    shutil.copytree(trained, run, ignore=shutil.ignore_patterns("decode", "align"))
    fixed = ["min_fit=0"] if command == "align" else []
    for place, number in (("a", 2), ("b", 3)):
        save_cuts(cuts[:number], tmp_path / place / "other" / "test.cuts.jsonl.gz")
    asked = [command, str(run), *fixed]
    assert main([*asked, f"data={tmp_path}/b/../a/other"]) == 0
    assert main([*asked, f"data={tmp_path}/a/other"]) == 0
    before = {x: x.read_bytes() for x in (run / command / "other").rglob("*") if x.is_file()}
    capsys.readouterr()
    assert main([*asked, f"data={tmp_path}/b/other"]) == 1
    error = capsys.readouterr().err
    manifests = [f"{tmp_path}/{place}/other/test.cuts.jsonl.gz" for place in "ab"]
    assert f": has results of {manifests[0]}; choose a folder for those of {manifests[1]}: output=" in error
    assert {x: x.read_bytes() for x in before} == before
    assert main([*asked, f"data={tmp_path}/b/other", f"output={tmp_path}/chosen"]) == 0
    # The same data elsewhere, and data prepared anew, are no other data.
    shutil.move(tmp_path / "a" / "other", tmp_path / "c" / "other")
    assert main([*asked, f"data={tmp_path}/c/other"]) == 0
    assert "replaced" not in capsys.readouterr().err
    save_cuts(cuts[:4], tmp_path / "c" / "other" / "test.cuts.jsonl.gz")
    assert main([*asked, f"data={tmp_path}/c/other"]) == 0
    assert "replaced: data was " in capsys.readouterr().err


def test_another_checkpoint_or_precision_decodes_into_a_folder_of_its_own(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`checkpoint=last` and then `checkpoint=best` left one decode, with the name of both."""
    run = tmp_path / "run"
    shutil.copytree(trained, run, ignore=shutil.ignore_patterns("decode", "align"))
    shutil.copy(run / "checkpoints" / "last.ckpt", run / "checkpoints" / "average.ckpt")
    for option in ("checkpoint=auto", "checkpoint=best", "checkpoint=last", "precision=bf16"):
        assert main(["decode", str(run), option]) == 0
    assert main(["decode", str(run / "checkpoints" / "last.ckpt")]) == 0
    assert "replaced" not in capsys.readouterr().err
    systems = [x.name for x in (run / "decode" / "test").iterdir()]
    assert sorted(systems) == ["full-best-greedy", "full-bf16-greedy", "full-greedy", "full-last-greedy"]
    assert main(["score", str(run)]) == 0
    assert len([*run.glob("decode/**/score.json")]) == 4
    assert main(["decode", str(run), "frames_per_batch=200"]) == 0
    assert "/full-greedy: replaced: frames_per_batch was 20000, is now 200" in capsys.readouterr().err


def test_references_use_the_lexicon_of_the_data(
    trained: Path, tone_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Words that only the test data's lexicon had left the denominator, and the phones recognised there
    were insertions: five real sentences scored 295.6 % of 68 phones instead of 72.9 % of 251.
    """
    folder = tmp_path / "other"
    cuts = [
        fastcopy(cut, supervisions=[fastcopy(cut.supervisions[0], text=cut.supervisions[0].text.upper())])
        for cut in read_cuts(tone_corpus / "test.cuts.jsonl.gz")
    ]
    save_cuts(cuts, folder / "test.cuts.jsonl.gz")
    words = sum(len(cut.supervisions[0].text.split()) for cut in cuts)

    def score(output: str) -> dict[str, Any]:
        run = ["decode", str(trained), f"data={folder}", "g2p=false", f"output={tmp_path / output}"]
        assert main(run) == 0
        capsys.readouterr()
        assert main(["score", str(tmp_path / output), "samples=10", "align=unit"]) == 0
        return json.loads((tmp_path / output / "score.json").read_text())

    lexicon = (tone_corpus / "lexicon.txt").read_text().splitlines()
    upper = [f"{word.upper()} {' '.join(phones)}\n" for word, *phones in map(str.split, lexicon)]
    without = [line for line in upper if not line.startswith("CAT")]
    (folder / "lexicon.txt").write_text("".join(upper))
    whole = score("whole")
    assert whole["pronunciations"] == {"words": words, "model": 0, "data": words, "g2p": 0, "none": 0}
    assert f"{words} reference words, pronounced by the model's lexicon 0" in capsys.readouterr().out
    assert whole["per"]["rate"] < 0.1
    (folder / "lexicon.txt").write_text("".join(without))
    part = score("part")
    cats = " ".join(cut.supervisions[0].text for cut in cuts).split().count("CAT")
    assert part["pronunciations"]["none"] == cats > 0
    assert part["per"]["length"] == whole["per"]["length"] - 3 * cats
    assert part["lexicon"] != whole["lexicon"]
    assert f"without pronunciation {cats}" in capsys.readouterr().out


def test_decoding_with_another_mechanism_writes_to_a_separate_folder(trained: Path) -> None:
    assert main(["decode", str(trained), "attention=clustered-3:bits=31"]) == 0
    folder = trained / "decode" / "test" / "clustered-3:bits=31-greedy"
    about = json.loads((folder / "decode.json").read_text())
    assert about["attention"] == "clustered-3:bits=31"
    assert about["real_time_factor"] > 0


def test_no_part_of_the_time_exceeds_the_whole(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads that encode side by side were added up: real-time factor 0.0016; encoder 0.0022."""

    def slow(*arguments: Any) -> Any:
        time.sleep(0.03)
        return encode(*arguments)

    monkeypatch.setattr(pipeline, "encode", slow)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(4)
        assert main(["decode", str(trained), f"output={tmp_path}", "frames_per_batch=1"]) == 0
    finally:
        torch.set_num_threads(before)
    about = json.loads((tmp_path / "decode.json").read_text())
    assert 0 < about["encode_s"] <= about["decode_s"]
    assert 0 < about["search_s"] <= about["decode_s"]


def test_hypotheses_do_not_depend_on_the_batch_size(trained: Path, tmp_path: Path) -> None:
    for name, frames in (("a", 20000), ("b", 200)):
        assert main(["decode", str(trained), f"output={tmp_path / name}", f"frames_per_batch={frames}"]) == 0
    assert (tmp_path / "a" / "hyp.jsonl").read_text() == (tmp_path / "b" / "hyp.jsonl").read_text()


def test_decoding_a_checkpoint_file_writes_to_its_run_folder(trained: Path) -> None:
    assert main(["decode", str(trained / "checkpoints" / "last.ckpt"), "split=dev"]) == 0
    assert (trained / "decode" / "dev" / "full-last-greedy" / "hyp.jsonl").exists()


def test_transcribe_prints_one_line_per_file(
    trained: Path, tone_corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [str(tone_corpus / "wav" / f"test-{i}.wav") for i in range(2)]
    assert main(["transcribe", str(trained), *files, "format=json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["file"] for line in lines] == files
    assert all(line["text"] and line["times_s"] for line in lines)


def test_transcribe_says_once_that_it_resamples(
    trained: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of the recordings' sample rates had a line of its own."""
    monkeypatch.setattr("asr.data.audio._noticed", set())
    files = [str(tmp_path / f"{rate}.wav") for rate in (8007, 8009, 8011)]
    for file, rate in zip(files, (8007, 8009, 8011), strict=True):
        soundfile.write(file, 0.1 * np.random.default_rng(rate).standard_normal(rate), rate)
    assert main(["transcribe", str(trained), *files]) == 0
    (line,) = [x.getMessage() for x in caplog.records if "resampled" in x.getMessage()]
    assert re.fullmatch(r"audio at other rates, such as 80\d+ Hz, is resampled to the model's 16000 Hz", line)


@pytest.mark.slow
def test_a_file_name_that_is_not_utf8_is_shown_with_escapes(
    trained: Path, tone_corpus: Path, tmp_path: Path
) -> None:
    """Printing it ended the command with a traceback; a shard lost all its transcripts."""
    odd = os.fsencode(tmp_path) + b"/caf\xe9.wav"
    for path in (os.fsdecode(odd), tmp_path / "other.wav"):
        Path(path).write_bytes((tone_corpus / "wav" / "test-0.wav").read_bytes())
    arguments = ["transcribe", str(trained), str(tmp_path)]
    for form in ("text", "json"):
        command = Asr([*arguments, f"format={form}", "device=cpu"])
        output, errors = command.communicate()
        assert command.wait() == 0, errors
        assert "caf\\udce9.wav" in output.replace("\\\\", "\\")
    _, errors = Asr([*arguments, "shard=1/2", f"output={tmp_path}"]).communicate()
    assert "expected a UTF-8 file name with shard=" in errors


def test_transcribe_reports_full_memory_and_unwritable_files(
    trained: Path,
    tone_corpus: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """NumPy raises MemoryError and PyTorch RuntimeError; other RuntimeErrors are not hidden."""
    wav = str(tone_corpus / "wav" / "test-0.wav")
    (tmp_path / "file").write_text("")
    assert main(["transcribe", str(trained), wav, f"output={tmp_path / 'file' / 'folder'}"]) == 1
    assert "file: expected a folder to write to, found a file" in capsys.readouterr().err
    for error in (MemoryError("Unable to allocate 6 GiB"), RuntimeError("you can't allocate memory: 6 GiB")):
        monkeypatch.setattr("asr.transcription.sources.read_recording", mock.Mock(side_effect=error))
        assert main(["transcribe", str(trained), wav]) == 1
        assert "test-0.wav: out of memory: use mode=chunked" in capsys.readouterr().err
    monkeypatch.setattr(
        "asr.transcription.sources.read_recording", mock.Mock(side_effect=RuntimeError("shapes"))
    )
    with pytest.raises(RuntimeError, match="shapes"):
        main(["transcribe", str(trained), wav])


def test_transcribing_uses_tuned_decoder_weights(
    trained: Path, tone_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also those in the folder of an exported model; options on the command line take precedence."""
    wav = str(tone_corpus / "wav" / "test-0.wav")
    assert main(["export", str(trained), f"out={tmp_path}"]) == 0
    arguments = ["transcribe", str(tmp_path), wav, "decoder=beam"]
    capsys.readouterr()
    assert main(arguments) == 0
    untuned = capsys.readouterr()
    assert "decoder weights" not in untuned.err
    few_words = Trial(Weights(lm_weight=2.0, word_score=-1000.0, size=20), 1, 1, 1.0)
    file = record(tmp_path, Beam(), few_words, [few_words], {})
    assert main(arguments) == 0
    tuned = capsys.readouterr()
    assert len(tuned.out.split()) < len(untuned.out.split())
    assert f"decoder weights from {file}: beam lm=none" in tuned.err
    assert main([*arguments, "beam.word_score=-1"]) == 0
    assert capsys.readouterr().out == untuned.out
    assert Recognizer.load(tmp_path).transcribe(wav, decoder="beam").text == tuned.out.strip()
    assert main([*arguments, "beam.nbest=3"]) == 1
    assert "beam.nbest=3: expected 1" in capsys.readouterr().err


def test_an_exported_model_gives_the_hypotheses_of_its_run(
    trained: Path, tone_corpus: Path, tmp_path: Path
) -> None:
    assert main(["export", str(trained), f"out={tmp_path}"]) == 0
    assert main(["decode", str(tmp_path), f"data={tone_corpus}", "split=dev"]) == 0
    assert main(["decode", str(trained), "split=dev"]) == 0
    places = (tmp_path / "decode" / tone_corpus.name, trained / "decode")  # an export has no data of its own
    folders = (place / "dev" / "full-greedy" for place in places)
    exported, own = ((folder / "hyp.jsonl").read_text() for folder in folders)
    assert exported == own


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    assert f"asr {command}" in capsys.readouterr().out


def test_prepare_lists_the_options_of_a_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prepare", "demo", "--help"]) == 0
    assert "train_minutes" in capsys.readouterr().out


def test_without_arguments_the_commands_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    printed = capsys.readouterr().out
    assert all(command in printed for command in COMMANDS)


def test_score_compares_several_systems_in_one_table(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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


@pytest.mark.parametrize("command", ["align", "decode", "transcribe"])
def test_options_to_load_a_recogniser_are_declared_once(command: str) -> None:
    """Each command declared `attention`, `backend`, `checkpoint` and `device` with defaults of its own."""
    declared = {entry.name: entry for entry in fields(COMMANDS[command].options)}
    assert all(declared[entry.name] is entry for entry in fields(LoadOptions))


def test_transcripts_of_equally_named_recordings_stay_apart(
    trained: Path, tone_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The transcript of b/x.wav replaced that of a/x.wav."""
    for name in ("a", "b"):
        (tmp_path / "in" / name).mkdir(parents=True)
        (tmp_path / "in" / name / "x.wav").write_bytes((tone_corpus / "wav" / "test-0.wav").read_bytes())
    files = [str(tmp_path / "in" / name / "x.wav") for name in ("a", "b")]
    out = tmp_path / "out"
    assert main(["transcribe", str(trained), *files, f"output={out}"]) == 1
    assert (
        f"{files[0]} and {files[1]}: expected different transcripts, found {out / 'x.wav.txt'}"
        in capsys.readouterr().err
    )
    assert main(["transcribe", str(trained), str(tmp_path / "in"), f"output={out}"]) == 0
    assert {str(path.relative_to(out)) for path in out.rglob("*.txt")} == {"a/x.txt", "b/x.txt"}


def test_several_recordings_get_subtitles_beside_them(
    trained: Path, tone_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`format=srt` refused several files; the transcript of x.wav was x.wav.srt."""
    audio = (tone_corpus / "wav" / "test-0.wav").read_bytes()
    for name in ("x.wav", "y.wav", "y.mp3"):
        (tmp_path / name).write_bytes(audio)
    arguments = ["transcribe", str(trained), str(tmp_path), "format=srt"]
    assert main(arguments) == 0
    assert {path.name for path in tmp_path.glob("*.srt")} == {"x.srt", "y.wav.srt", "y.mp3.srt"}
    assert "transcripts are beside the recordings" in capsys.readouterr().err
    assert main([*arguments, "min_confidence=0.5"]) == 1
    assert "x.srt: expected no such file yet; write to a folder with output=" in capsys.readouterr().err


@pytest.mark.slow
def test_a_recording_is_read_from_standard_input(trained: Path, tone_corpus: Path) -> None:
    wav = tone_corpus / "wav" / "test-0.wav"
    command = [sys.executable, "-m", "asr", "transcribe", str(trained)]
    with wav.open("rb") as audio:
        text, errors = Asr(["transcribe", str(trained), "-"], stdin=audio.fileno()).communicate()
    assert text.strip() == Recognizer.load(trained).transcribe(wav).text, errors
    shell = f"{' '.join(command)} {wav} {wav} {wav} | head -1"
    first = subprocess.run(shell, shell=True, capture_output=True, text=True, check=True)
    assert len(first.stdout.splitlines()) == 1
    assert "Traceback" not in first.stderr


def test_warnings_are_summed_up_and_a_broken_file_does_not_end_the_batch(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Each of a hundred stereo calls gave a line; a GSM file gave a traceback."""
    noise = 0.1 * np.random.default_rng(0).standard_normal((8000, 2))
    for name in ("a", "b", "c"):
        soundfile.write(tmp_path / f"{name}.wav", noise, 16000)
    soundfile.write(tmp_path / "gsm.wav", noise[:, 0], 8000, subtype="GSM610")
    (tmp_path / "broken.wav").write_bytes(b"RIFF" + bytes(2000))
    assert main(["transcribe", str(trained), str(tmp_path)]) == 1
    shown = capsys.readouterr()
    names = [Path(line.split("\t")[0]).name for line in shown.out.splitlines()]
    assert names == ["a.wav", "b.wav", "c.wav", "gsm.wav"]
    assert "broken.wav: not a readable audio file" in shown.err
    (averaged,) = [record.message for record in caplog.records if "averaged" in record.message]
    assert "a.wav: 2 channels are averaged to one" in averaged
    assert "channels=separate" in averaged
    assert averaged.endswith("(and 2 more)")


@pytest.mark.parametrize(
    "arguments",
    [
        ["bench", "attentions=[full]", "lengths=[64]", "out={file}/bench.json"],
        ["lm", "train", "text=nothing.txt", "out={file}/lm.arpa"],
        ["export", "{run}", "out={file}/model"],
        ["export", "{run}", "format=onnx", "out={file}/model.onnx"],
        ["decode", "{run}", "output={file}/decoded"],
        ["align", "{run}", "output={file}/aligned"],
        ["transcribe", "{run}", "x.wav", "output={file}/out"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_outputs_are_tried_before_the_work(
    arguments: list[str], trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`asr bench` lost its measurements because it couldn't write them."""
    (tmp_path / "file").touch()
    arguments = [x.format(run=trained, file=tmp_path / "file") for x in arguments]
    assert main(arguments) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "file: expected a folder to write to, found a file" in line or "(File exists)" in line


def test_output_is_a_folder_and_no_subtitle_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`output=talk.srt` wrote to the new folder talk.srt without a word."""
    assert main(["transcribe", "run", "talk.wav", "format=srt", f"output={tmp_path / 'talk.srt'}"]) == 1
    assert "talk.srt: expected a folder, found the name of a file" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_an_export_replaces_only_an_export(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The config.json of another program was overwritten."""
    for _ in range(2):
        assert main(["export", str(trained), f"out={tmp_path / 'model'}"]) == 0
    (tmp_path / "model" / "config.json").unlink()  # as after a kill
    assert main(["export", str(trained), f"out={tmp_path / 'model'}"]) == 0
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text('{"model_type": "bert"}')
    assert main(["export", str(trained), f"out={tmp_path / 'other'}"]) == 1
    assert "expected the configuration of an exported model" in capsys.readouterr().err
    assert main(["export", str(trained), f"out={trained}"]) == 1
    assert "expected an empty folder or an exported model, found checkpoints" in capsys.readouterr().err


def test_the_export_of_a_graph_says_that_clusters_depend_on_rounding(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In 120 s of audio, 1.5 % of the best labels differed, without a word."""
    # tests/model/test_export_model.py writes graphs.
    monkeypatch.setattr("asr.commands.export.write_program", lambda model, out: out.write_bytes(b"graph"))
    for attention, said in (("clustered-4", True), ("full", False)):
        out = f"out={tmp_path / attention}.pt2"
        assert main(["export", str(trained), out, f"attention={attention}"]) == 0
        assert ("may differ from PyTorch's" in capsys.readouterr().err) is said
