"""Forward times of several models on the same utterances."""

from pathlib import Path

import pytest
from pretrained_models import load_model, save_model
from torch import Tensor

from asr.compare import timing
from asr.compare.timing import Runner, forward_times
from asr.model.acoustic_model import AcousticModel, AcousticModelConfig
from asr.model.features import FeatureConfig
from asr.model.portable import write_portable
from asr.recognizer import Recognizer
from asr.text.tokenizer import CharacterTokenizer


def test_pretrained_models_of_several_sizes_have_inputs_of_their_own(
    tone_corpus: Path, tmp_path: Path
) -> None:
    """Models with equal feature settings shared the input of the first, which others couldn't take."""
    tokenizer = CharacterTokenizer.train(["abc"])
    for size in (24, 36):
        save_model(tmp_path / f"encoder-{size}", hidden_size=size)
        model = load_model(tmp_path / f"encoder-{size}", vocabulary=len(tokenizer))
        write_portable(Recognizer(model, tokenizer).state(), tmp_path / f"model-{size}")
    times, _ = forward_times(
        [(tmp_path / "model-24", "full"), (tmp_path / "model-36", "full")],
        tone_corpus / "test.cuts.jsonl.gz",
        repeats=1,
        frames_per_batch=1000,
        device="cpu",
        threads=1,
        advance=lambda share: None,
    )
    assert [entry["error"] for entry in times] == ["", ""]


def test_every_model_hears_audio_at_its_own_sample_rate(
    tone_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All models got the samples of the first model's rate: one for 8 kHz had twice the frames to encode."""
    tokenizer = CharacterTokenizer.train(["abc"])
    for rate in (16000, 8000):
        config = AcousticModelConfig("full", features=FeatureConfig(sample_rate=rate, mel_bins=20))
        write_portable(
            Recognizer(AcousticModel(config, len(tokenizer)), tokenizer).state(), tmp_path / str(rate)
        )
    frames: dict[int, int] = {}

    def run(runner: Runner, features: Tensor, lengths: Tensor, repeat: int, device: str) -> None:
        frames[runner.model.sample_rate] = int(lengths.sum())

    monkeypatch.setattr(timing, "_run", run)
    forward_times(
        [(tmp_path / "16000", "full"), (tmp_path / "8000", "full")],
        tone_corpus / "test.cuts.jsonl.gz",
        repeats=1,
        frames_per_batch=100_000,
        device="cpu",
        threads=1,
        advance=lambda share: None,
    )
    assert frames[8000] == pytest.approx(frames[16000], rel=0.01)
