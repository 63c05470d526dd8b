"""Augmentation of features, and options of all augmentation."""

from pathlib import Path

import pytest
import torch

from asr.cli import main
from asr.model.augment import spec_augment
from asr.model.options import AugmentConfig

MASKS = AugmentConfig(frequency_masks=2, frequency_mask_bins=8, time_mask_every=50, time_mask_frames=12)


def masked(lengths: list[int], frames: int, seed: int = 0) -> torch.Tensor:
    torch.manual_seed(seed)
    return spec_augment(torch.ones(len(lengths), frames, 80), torch.tensor(lengths), MASKS) == 0


def test_masks_stay_within_their_sizes() -> None:
    for seed in range(50):
        hidden = masked([200], 200, seed)[0]
        assert int(hidden.all(dim=0).sum()) <= 2 * 8
        assert int(hidden.all(dim=1).sum()) <= 4 * 12


def test_time_and_frequency_masks_occur() -> None:
    hidden = torch.stack([masked([200], 200, seed)[0] for seed in range(20)])
    assert hidden.all(dim=1).any()
    assert hidden.all(dim=2).any()


def test_the_number_of_time_masks_follows_the_length_of_the_utterance() -> None:
    """Masks drawn over the length of the batch would hide too much or nothing of a short utterance."""
    hidden_frames = torch.stack([masked([60, 600], 600, seed)[0].all(dim=1) for seed in range(30)])
    assert not hidden_frames[:, 60:].any()
    assert int(hidden_frames.sum(dim=1).max()) <= 2 * 12


def test_no_time_mask_covers_more_than_half_of_a_short_utterance() -> None:
    """One of 12 frames could hide a whole word of 12."""
    hidden = torch.stack([masked([12, 3, 1, 200], 200, seed).all(dim=2).sum(dim=1) for seed in range(60)])
    assert hidden[:, :3].amax(dim=0).tolist() == [6, 1, 0]
    assert int(hidden[:, 3].max()) > 12


def test_masks_depend_on_the_random_state() -> None:
    assert torch.equal(masked([100, 90], 100, 1), masked([100, 90], 100, 1))
    assert not torch.equal(masked([100, 90], 100, 1), masked([100, 90], 100, 2))


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("speed_factors=[]", "expected one or more numbers"),
        ("speed_factors=[1.0,0.0]", "expected a number 0.1 … 10"),
        ("speed_factors=[nan]", "expected a number 0.1 … 10"),
        ("speed_factors=[inf]", "expected a number 0.1 … 10"),
        ("noise_snr_db=[5]", "expected two ascending numbers"),
        ("noise_snr_db=[20,5]", "expected two ascending numbers"),
        ("noise_snr_db=[5,nan]", "expected a number -200 … 200"),
        ("tempo_factors=[3]", "expected a number 0.5 … 2"),
        ("codecs=[morse]", "expected one of narrow, mu-law, gsm, mp3"),
        ("noise_snr_db=[5,10,20]", "expected two ascending numbers"),
    ],
)
def test_training_rejects_invalid_options(
    word: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`speed_factors=[]` and `noise_snr_db=[5]` ended training with a traceback."""
    assert main(["train", "recipe=demo", f"augment.{word}", f"run={tmp_path}"]) == 1
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith(f"asr: augment.{word.partition('=')[0]}=")
    assert expected in line
