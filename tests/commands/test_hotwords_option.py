"""`beam.hotwords` in `asr decode` and `asr transcribe`, on the tone corpus."""

from pathlib import Path

import pytest

from asr.cli import main
from asr.scoring.hypotheses import read_hypotheses

pytest.importorskip("flashlight.lib.text", reason="flashlight-text is not installed")


@pytest.mark.slow
@pytest.mark.parametrize("decoder", ["beam", "prefix"])
def test_decoding_and_transcription_find_a_word_that_the_model_does_not_know(
    decoder: str, trained: Path, tone_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The hypotheses are in a folder of their own, and are made again when the boost in the file changes."""
    lexicon, names = tmp_path / "lexicon.txt", tmp_path / "names.txt"
    words = [f"beam.lexicon={lexicon}"] if decoder == "beam" else []
    lexicon.write_text("a\nbe\ncat\nsea\ntea\nback\nseek S IY K\n")
    names.write_text("sea\t0\n")
    search = [f"decoder={decoder}", f"beam.hotwords={names}", *words]
    folder = trained / "decode" / "test" / f"full-{decoder}-names"

    def found() -> list[str]:
        assert main(["decode", str(trained), *search, "device=cpu"]) == 0
        return [hypothesis.text or "" for hypothesis in read_hypotheses(folder / "hyp.jsonl")]

    plain = found()
    names.write_text("Back\t30\n")
    biased = found()
    assert biased != plain
    assert " ".join(biased).split().count("back") > " ".join(plain).split().count("back")

    recording = sorted(tone_corpus.rglob("*.wav"))[0]
    capsys.readouterr()
    assert main(["transcribe", str(trained), str(recording), *search]) == 0
    assert "back" in capsys.readouterr().out
    names.write_text("naïveté\n")
    assert main(["transcribe", str(trained), str(recording), *search]) == 1
    error = capsys.readouterr().err
    assert "names.txt:1: 'naïveté'" in error
    assert len(error.strip().splitlines()) == 1
