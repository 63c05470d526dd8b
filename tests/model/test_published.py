"""Published CTC models: log-probabilities of transformers, exchanged attention, the Hub's cache."""

from pathlib import Path

import pytest
import torch
from pretrained_models import LAYOUTS, utterances
from published_models import SYMBOLS, assert_equals_transformers, save_ctc, scores_of, transformers

from asr.errors import UserError
from asr.model.published import published_model
from asr.recognizer import Recognizer

LENGTHS = torch.tensor([16000, 7000, 3001])


OTHERS = [
    ("unispeech", "group", False),
    ("unispeech-sat", "group", False),
    ("unispeech-sat", "layer", True),
]


@pytest.mark.parametrize(("family", "norm", "stable"), [*LAYOUTS, *OTHERS])
def test_log_probabilities_equal_those_of_transformers(
    family: str, norm: str, stable: bool, tmp_path: Path
) -> None:
    """Alone, and in a batch with padding of any values, where those of transformers differ."""
    theirs = save_ctc(tmp_path, family, feat_extract_norm=norm, do_stable_layer_norm=stable)
    model, tokenizer = published_model(tmp_path)
    assert tokenizer.symbols == ["<blank>", *SYMBOLS[:-1]]
    assert_equals_transformers(model, theirs, tmp_path, LENGTHS)


@pytest.mark.parametrize("family", ["wav2vec2", "wavlm"])
def test_attention_is_exchanged(family: str, tmp_path: Path) -> None:
    save_ctc(tmp_path, family, initializer_range=0.5)
    full, _ = Recognizer.load(tmp_path).model(utterances(LENGTHS, 0.0), LENGTHS)
    same = Recognizer.load(tmp_path, attention="local-1000", backend="reference")
    assert same.model.attention == "local-1000"
    torch.testing.assert_close(
        same.model(utterances(LENGTHS, 0.0), LENGTHS)[0][0], full[0], rtol=0, atol=1e-4
    )
    other = Recognizer.load(tmp_path, attention="i-clustered-4:topk=3")
    assert (other.model(utterances(LENGTHS, 0.0), LENGTHS)[0][0] - full[0]).abs().max() > 0.1


def test_another_blank_is_no_label(tmp_path: Path) -> None:
    """The tokenizer's padding token is the blank; the configuration's number may be another."""
    save_ctc(tmp_path, pad_token_id=0)
    theirs = transformers.Wav2Vec2ForCTC.from_pretrained(tmp_path).eval()
    model, _ = published_model(tmp_path)
    expected = scores_of(theirs, tmp_path, utterances(LENGTHS, 0.0)[0])
    torch.testing.assert_close(
        model(utterances(LENGTHS, 0.0)[:1], LENGTHS[:1])[0][0], expected, rtol=0, atol=1e-4
    )


def test_an_encoder_without_a_head_says_how_to_train_one(tmp_path: Path) -> None:
    save_ctc(tmp_path).wav2vec2.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"expected a model with a CTC head, .*asr train model.encoder="):
        Recognizer.load(tmp_path)


def test_weights_in_shards_are_read(tmp_path: Path) -> None:
    model = save_ctc(tmp_path)
    expected = published_model(tmp_path)[0].digest()
    (tmp_path / "model.safetensors").unlink()
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*-of-*.safetensors"))) > 1
    assert published_model(tmp_path)[0].digest() == expected


def test_a_model_of_the_hub_is_found_in_its_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Results lie in exp/owner/model: the cache is no place for them."""
    from huggingface_hub import constants

    from asr.cli import main

    repository = tmp_path / "cache" / "models--owner--tiny"
    save_ctc(repository / "snapshots" / "0123")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0123")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    recognizer = Recognizer.load("owner/tiny")
    assert recognizer.run_folder == Path("exp/owner/tiny")
    assert main(["transcribe", "owner/other", "x.wav"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("asr: owner/other: expected a local path or a model of the Hugging Face Hub")
    Path("owner").mkdir()
    with pytest.raises(UserError, match=r"owner/tiny: .*no checkpoint"):  # a typing error reaches no network
        Recognizer.load("owner/tiny")
