"""Published CTC models: a folder as transformers saves it becomes an acoustic model with its tokenizer, and
an acoustic model with a pretrained encoder such a folder.
"""

import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from asr.config import from_dict, nested
from asr.errors import UserError
from asr.files import read_json
from asr.model.acoustic_model import AcousticModel, AcousticModelConfig
from asr.model.hub import local_folder
from asr.model.options import FeatureConfig, ModelConfig
from asr.model.pretrained import ConvolutionalFrontEnd, pretrained_parts
from asr.model.pretrained_folder import (
    CONFIG,
    PROCESSOR,
    WEIGHTS,
    WHISPER,
    Pretrained,
    ctc_model,
    encoder_options,
    one_line,
    read_pretrained,
    save_ctc,
    trained_model,
)
from asr.text.tokenizer import UNKNOWN, PieceTokenizer, Tokenizer, VocabularyTokenizer
from asr.text.vocabulary import SETTINGS, SYMBOLS, read_pieces, read_vocabulary

PublishedTokenizer = VocabularyTokenizer | PieceTokenizer
CARD = "README.md"
PUBLISHED = (CARD, CONFIG, PROCESSOR, SETTINGS, SYMBOLS, WEIGHTS)  # files of `write_published`


def is_published(path: Path) -> bool:
    """Return whether a folder holds a model of transformers, not one of `asr export` or a run."""
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
            f"model.encoder={folder}, or measure exchanged attention with asr approximate task=transcription"
        )
    read = read_pieces if "mel" in pretrained else read_vocabulary
    return read(folder, pretrained["transformers"]["vocab_size"])


def read_head(
    folder: str | Path, pretrained: dict[str, Any], model: ModelConfig
) -> tuple[Pretrained, PublishedTokenizer]:
    """Return encoder and head of a folder, the head in the order of the tokenizer, whose blank comes first.

    Args:
        folder: see `read_pretrained`.
        pretrained: what `read_pretrained` returned.
        model: dropouts.

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
        folder: what `save_pretrained` of a model with a CTC head and of its processor wrote.
        backend: `auto`, `reference` or `native`.

    Raises:
        UserError: a file is missing, holds something else, or doesn't fit the others.
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


def write_published(model: AcousticModel, tokenizer: Tokenizer, folder: Path) -> list[Path]:
    """Write a folder that `AutoModelForCTC` and `AutoProcessor` of transformers load, and return its files.

    The model card names the mechanism of an exchanged attention, which transformers doesn't compute.

    Raises:
        UserError: the model has no pretrained encoder, or a head or vocabulary that transformers lacks.
        OSError: a file can't be written, e.g. on a full disk.
    """
    config = model.config
    for fits, expected, found in (
        (config.pretrained, "a pretrained encoder (model.encoder=)", "an encoder of this project"),
        (config.topology == "ctc", "loss.topology=ctc", config.topology),
        (isinstance(model.front_end, ConvolutionalFrontEnd), "convolutions from samples", "a mel spectrum"),
        (not config.model.self_conditioned, "model.self_conditioned=false", "true"),
        (tokenizer.unit == "character", "tokenizer.kind=character", tokenizer.unit),
    ):
        if not fits:
            raise UserError(f"format=transformers: expected a model with {expected}, found {found}")
    pad = next(x for x in ("<pad>", "[PAD]", "<ctc>") if x not in tokenizer.symbols)
    symbols = [pad, *tokenizer.symbols[1:]]
    unknown = tokenizer.unknown if isinstance(tokenizer, VocabularyTokenizer) else UNKNOWN
    lower = isinstance(tokenizer, VocabularyTokenizer) and tokenizer.lower
    theirs = ctc_model(config.pretrained, config.model, len(symbols))
    # Their modules, with which our parts share weights.
    parts = pretrained_parts(theirs.base_model, config.pretrained, config.attention, "auto")
    for own, part in zip((model.front_end, model.normalisation, model.encoder), parts, strict=True):
        part.load_state_dict(own.state_dict())
    theirs.lm_head.load_state_dict(model.head.projection.state_dict())
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".", suffix=".partial", dir=folder) as place:
        save_ctc(theirs, symbols, unknown, lower, config.pretrained, Path(place))
        (Path(place) / CARD).write_text(_card(type(theirs).__name__, config.attention), encoding="utf-8")
        (folder / CONFIG).unlink(missing_ok=True)
        written = sorted(Path(place).iterdir(), key=lambda x: x.name == CONFIG)  # which completes the model
        return [file.replace(folder / file.name) for file in written]


def _card(kind: str, attention: str) -> str:
    """Return the text of a model card."""
    lines = [
        "---",
        "library_name: transformers",
        "pipeline_tag: automatic-speech-recognition",
        "---",
        "",
        "# Speech recognition",
        "",
        f"A `{kind}` with its processor, exported by clustered-asr {metadata.version('clustered-asr')}.",
        "`AutoModelForCTC` and `AutoProcessor` of transformers load it, and so does",
        "`asr transcribe <folder> recording.wav`.",
    ]
    if attention != "full":
        lines += [
            "",
            f"The model was used with the attention mechanism `{attention}` in place of full attention.",
            "transformers computes full attention, so its output differs from that of clustered-asr with",
            f"`attention={attention}`.",
        ]
    return "\n".join(lines) + "\n"
