"""A CTC model that transformers trained and saved, through the commands that take a recogniser."""

import gzip
import json
import random
from pathlib import Path

import pytest
import soundfile
import torch
from once import once
from published_models import RATE, make_voices, sentence, train_ctc, transformers, voice

from asr.cli import main
from asr.commands.export import run
from asr.errors import UserError
from asr.model.options import ExportOptions
from asr.recognizer import Recognizer

FINE = [
    "recipe=folder",
    "tokenizer.kind=character",
    "data.workers=0",
    "trainer.accelerator=cpu",
    "trainer.max_epochs=1",
    "trainer.max_steps=1",
    "optimizer.learning_rate=1e-6",
]
TEXTS = [sentence(random.Random(i)).lower() for i in range(100, 112)]


@pytest.fixture(scope="module")
def published(shared: Path) -> Path:
    """Folder of the trained model."""
    return once(shared / "published", train_ctc)


@pytest.fixture(scope="module")
def voices(shared: Path) -> Path:
    """Prepared folder with a test split."""
    return once(shared / "voices", lambda folder: make_voices(folder, TEXTS))


def pipeline_texts(folder: Path, texts: list[str]) -> list[str]:
    """Return what transformers recognises in voices, with single spaces."""
    process = transformers.AutoProcessor.from_pretrained(folder)
    recognise = transformers.pipeline(
        "automatic-speech-recognition",
        model=transformers.AutoModelForCTC.from_pretrained(folder),
        tokenizer=process.tokenizer,
        feature_extractor=process.feature_extractor,
    )
    found = [recognise({"raw": voice(text), "sampling_rate": RATE})["text"] for text in texts]
    return [" ".join(text.split()) for text in found]


def test_greedy_texts_equal_those_of_transformers(published: Path) -> None:
    """Also where letters are wrong: those of a model of few steps are."""
    expected = pipeline_texts(published, TEXTS)
    assert all(expected)
    recognizer = Recognizer.load(published)
    assert [recognizer.transcribe(voice(text), RATE).text for text in TEXTS] == expected
    assert [x.text for x in recognizer.transcribe([voice(text) for text in TEXTS], RATE)] == expected
    right = sum(x == text.upper() for x, text in zip(expected, TEXTS, strict=True))
    assert right > len(TEXTS) / 2


def test_a_split_is_decoded_beside_the_model_or_elsewhere(
    published: Path, voices: Path, tmp_path: Path
) -> None:
    expected = pipeline_texts(published, TEXTS)
    out = tmp_path / "out"
    assert main(["decode", str(published), f"data={voices}", f"output={out}", "attention=local-3"]) == 0
    assert len((out / "hyp.jsonl").read_text().splitlines()) == len(TEXTS)
    assert main(["decode", str(published), f"data={voices}", f"output={tmp_path / 'full'}"]) == 0
    lines = map(json.loads, (tmp_path / "full" / "hyp.jsonl").read_text().splitlines())
    assert [line["text"] for line in lines] == expected


def test_audio_is_transcribed_aligned_and_segmented(
    published: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The known text is in lower case and the vocabulary in upper case."""
    text = "abc de cab ed"
    wav = tmp_path / "x.wav"
    soundfile.write(wav, voice(text), RATE)
    assert main(["transcribe", str(published), str(wav), "attention=local-99"]) == 0
    assert capsys.readouterr().out.strip() == pipeline_texts(published, [text])[0]
    assert main(["align", str(published), str(wav), f"text={text}", f"output={tmp_path}"]) == 0
    (entry,) = map(json.loads, (tmp_path / "x.jsonl").read_text().splitlines())
    starts = [word["start_s"] for word in entry["words"]]
    assert starts == pytest.approx([0.0, 0.2, 0.35, 0.55], abs=0.04)
    (tmp_path / "x.txt").write_text("abc de.\ncab ed.\n")
    assert main(["segment", str(published), str(wav), str(tmp_path / "x.txt"), "min_fit=0.05"]) == 0
    assert len(list((tmp_path / "x.segments").glob("*.flac"))) == 2


@pytest.mark.slow
def test_a_folder_for_transformers_transcribes_equally(published: Path, tmp_path: Path) -> None:
    """And back; the model card names an exchanged attention."""
    expected = pipeline_texts(published, TEXTS)
    assert main(["export", str(published), "format=transformers", f"out={tmp_path / 'same'}"]) == 0
    assert pipeline_texts(tmp_path / "same", TEXTS) == expected
    assert "attention" not in (tmp_path / "same" / "README.md").read_text()
    same, original = (Recognizer.load(x).model.state_dict() for x in (tmp_path / "same", published))
    assert all(torch.equal(x, original[name]) for name, x in same.items())
    other = ["export", str(tmp_path / "same"), "format=transformers", f"out={tmp_path / 'other'}"]
    assert main([*other, "attention=i-clustered-4"]) == 0
    assert "`i-clustered-4" in (tmp_path / "other" / "README.md").read_text()
    assert pipeline_texts(tmp_path / "other", TEXTS[:1]) == expected[:1]
    assert main([*other, "attention=i-clustered-4"]) == 0  # a second time, over the first
    (tmp_path / "other" / "mine.txt").touch()
    assert main(other) == 1


@pytest.mark.slow
@pytest.mark.parametrize("letter", ["e", "f"])
def test_fine_tuning_keeps_the_head_if_it_has_the_characters(
    letter: str, published: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The transcripts are in lower case; so are those of the fine-tuned model."""
    make_voices(tmp_path / "data", TEXTS, "train")
    make_voices(tmp_path / "data", ["ab e", "ba"], "dev")
    cuts = tmp_path / "data" / "train.cuts.jsonl.gz"
    cuts.write_bytes(
        gzip.compress(gzip.decompress(cuts.read_bytes()).replace(b'"text": "', f'"text": "{letter}'.encode()))
    )
    options = [
        *FINE,
        f"data.train=[{tmp_path / 'data'}]",
        f"model.encoder={published}",
        f"run={tmp_path / 'run'}",
    ]
    assert main(["train", *options]) == 0
    found = Recognizer.load(tmp_path / "run")
    said = capsys.readouterr().out
    if letter == "e":
        assert f"model.encoder={published}: head and vocabulary are kept" in said
        assert found.tokenizer.symbols == ["<blank>", *"abcde|", "<unk>", "<s>", "</s>"]
        assert [found.transcribe(voice(x), RATE).text for x in TEXTS] == [
            x.lower() for x in pipeline_texts(published, TEXTS)
        ]
    else:
        assert "a new head replaces its own and its vocabulary, which has no f" in said
        assert found.tokenizer.symbols == ["<blank>", "<unk>", "|", *"abcdef"]
    assert main(["export", str(tmp_path / "run"), "format=transformers", f"out={tmp_path / 'out'}"]) == 0
    ours = [found.transcribe(voice(x), RATE).text.replace("⁇", "<unk>") for x in TEXTS[:3]]
    assert ours == pipeline_texts(tmp_path / "out", TEXTS[:3])


def test_what_transformers_lacks_is_not_exported_for_it(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="expected a model with a pretrained encoder"):
        run([trained], ExportOptions(str(tmp_path / "out"), "transformers"))


def test_an_exported_model_transcribes_as_the_published_one(published: Path, tmp_path: Path) -> None:
    assert main(["export", str(published), f"out={tmp_path / 'model'}"]) == 0
    exported = Recognizer.load(tmp_path / "model")
    assert exported.model.digest() == Recognizer.load(published).model.digest()
    assert [exported.transcribe(voice(x), RATE).text for x in TEXTS] == pipeline_texts(published, TEXTS)
