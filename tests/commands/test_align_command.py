"""`asr align`: word boundaries against the pauses between the tones."""

import itertools
import json
import re
from pathlib import Path

import pytest
import soundfile
from tone_corpora import save_cuts

from asr.cli import main
from asr.data.manifest import read_cuts
from asr.scoring.ctm import CtmWord


def test_a_split_is_aligned(trained: Path, tone_corpus: Path, tmp_path: Path) -> None:
    assert main(["align", str(trained), "split=test", f"output={tmp_path}"]) == 0
    cuts = {cut.recording_id: cut for cut in read_cuts(tone_corpus / "test.cuts.jsonl.gz")}
    fields = map(str.split, (tmp_path / "test.words.ctm").read_text().splitlines())
    words = [CtmWord(x[0], x[1], float(x[2]), float(x[3]), x[4], float(x[5])) for x in fields]
    middle_s = {word: word.start_s + word.duration_s / 2 for word in words}
    for recording, cut in cuts.items():
        own = [word for word in words if word.file == recording]
        assert " ".join(word.word for word in own) == cut.supervisions[0].text
        audio, rate = soundfile.read(cut.recording.sources[0].source)
        quiet = [i / rate for i in range(0, len(audio) - 240, 240) if abs(audio[i : i + 240]).max() < 0.05]
        for before, after in itertools.pairwise(own):
            gap = [time for time in quiet if middle_s[before] < time < middle_s[after]]
            assert gap, "no pause between two successive words"
            assert before.start_s < gap[0]
            assert after.start_s > gap[0] - 0.03
        assert all(word.confidence > 0.5 for word in own)
    lines = [json.loads(line) for line in (tmp_path / "test.jsonl").read_text().splitlines()]
    assert [line["id"] for line in lines] == list(cuts)
    assert len(list(tmp_path.glob("*.TextGrid"))) == len(cuts)
    labels = [token["label"] for word in lines[0]["words"] for token in word["tokens"]]
    grid = (tmp_path / f"{lines[0]['id']}.TextGrid").read_text()
    phones = grid[grid.index('name = "phones"') :]
    assert [label for label in re.findall(r'text = "(.*)"', phones) if label] == labels


def test_text_grids_of_an_earlier_alignment_are_removed(
    trained: Path, tone_corpus: Path, tmp_path: Path
) -> None:
    cuts = list(read_cuts(tone_corpus / "test.cuts.jsonl.gz"))
    save_cuts(cuts[:2], tmp_path / "few" / "test.cuts.jsonl.gz")
    arguments = ["align", str(trained), "split=test", f"output={tmp_path / 'out'}"]
    assert main(arguments) == 0
    (tmp_path / "out" / "mine.TextGrid").write_text("mine")
    assert main([*arguments, f"data={tmp_path / 'few'}"]) == 0
    kept = {path.stem for path in (tmp_path / "out").glob("*.TextGrid")}
    assert kept == {"mine", *(cut.id for cut in cuts[:2])}


def test_an_audio_file_is_aligned_with_its_transcript(
    trained: Path,
    tone_corpus: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    cut = next(iter(read_cuts(tone_corpus / "test.cuts.jsonl.gz")))
    audio = tmp_path / "x.wav"
    audio.write_bytes(Path(cut.recording.sources[0].source).read_bytes())
    assert main(["align", str(trained), str(audio)]) == 1
    assert "x.wav: expected a transcript" in capsys.readouterr().err
    audio.with_suffix(".txt").write_text(cut.supervisions[0].text + "\n")
    assert main(["align", str(trained), str(audio), "mode=chunked"]) == 0
    assert (tmp_path / "x.TextGrid").exists()
    assert len((tmp_path / "x.words.ctm").read_text().splitlines()) == len(cut.supervisions[0].text.split())
    unknown = f"text={cut.supervisions[0].text} zebra"
    assert main(["align", str(trained), str(audio), unknown]) == 0
    assert "unreliable times for words outside the model's vocabulary (1): zebra" in caplog.text
    capsys.readouterr()
    assert main(["align", str(trained), str(audio), f"text={'cat ' * 300}"]) == 1
    printed = capsys.readouterr().err
    assert "x.wav: its transcript needs 900 encoder frames" in printed
    assert printed.count("asr: ") == 1
    assert main(["align", str(trained), str(audio), "split=dev"]) == 1
    assert "split=dev: has no effect" in capsys.readouterr().err


def test_a_text_is_normalised_like_those_of_training(
    trained: Path, tone_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The text file that `asr prepare folder` had normalised was aligned as written: with its capitals and
    full stops outside the vocabulary, it "didn't fit the audio".
    """
    cut = next(iter(read_cuts(tone_corpus / "test.cuts.jsonl.gz")))
    audio, text = str(cut.recording.sources[0].source), cut.supervisions[0].text
    arguments = ["align", str(trained), audio, f"output={tmp_path}"]
    assert main([*arguments, f"text={text.title().replace(' ', ', ')}."]) == 0
    entry = json.loads((tmp_path / f"{Path(audio).stem}.jsonl").read_text())
    assert [word["word"] for word in entry["words"]] == text.split()
    assert main([*arguments, "text=zebra gnu emu", "min_fit=1"]) == 1
    assert "(outside the model's vocabulary: emu, gnu, zebra)" in capsys.readouterr().err


def test_two_utterances_of_one_file_name_are_refused(
    trained: Path, tone_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second TextGrid replaced the first."""
    one, two, *_ = read_cuts(tone_corpus / "test.cuts.jsonl.gz")
    one.id, two.id = "a/b", "a_b"
    save_cuts([one, two], tmp_path / "x.cuts.jsonl.gz")
    assert main(["align", str(trained), f"data={tmp_path / 'x.cuts.jsonl.gz'}", f"output={tmp_path}"]) == 1
    assert "a_b: expected a name of its own, found a_b.TextGrid for two utterances" in capsys.readouterr().err
