"""wav2vec2-bert: log-probabilities of transformers, padding, exchanged attention."""

from pathlib import Path
from typing import Any

import pytest
import torch
from pretrained_models import utterances
from published_models import (
    BERT,
    SYMBOLS,
    assert_equals_transformers,
    assert_exchangeable,
    save_ctc,
    transformers,
)

from asr.errors import UserError
from asr.model.published import published_model
from asr.model.published_export import write_published
from asr.recognizer import Recognizer

LENGTHS = torch.tensor([16000, 7000, 3001, 300])


def save(folder: Path) -> Any:
    """Write a model with random positions, and return it in evaluation mode."""
    theirs = save_ctc(folder, "wav2vec2-bert", **BERT)
    for name, values in theirs.state_dict().items():
        if name.endswith("distance_embedding.weight"):
            values.normal_()
    theirs.save_pretrained(folder)
    return theirs


def test_log_probabilities_equal_those_of_transformers(tmp_path: Path) -> None:
    theirs = save(tmp_path)
    model, tokenizer = published_model(tmp_path)
    assert tokenizer.symbols == ["<blank>", *SYMBOLS[:-1]]
    assert_equals_transformers(model, theirs, tmp_path, LENGTHS)


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_attention_is_exchanged(backend: str, tmp_path: Path) -> None:
    save(tmp_path)
    names = ("full", "local-200", "clustered-200", "i-clustered-200:topk=200", "near-200")
    assert_exchangeable(published_model(tmp_path)[0], LENGTHS, names, backend)


@torch.no_grad()
def test_a_conformer_is_exported_for_transformers(tmp_path: Path) -> None:
    """They load the folder and transcribe equally, and so does this project."""
    save(tmp_path / "a")
    recognizer = Recognizer.load(tmp_path / "a")
    write_published(recognizer.model, recognizer.tokenizer, tmp_path / "b")
    theirs = transformers.AutoModelForCTC.from_pretrained(tmp_path / "b").eval()
    process = transformers.AutoProcessor.from_pretrained(tmp_path / "b")
    for i, length in enumerate(LENGTHS.tolist()[:2]):
        samples = utterances(LENGTHS, 0.0)[i, :length]
        scores = theirs(**process(samples.numpy(), sampling_rate=16000, return_tensors="pt")).logits
        ours, frames = recognizer.model(samples[None], LENGTHS[i : i + 1])
        scores = scores[:, : int(frames)]
        torch.testing.assert_close(scores.log_softmax(-1), ours, rtol=0, atol=1e-4)
        text = process.tokenizer.decode(scores[0].argmax(-1))
        assert recognizer.transcribe(samples, 16000).text == " ".join(text.split())
    again = Recognizer.load(tmp_path / "b")
    assert torch.equal(again.model(samples[None], LENGTHS[1:2])[0], ours)


def test_a_recording_shorter_than_a_frame_has_none(tmp_path: Path) -> None:
    save(tmp_path)
    front_end = published_model(tmp_path)[0].front_end
    for samples in (0, 100, 500):
        latents, frames = front_end(torch.ones(1, samples), torch.tensor([samples]))
        assert (frames.tolist(), float(latents.abs().sum())) == ([0], 0.0)


def test_what_is_not_run_is_refused_in_one_line(tmp_path: Path) -> None:
    for family, reason in (("sew-d", "logits of positions"), ("granite_speech5_ctc", "blocks of frames")):
        transformers.AutoConfig.for_model(family).save_pretrained(tmp_path / family)
        with pytest.raises(UserError, match=f"expected a model of wav2vec2, .*, found {family}: .*{reason}"):
            Recognizer.load(tmp_path / family)
