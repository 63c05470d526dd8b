"""`asr segment`: a long recording and its text become utterances that `asr prepare folder` reads."""

import errno
import itertools
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from tone_corpora import tones

from asr.cli import main
from asr.data.manifest import read_cuts
from asr.text.files import read_text
from asr.text.tokenizer import CharacterTokenizer, SentencePieceTokenizer
from asr.transcription.segmentation import segment, sentences

LINES = ["a cat", "sea back be tea", "tea a cat be", "back sea", "be be a cat"]


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a recording of the lines."""
    random = np.random.default_rng(3)
    pause = (0.003 * random.standard_normal(800)).astype(np.float32)
    path = tmp_path_factory.mktemp("book") / "book.wav"
    parts = [part for line in LINES for part in (tones(line, 16000, random), pause)]
    soundfile.write(path, np.concatenate(parts), 16000)
    return path


@pytest.mark.slow
def test_a_recording_becomes_training_data(
    trained: Path, recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "book.txt"
    text.write_text("A cat. Sea back be tea.\nTea a cat be.\nBack sea.\nBe be a cat!\n")
    out = tmp_path / "out"
    assert main(["segment", str(trained), str(recording), str(text), f"output={out}"]) == 0
    shown = capsys.readouterr().out
    assert f"{out}: 5 utterances" in shown
    assert f"next: asr prepare folder audio={out}" in shown
    parts = sorted(out.glob("*.flac"))
    assert [read_text(part.with_suffix(".txt")).strip() for part in parts] == LINES
    assert read_text(out / "left_out.tsv") == "start\tend\tfit\ttext\n"
    assert len({part.stem for part in parts}) == 5

    data = tmp_path / "data"
    assert main(["prepare", "folder", f"audio={out}", f"folder={data}", "workers=1", "test_share=0"]) == 0
    cuts = [cut for split in ("train", "dev") for cut in read_cuts(data / f"{split}.cuts.jsonl.gz")]
    texts = {cut.supervisions[0].text for cut in cuts}
    assert texts == set(LINES)
    assert main(["segment", str(trained), str(recording), str(text), f"output={out}"]) == 1
    assert "expected a new or empty folder" in capsys.readouterr().err


def test_a_full_disk_leaves_no_half_of_the_utterances(
    trained: Path,
    recording: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The error of libsndfile ended in a traceback; what had been written looked like all utterances, and the
    same command refused to write there again.
    """
    text, out = tmp_path / "book.txt", tmp_path / "out"
    text.write_text("\n".join(LINES))
    arguments = ["segment", str(trained), str(recording), str(text), f"output={out}"]
    left = [3]

    def write_bytes(path: Path, content: bytes) -> int:
        left[0] -= 1
        if not left[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        with open(path, "wb") as file:
            return file.write(content)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", write_bytes)
        assert main(arguments) == 1
    assert "No space left on device" in capsys.readouterr().err
    assert main(["prepare", "folder", f"audio={out}", f"folder={tmp_path / 'data'}", "workers=1"]) == 1
    assert f"audio={out}: expected recordings" in capsys.readouterr().err
    assert main(arguments) == 0
    assert len(list(out.rglob("*.flac"))) == len(LINES)
    assert not (out / ".unfinished").exists()


def test_lines_that_were_not_spoken_are_left_out_alone(
    trained: Path, recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They displaced their neighbours, which were left out, too."""
    text = tmp_path / "book.txt"
    unspoken = "sea tea sea sea tea"
    text.write_text("\n".join([*LINES[:2], unspoken, *LINES[2:4], unspoken, LINES[4]]))
    out = tmp_path / "out"
    assert main(["segment", str(trained), str(recording), str(text), f"output={out}"]) == 0
    assert [read_text(part).strip() for part in sorted(out.glob("*.txt"))] == LINES
    assert [row.split("\t")[3] for row in read_text(out / "left_out.tsv").splitlines()[1:]] == [unspoken] * 2
    assert "left out 2 that don't fit" in capsys.readouterr().err


def test_a_wrong_text_is_reported(
    trained: Path, recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`asr align` said "aligned 1 of 1" to any text."""
    text = tmp_path / "other.txt"
    text.write_text("tea sea tea sea sea tea tea tea sea tea sea\n")
    assert (
        main(
            ["segment", str(trained), str(recording), str(text), f"output={tmp_path / 'out'}", "min_fit=0.9"]
        )
        == 1
    )
    assert "other.txt: the text doesn't fit" in capsys.readouterr().err
    part = tmp_path / "part.wav"
    audio, rate = soundfile.read(recording)
    soundfile.write(part, audio[: int(0.38 * rate)], rate)
    assert main(["align", str(trained), str(part), "text=sea tea sea"]) == 1
    assert "doesn't fit the audio: expected a fit of at least min_fit=0.2" in capsys.readouterr().err
    assert main(["align", str(trained), str(part), "text=sea tea sea", "min_fit=0"]) == 0
    assert main(["align", str(trained), str(part), "text=a cat"]) == 0
    shown = capsys.readouterr().out
    wrong, right = (float(line.rpartition("fit ")[2]) for line in shown.splitlines())
    assert wrong < 0.2 < right


def test_long_lines_are_divided_in_pauses(trained: Path, recording: Path, tmp_path: Path) -> None:
    text = tmp_path / "book.txt"
    text.write_text(" ".join(LINES))
    arguments = [
        "segment",
        str(trained),
        str(recording),
        str(text),
        f"output={tmp_path / 'out'}",
        "longest_s=1",
    ]
    assert main(arguments) == 0
    parts = sorted((tmp_path / "out").glob("*.flac"))
    assert len(parts) >= len(LINES)
    assert " ".join(read_text(part.with_suffix(".txt")).strip() for part in parts) == " ".join(LINES)
    assert max(soundfile.info(part).duration for part in parts) < 1.5


def test_the_texts_are_in_the_language_of_the_alignment(
    trained: Path, recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Numbers of a German text were written in English, and the capitals of a Turkish one in English case."""
    text = tmp_path / "book.txt"
    for language, line, expected in (("de", "A cat 21.", "a cat einundzwanzig"), ("tr", "BI CAT.", "bı cat")):
        text.write_text("\n".join([line, *LINES[1:]]))
        out = tmp_path / language
        arguments = ["segment", str(trained), str(recording), str(text), f"output={out}"]
        assert main([*arguments, f"language={language}", "min_fit=0"]) == 0
        assert read_text(min(out.glob("*.txt"))).strip() == expected
    assert main([*arguments, "language=sw"]) == 1
    assert "language=sw: text=spoken expects a language whose numbers" in capsys.readouterr().err


def test_sentences() -> None:
    text = "“Stop,” she said.  He didn't…\n\nMr Brown; and so on"
    assert sentences(text) == ["“Stop,” she said.", "He didn't…", "Mr Brown;", "and so on"]


def test_lines_without_spaces_are_divided_in_pauses() -> None:
    """A line of Chinese was one word, which was never divided."""
    line = "今天天氣很好我們去公園"
    tokenizer = CharacterTokenizer.train([line])
    labels = [0, *itertools.chain(*([label, 0] for label in tokenizer.encode(line)))]
    labels[13:13] = [0] * 6  # a pause after six letters
    log_probs = torch.full((len(labels), len(tokenizer)), -9.0)
    log_probs[range(len(labels)), labels] = -0.01
    for longest_s, expected in ((9.0, [line]), (1.5, [line[:6], line[6:]])):
        found = segment(log_probs, [(f"{line}。", line)], tokenizer, 0.1, longest_s)
        assert [x.text.removesuffix("。") for x in found] == expected
        assert all(x.end_s - x.start_s <= longest_s for x in found)


@pytest.mark.parametrize("written", ["ab 今天天", "— ab — 今天天"])
def test_pieces_without_spaces_stay_apart_from_the_word_before(written: str) -> None:
    """The space before a word was a piece of its own, and its first letter was glued to the word before.

    A line with as many words as pieces in its text was divided as if the pieces were its words.
    """
    tokenizer = SentencePieceTokenizer.train(["ab", "今天"] * 9, 6)
    spoken = "ab 今天天"
    ids = tokenizer.encode(spoken)
    labels = [0, *itertools.chain(*([label, 0] for label in ids))]
    labels[-2:-2] = [0] * 9  # a pause before the last letter
    log_probs = torch.full((len(labels), len(tokenizer)), -9.0)
    log_probs[range(len(labels)), labels] = -0.01
    found = segment(log_probs, [(written, spoken)], tokenizer, 0.1, longest_s=1.5)
    assert [x.text for x in found] == ["ab 今天", "天"]
