"""`asr lm`, and decoding with its language models, on the tone corpus."""

import json
import shutil
from pathlib import Path

import pytest

from asr.cli import main
from asr.files import read_record
from asr.lm.arpa import read_vocabulary
from asr.scoring.hypotheses import read_hypotheses

pytest.importorskip("flashlight.lib.text", reason="flashlight-text is not installed")


@pytest.fixture(scope="module")
def bigram(tone_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lm") / "bigram.arpa"
    assert main(["lm", "train", f"text={tone_corpus}", "order=2", f"out={path}"]) == 0
    return path


def test_training_reports_the_size_and_perplexity_of_the_model(
    tone_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "more.txt").write_text("a dog sat\n\na <NOISE> dog\n")
    text = f"text={tone_corpus},{tmp_path / 'more.txt'}"
    assert main(["lm", "train", text, f"out={tmp_path / 'tri.arpa.gz'}", f"heldout={tone_corpus}"]) == 0
    printed = capsys.readouterr().out
    assert "62 sentences" in printed
    assert "8 distinct" in printed
    assert "perplexity" in printed
    assert read_vocabulary(tmp_path / "tri.arpa.gz") == {
        *("<unk>", "<s>", "</s>"),
        *("a", "be", "cat", "sea", "tea", "back", "dog", "sat"),
    }


def test_a_lexicon_closes_the_vocabulary(tone_corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("a\nbe\ngnu\n")
    out = tmp_path / "lm.arpa"
    assert (
        main(["lm", "train", f"text={tone_corpus}", f"out={out}", f"lexicon={tmp_path / 'words.txt'}"]) == 0
    )
    assert read_vocabulary(out) == {"<unk>", "<s>", "</s>", "a", "be", "gnu"}


def test_scoring_reports_perplexity_and_unknown_words(
    bigram: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.txt").write_text("a cat\nbe gnu\na gnu\n")
    assert main(["lm", "score", f"lm={bigram}", f"text={tmp_path / 'text.txt'}"]) == 0
    printed = capsys.readouterr().out
    assert "3 sentences, 6 words, perplexity" in printed
    assert "2 unknown words (33.33 %)" in printed
    assert "gnu ×2" in printed


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["lm"], "takes one of train, score, found none"),
        (["lm", "trian"], "did you mean 'train'"),
        (["lm", "score", "a.arpa"], "asr lm score takes key=value options only, found 'a.arpa'"),
        (["lm", "train", "out=a.arpa"], "needs text="),
        (["lm", "train", "text={here}/text.txt"], "needs out="),
        (["lm", "train", "text={here}/text.txt", "out={here}/a.lm"], "ends in .arpa"),
        (["lm", "train", "text={here}/none.txt", "out={here}/a.arpa"], "none.txt: expected a text"),
        (["lm", "train", "text={here}/text.txt", "out={here}/a.arpa", "order=1"], "order=1: expected"),
        (["lm", "train", "text={here}/bytes.txt", "out={here}/a.arpa"], "bytes.txt:1: expected a text"),
        (["lm", "train", "text={here}/empty.txt", "out={here}/a.arpa"], "no sentence with a word"),
        (["lm", "score", "text={here}/text.txt"], "needs lm="),
        (["lm", "score", "lm={bigram}", "text={here}/text.txt"], "differ in case from those of the text"),
        (["lm", "score", "lm={bigram}", "text={here}/text.txt", "split=dev"], "split=dev: has no effect"),
        (
            ["lm", "train", "text={here}/text.txt", "out={here}/a.arpa", "split=dev"],
            "split=dev: has no effect",
        ),
    ],
)
def test_errors_are_one_line(
    overrides: list[str], reason: str, bigram: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.txt").write_text("A CAT\nBE A CAT\n")
    (tmp_path / "bytes.txt").write_bytes(b"a \xff\n")
    (tmp_path / "empty.txt").write_text("\n\n")
    assert main([x.format(here=tmp_path, bigram=bigram) for x in overrides]) == 1
    error = capsys.readouterr().err
    assert reason in error
    assert len(error.strip().splitlines()) == 1


def test_a_binary_without_words_has_no_number_of_words(
    bigram: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`0 words` stood there."""
    (tmp_path / "text.txt").write_text("the company said\n")
    content = (Path(__file__).parents[1] / "lm" / "data" / "lmplz.trie").read_bytes()
    for name, words in ("whole", ", 280 words"), ("without", ""):
        (tmp_path / name).write_bytes(content if words else content + b"x")
        assert main(["lm", "score", f"lm={tmp_path / name}", f"text={tmp_path / 'text.txt'}"]) == 0
        first = capsys.readouterr().out.splitlines()[0]
        assert first.endswith(f"{(tmp_path / name).stat().st_size:,} bytes{words}")


@pytest.mark.slow
def test_decoding_stores_and_reuses_tuned_weights(
    trained: Path, bigram: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))  # a copy, because tuned weights are stored there
    with_lm = [str(run), "decoder=beam", f"beam.lm={bigram}", "beam.size=20"]
    assert main(["decode", *with_lm, "tune=dev", "beam.nbest=3"]) == 0
    assert "tuned on 8 utterances of dev" in capsys.readouterr().out
    folder = run / "decode" / "test" / "full-beam-bigram"
    (found,) = read_record(run / "decode" / "tuned.json").values()
    assert found["split"] == "dev"
    assert len(found["trials"]) > 5
    assert found["errors"] == min(trial["errors"] for trial in found["trials"])
    hypotheses = read_hypotheses(folder / "hyp.jsonl")
    for hypothesis in hypotheses:
        assert hypothesis.nbest[0]["text"] == hypothesis.text
        assert 1 <= len(hypothesis.nbest) <= 3
        assert [word["word"] for word in hypothesis.words] == hypothesis.text.split()
        for word in hypothesis.words:
            assert 0 <= word["start_s"] < word["end_s"] <= hypothesis.duration_s + 0.05
            assert 0 < word["confidence"] <= 1

    assert main(["decode", *with_lm]) == 0
    about = json.loads((folder / "decode.json").read_text())
    assert about["beam"]["lm_weight"] == found["lm_weight"]
    assert about["beam"]["size"] == 20  # from the command line
    assert "tuned.json" in about["weights_from"]
    assert about["search_cpu_s"] > 0


@pytest.mark.slow
def test_decoding_with_an_ngram_model_of_phones(trained: Path, tone_corpus: Path, tmp_path: Path) -> None:
    phones = tmp_path / "phones.arpa"
    assert main(["lm", "train", f"text={tone_corpus}", f"out={phones}", f"model={trained}"]) == 0
    assert {"AA", "IY", "SPN"} < read_vocabulary(phones)
    output = tmp_path / "out"
    assert main(["decode", str(trained), "decoder=prefix", f"beam.lm={phones}", f"output={output}"]) == 0
    assert main(["score", str(output)]) == 0
    assert json.loads((output / "score.json").read_text())["wer"]["rate"] < 0.1
