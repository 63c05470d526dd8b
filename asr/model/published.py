"""Published CTC models: loads a folder saved by transformers as an acoustic model with its tokenizer."""

from pathlib import Path
from typing import Any

import torch

from asr.config import from_dict, nested
from asr.errors import UserError
from asr.files import read_json
from asr.model.acoustic_model import AcousticModel, AcousticModelConfig
from asr.model.hub import local_folder
from asr.model.options import FeatureConfig, ModelConfig
from asr.model.pretrained_folder import (
    CONFIG,
    WHISPER,
    Pretrained,
    encoder_options,
    one_line,
    read_pretrained,
    trained_model,
)
from asr.text.tokenizer import PieceTokenizer, VocabularyTokenizer
from asr.text.vocabulary import read_pieces, read_vocabulary

PublishedTokenizer = VocabularyTokenizer | PieceTokenizer


def is_published(path: Path) -> bool:
    """Return whether a folder contains a transformers model, not a run or an export of this project."""
    try:
        return "model_type" in read_json(path / CONFIG)
    except UserError:
        return False


def read_tokenizer(folder: str | Path) -> PublishedTokenizer:
    """Return the vocabulary of a folder; see `read_vocabulary` and `read_pieces`."""
    return _read_tokenizer(local_folder(folder), read_pretrained(folder))[0]


def _read_tokenizer(folder: Path, pretrained: dict[str, Any]) -> tuple[PublishedTokenizer, list[int]]:
    if pretrained["transformers"]["model_type"] == WHISPER:
        raise UserError(
            f"{folder}: expected a model with a CTC head, found Whisper: train a head with asr train "
            f"model.encoder={folder}, or run it with other mechanisms by asr compare model={folder} data=…"
        )
    read = read_pieces if "mel" in pretrained else read_vocabulary
    return read(folder, pretrained["transformers"]["vocab_size"])


def read_head(
    folder: str | Path, pretrained: dict[str, Any], model: ModelConfig
) -> tuple[Pretrained, PublishedTokenizer]:
    """Return encoder and head of a folder, with the head in the order of the tokenizer, blank first.

    Args:
        folder: see `read_pretrained`.
        pretrained: result of `read_pretrained`.
        model: options with the dropout probabilities.

    Raises:
        UserError: see `trained_model` and `read_vocabulary`.
    """
    tokenizer, order = _read_tokenizer(local_folder(folder), pretrained)
    trained = trained_model(folder, pretrained, model, head=True)
    assert trained.weight is not None
    assert trained.bias is not None
    return trained._replace(weight=trained.weight[order], bias=trained.bias[order]), tokenizer


def published_model(folder: Path, backend: str = "auto") -> tuple[AcousticModel, PublishedTokenizer]:
    """Return a published model in evaluation mode with its tokenizer; attention is `full`.

    Args:
        folder: folder written by `save_pretrained` of a model with a CTC head and of its processor.
        backend: `auto`, `reference` or `native`.

    Raises:
        UserError: a file is missing, has other content, or doesn't fit the others.
    """
    pretrained = read_pretrained(folder)
    sections = nested(encoder_options(pretrained))
    config = AcousticModelConfig(
        backend=backend,
        features=from_dict(FeatureConfig, sections["features"], str(folder)),
        model=from_dict(ModelConfig, sections["model"], str(folder)),
        pretrained=pretrained,
    )
    trained, tokenizer = read_head(folder, pretrained, config.model)
    model = AcousticModel(config, len(tokenizer), pretrained=trained).eval()
    samples = model.front_end.window_samples + model.front_end.shift_samples
    with one_line(folder, "a model that can be run"), torch.inference_mode():
        log_probs, _ = model(torch.zeros(1, samples), torch.tensor([samples]))
    if not bool(log_probs.isfinite().all()):
        raise UserError(f"{folder}: expected finite log-probabilities for silence, found NaN")
    return model, tokenizer
