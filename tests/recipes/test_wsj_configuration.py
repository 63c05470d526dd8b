"""Resolved configurations of recipe wsj, compared with the paper's settings."""

import pytest

from asr.model.encoder import Encoder
from asr.model.features import FilterBanks
from asr.training.config import train_options
from asr.training.optimizer import build_optimizer
from asr.training.options import TrainConfig

# Fast Transformers with Clustered Attention, sections 4.1 and C.3.1.
PAPER = {
    "features.mel_bins": 40,
    "features.frame_shift_ms": 10.0,
    "model.layers": 9,
    "model.heads": 6,
    "model.head_dim": 32,
    "model.feedforward": 768,
    "model.subsampling": 1,
    "model.positions": "sinusoidal",
    "tokenizer.kind": "phone",
    "optimizer.name": "radam",
    "optimizer.learning_rate": 1e-4,
    "optimizer.weight_decay": 0.01,
    "optimizer.schedule": "plateau",
    "optimizer.warmup_steps": 0,
    "trainer.clip": 10.0,
    "attention": "i-clustered-100",
}


def resolved(*overrides: str) -> TrainConfig:
    return train_options(list(overrides))


def values(options: TrainConfig, names) -> dict[str, object]:
    found = {}
    for name in names:
        value: object = options
        for part in name.split("."):
            value = getattr(value, part)
        found[name] = value
    return found


def test_recipe_wsj_matches_the_paper() -> None:
    options = resolved("recipe=wsj", "attention=i-clustered-100")
    assert values(options, PAPER) == PAPER
    assert options.data.train == ["data/wsj/si284.cuts.jsonl.gz"]
    assert options.data.dev == "data/wsj/dev93.cuts.jsonl.gz"


def test_the_longest_utterance_has_2500_frames() -> None:
    options = resolved("recipe=wsj")
    banks = FilterBanks(options.features)
    import torch

    samples = round(options.data.max_duration_s * options.features.sample_rate)
    assert banks.frames(torch.tensor([samples, samples - 1])).tolist() == [2500, 2499]


@pytest.mark.parametrize("layers", [4, 6])
def test_shallower_variants_differ_only_in_depth(layers: int) -> None:
    options = resolved(f"recipe=wsj_{layers}layers", "attention=i-clustered-100")
    assert values(options, PAPER) == PAPER | {"model.layers": layers}
    assert options.recipe.name == f"wsj_{layers}layers"
    assert options.data == resolved("recipe=wsj").data


def test_model_and_optimizer_are_built_as_configured() -> None:
    options = resolved("recipe=wsj_4layers")
    encoder = Encoder(options.model, options.features.mel_bins)
    assert len(encoder.blocks) == 4
    assert encoder.subsampling.projection.weight.shape == (192, 40)
    optimizer = build_optimizer(dict(encoder.named_parameters()), options.optimizer)
    assert type(optimizer).__name__ == "RAdam"
    assert [group["lr"] for group in optimizer.param_groups] == [1e-4, 1e-4]
    assert optimizer.param_groups[0]["weight_decay"] == 0.01


def test_the_modern_variant() -> None:
    options = resolved("recipe=wsj_modern")
    expected = {
        "model.subsampling": 4,
        "tokenizer.kind": "sentencepiece",
        "features.mel_bins": 80,
        "optimizer.name": "adamw",
        "recipe.name": "wsj_modern",
    }
    assert values(options, expected) == expected
    assert options.augment.speed_factors == [0.9, 1.0, 1.1]
    assert options.data == resolved("recipe=wsj").data
