"""Frame schedules in published models: padding, distances, exchanged attention, exports."""

from pathlib import Path

import pytest
import torch
from pretrained_models import load_model, save_model, utterances
from published_models import BERT, save_ctc, save_parakeet
from tiny_whisper import save_whisper

from asr.attention.layer import FrameRate
from asr.errors import UserError
from asr.model.acoustic_model import AcousticModel
from asr.model.published_export import write_published
from asr.recognizer import Recognizer

LENGTHS = torch.tensor([16000, 7000, 3001, 1280])
SPACED = ["wavlm", "wav2vec2-bert", "parakeet"]
FAMILIES = ["wav2vec2", *SPACED, "whisper"]


def model_of(family: str, folder: Path) -> AcousticModel:
    """Return a model of two layers, with random distances."""
    match family:
        case "parakeet":
            save_parakeet(folder)
        case "whisper":
            save_whisper(folder)
        case "wav2vec2-bert":
            save_ctc(folder, family, **BERT)
        case _:
            save_model(folder, family)
    return load_model(folder)


@pytest.mark.parametrize(
    ("family", "schedule"),
    [*((family, "1,3") for family in FAMILIES), ("wav2vec2", "merge-0.4"), ("whisper", "merge-0.5:cap=3")],
)
@torch.no_grad()
def test_neither_padding_nor_exact_mechanisms_change_a_result(
    family: str, schedule: str, tmp_path: Path
) -> None:
    """With as many clusters and keys as frames, every mechanism is full attention, whatever frames count."""
    model = model_of(family, tmp_path)
    full, frames = model(utterances(LENGTHS, 0.0), LENGTHS)
    model.set_frames(schedule)
    thirds, same = model(utterances(LENGTHS, 0.0), LENGTHS)
    assert torch.equal(frames, same)
    keep = torch.arange(full.shape[1]) < frames.unsqueeze(1)
    assert (full - thirds)[keep].abs().max() > 1e-3
    for row, (length, count) in enumerate(zip(LENGTHS.tolist(), frames.tolist(), strict=True)):
        alone, _ = model(utterances(LENGTHS)[row : row + 1, :length], LENGTHS[row : row + 1])
        torch.testing.assert_close(alone[0], thirds[row, :count], rtol=0, atol=2e-4)
    for name in ("full", "local-200", "i-clustered-200:topk=200", "near-200"):
        for backend in ("auto", "reference"):
            model.set_attention(name, backend)
            found, _ = model(utterances(LENGTHS, float("nan")), LENGTHS)
            torch.testing.assert_close(found[keep], thirds[keep], rtol=0, atol=3e-4)


@pytest.mark.parametrize("family", SPACED)
@torch.no_grad()
def test_relative_positions_count_in_frames_of_the_encoder(family: str, tmp_path: Path) -> None:
    """Weights of every third position, scaled to a sum of 1, are those of a third of the frames."""
    model = model_of(family, tmp_path)
    layer, x = model.attention_layers()[0], torch.randn(1, 9, model.config.model.size)
    spread = torch.randn(1, 27, x.shape[2])
    spread[:, ::3] = x
    long = layer.weights("full", spread)[:, :, ::3, ::3]
    short = layer.weights("full", x, FrameRate(3, None))
    torch.testing.assert_close(short, long / long.sum(-1, keepdim=True), rtol=0, atol=1e-5)
    apart = layer.weights("full", x)
    assert (apart - short).abs().max() > 1e-3


@pytest.mark.parametrize("family", SPACED)
def test_relative_positions_need_equal_distances(family: str, tmp_path: Path) -> None:
    model = model_of(family, tmp_path)
    with pytest.raises(UserError, match=r"^frames=merge-0\.4: expected factors: .* at equal distances"):
        model.set_frames("merge-0.4")
    assert model.config.model.frames == "1"
    model.set_frames("merge-0")


def test_transformers_computes_all_frames(tmp_path: Path) -> None:
    save_ctc(tmp_path / "model")
    recognizer = Recognizer.load(tmp_path / "model", frames="1,2")
    with pytest.raises(UserError, match=r"all frames in each layer \(frames=1\), found 1,2"):
        write_published(recognizer.model, recognizer.tokenizer, tmp_path / "out")
    recognizer.set_frames("merge-0.4")
    with pytest.raises(UserError, match=r"found merge-0\.4:cap=2,at=2"):
        write_published(recognizer.model, recognizer.tokenizer, tmp_path / "out")
    recognizer.set_frames("1")
    assert write_published(recognizer.model, recognizer.tokenizer, tmp_path / "out")
