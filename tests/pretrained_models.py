"""Folders of tiny pretrained speech models with random weights, as save_pretrained() writes them."""

from pathlib import Path
from typing import Any

import pytest
import torch

from asr.config import from_dict, nested
from asr.model.acoustic_model import AcousticModel, AcousticModelConfig
from asr.model.options import AugmentConfig, FeatureConfig, ModelConfig
from asr.model.pretrained_folder import encoder_options, read_pretrained, trained_model

transformers = pytest.importorskip("transformers", minversion="5", reason="needs transformers ≥ 5")

CONFIGS = {
    "wav2vec2": transformers.Wav2Vec2Config,
    "hubert": transformers.HubertConfig,
    "wavlm": transformers.WavLMConfig,
}
# A frame sees 70 samples, and 160 samples lie between frames.
TINY = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "conv_dim": [16, 16, 16],
    "conv_kernel": [10, 3, 2],
    "conv_stride": [10, 4, 4],
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
    "initializer_range": 0.1,
    "vocab_size": 5,
}
GROUP_POST, LAYER_PRE = ("group", False), ("layer", True)
LAYOUTS = [
    *((family, *norms) for family in ("wav2vec2", "hubert", "wavlm") for norms in (GROUP_POST, LAYER_PRE)),
    ("wav2vec2", "group", True),
    ("wav2vec2", "layer", False),
]


def save_model(
    folder: Path,
    family: str = "wav2vec2",
    norm: str = "group",
    stable: bool = False,
    normalise: bool = True,
    **options: Any,
) -> torch.nn.Module:
    """Write a folder and return its model in evaluation mode."""
    own = {"feat_extract_norm": norm, "do_stable_layer_norm": stable}
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(CONFIGS[family](**(TINY | own | options))).eval()
    model.save_pretrained(folder)
    transformers.Wav2Vec2FeatureExtractor(do_normalize=normalise).save_pretrained(folder)
    return model


def load_model(
    folder: Path,
    attention: str = "full",
    augment: AugmentConfig | None = None,
    vocabulary: int = 5,
    **options: Any,
) -> AcousticModel:
    """Return an acoustic model with the encoder of a folder, in evaluation mode."""
    pretrained = read_pretrained(str(folder))
    sections = nested(encoder_options(pretrained))
    config = AcousticModelConfig(
        attention,
        features=from_dict(FeatureConfig, sections["features"], "folder"),
        model=from_dict(ModelConfig, sections["model"], "folder"),
        pretrained=pretrained,
        **options,
    )
    torch.manual_seed(1)
    return AcousticModel(config, vocabulary, augment, trained_model(folder, pretrained, config.model)).eval()


def utterances(lengths: torch.Tensor, padding: float | None = None) -> torch.Tensor:
    """Return random samples of [B] utterances, [B, 16000], with a value behind each; None: more samples."""
    samples = 0.05 + 0.1 * torch.randn(len(lengths), 16000, generator=torch.Generator().manual_seed(2))
    if padding is not None:
        for own, length in zip(samples, lengths, strict=True):
            own[length:] = padding
    return samples


@torch.no_grad()
def states(
    model: AcousticModel, samples: torch.Tensor, lengths: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the encoder's states [B, T, M] of samples [B, S], and [B] valid frames."""
    return model.encoder(*model.input(samples, lengths))
