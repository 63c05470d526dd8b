"""Parakeets: log-probabilities and texts of transformers, padding, exchanged attention, training."""

from pathlib import Path

import pytest
import torch
from pretrained_models import utterances
from published_models import (
    PIECES,
    assert_equals_transformers,
    assert_exchangeable,
    make_voices,
    save_parakeet,
    scores_of,
    transformers,
)

from asr.cli import main
from asr.errors import UserError
from asr.model import pretrained_mel
from asr.model.published import published_model
from asr.recognizer import Recognizer

LENGTHS = torch.tensor([16000, 7000, 3001, 1280, 100])
ORDER = [len(PIECES), *range(len(PIECES))]


def check_equal(folder: Path, recognizer: Recognizer) -> None:
    """Check log-probabilities and texts against transformers'."""
    theirs = transformers.AutoModelForCTC.from_pretrained(folder).eval()
    frames = assert_equals_transformers(recognizer.model, theirs, folder, LENGTHS, ORDER)
    assert frames.tolist() == [13, 6, 3, 1, 0]
    process = transformers.AutoProcessor.from_pretrained(folder)
    for samples, length, count in zip(utterances(LENGTHS), LENGTHS, frames.tolist()[:4], strict=False):
        labels = scores_of(theirs, folder, samples[:length], list(range(len(ORDER))))[:count].argmax(-1)
        text = process.tokenizer.decode(labels)
        assert recognizer.transcribe(samples[:length], 16000).text == " ".join(text.split())


def test_log_probabilities_and_texts_equal_those_of_transformers(tmp_path: Path) -> None:
    save_parakeet(tmp_path)
    check_equal(tmp_path, Recognizer.load(tmp_path))


def test_latents_do_not_depend_on_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_parakeet(tmp_path)
    front_end = published_model(tmp_path)[0].front_end
    whole, frames = front_end(utterances(LENGTHS, 1e9), LENGTHS)
    monkeypatch.setattr(pretrained_mel, "BLOCK_FRAMES", 15)  # three of five utterances
    blocks, same = front_end(utterances(LENGTHS, 1e9), LENGTHS)
    assert torch.equal(frames, same)
    torch.testing.assert_close(blocks, whole, rtol=0, atol=1e-5)


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_attention_is_exchanged(backend: str, tmp_path: Path) -> None:
    save_parakeet(tmp_path)
    model, _ = published_model(tmp_path)
    names = ("local-99", "clustered-99", "i-clustered-99:topk=99", "near-99", "oracle-top-99")
    assert_exchangeable(model, LENGTHS, names, backend)
    with pytest.raises(UserError, match="attention 'lsh-1' needs keys tied"):
        model.set_attention("lsh-1")


def test_pieces_write_text_as_those_of_transformers(tmp_path: Path) -> None:
    save_parakeet(tmp_path)
    _, tokenizer = published_model(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in ("abc da", "b", "xa e", ""):
        assert [ORDER[x] for x in tokenizer.encode(text)] == theirs.encode(text)
    assert tokenizer.text(tokenizer.encode("abc da")) == "abc da"
    assert tokenizer.oov("abc xa") == ["xa"]


@pytest.mark.slow
def test_a_parakeet_is_fine_tuned_exported_and_restored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its head is kept, and so are the statistics of its batch normalisation."""
    save_parakeet(tmp_path / "model")
    for split in ("train", "dev"):
        make_voices(tmp_path / "data", ["abc ab", "b ab cab ab"], split)
    options = ["recipe=folder", "tokenizer.kind=sentencepiece", "trainer.max_steps=1", "data.workers=0"]
    options += ["optimizer.learning_rate=1e-2", "optimizer.warmup_steps=0", "model.layer_drop=0"]
    options += [f"data.train=[{tmp_path / 'data'}]", f"model.encoder={tmp_path / 'model'}"]
    assert main(["train", *options, f"run={tmp_path / 'run'}", "trainer.accelerator=cpu"]) == 0
    assert "head and vocabulary are kept" in capsys.readouterr().out
    before, after = (Recognizer.load(tmp_path / x).model.state_dict() for x in ("model", "run"))
    same = {name for name in before if torch.equal(before[name], after[name])}
    assert same >= {x for x in before if x.startswith("front_end.") or ".convolution.norm.running" in x}
    assert (
        not {x for x in before if x.endswith(("query.weight", "position_bias", "projection.weight"))} & same
    )
    assert main(["export", str(tmp_path / "run"), f"out={tmp_path / 'out'}"]) == 0
    assert torch.equal(
        Recognizer.load(tmp_path / "out").model(utterances(LENGTHS, 0.0), LENGTHS)[0],
        Recognizer.load(tmp_path / "run").model(utterances(LENGTHS, 0.0), LENGTHS)[0],
    )
    for _ in range(2):  # the second time over the first
        assert (
            main(["export", str(tmp_path / "run"), "format=transformers", f"out={tmp_path / 'theirs'}"]) == 0
        )
    check_equal(tmp_path / "theirs", Recognizer.load(tmp_path / "run"))
    check_equal(tmp_path / "theirs", Recognizer.load(tmp_path / "theirs"))
    assert main(["export", str(tmp_path / "run"), "format=transformers", f"out={tmp_path / 'model'}"]) == 1
    assert "expected an empty folder or an exported model, found another" in capsys.readouterr().err
