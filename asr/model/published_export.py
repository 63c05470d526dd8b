"""Export for transformers: writes an acoustic model with a pretrained encoder as a CTC model's folder."""

import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

from asr.attention.transformers_adapter import import_transformers, quiet
from asr.errors import UserError
from asr.files import write_json
from asr.model.acoustic_model import AcousticModel
from asr.model.portable import check_replaceable
from asr.model.pretrained import pretrained_parts
from asr.model.pretrained_folder import (
    CONFIG,
    PARAKEET,
    PROCESSOR,
    STACKED,
    WEIGHTS,
    WHISPER,
    ctc_head,
    ctc_model,
    encoder_of,
    feature_extractor,
)
from asr.text.tokenizer import UNKNOWN, PieceTokenizer, Tokenizer, VocabularyTokenizer
from asr.text.vocabulary import PIECES, SETTINGS, SYMBOLS

CARD, AUTHOR = "README.md", "exported by clustered-asr"
GENERATION = "generation_config.json"  # Parakeet only
FILES = (CARD, CONFIG, GENERATION, PROCESSOR, SETTINGS, SYMBOLS, PIECES, WEIGHTS)


def check_target(folder: Path) -> None:
    """Raise UserError if a folder contains files besides those of `write_published`, or can't be written."""
    check_replaceable(folder, FILES)
    card = folder / CARD
    exported = card.exists() and AUTHOR in card.read_text(encoding="utf-8", errors="replace")
    if (folder / CONFIG).exists() and not exported:
        raise UserError(f"out={folder}: expected an empty folder or an exported model, found another model")


def write_published(model: AcousticModel, tokenizer: Tokenizer, folder: Path) -> list[Path]:
    """Write a folder for transformers' `AutoModelForCTC` and `AutoProcessor`, and return its files.

    If attention was exchanged, the model card names the mechanism, which transformers doesn't compute.

    Raises:
        UserError: the model has no pretrained encoder, or transformers lacks its kind of head or vocabulary.
        OSError: a file can't be written, e.g. on a full disk.
    """
    _check(model, tokenizer)
    pretrained, config = model.config.pretrained, model.config
    order = tokenizer.order if isinstance(tokenizer, PieceTokenizer) else list(range(len(tokenizer)))
    theirs = ctc_model(pretrained, config.model, len(order), order[0])
    # Transformers' modules, whose weights our parts share.
    parts = pretrained_parts(encoder_of(theirs), pretrained, config.attention, "auto")
    for module, part in zip((model.front_end, model.normalisation, model.encoder), parts, strict=True):
        part.load_state_dict(module.state_dict())
    for name, values in model.head.projection.state_dict().items():
        place = getattr(ctc_head(theirs), name).data
        place[order] = values.view_as(place)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".", suffix=".partial", dir=folder) as temporary, quiet():
        place = Path(temporary)
        theirs.save_pretrained(place)
        _processor(pretrained, tokenizer, place).save_pretrained(place)
        (place / CARD).write_text(_card(type(theirs).__name__, config.attention), encoding="utf-8")
        for name in FILES:  # including files of an earlier export with another vocabulary
            (folder / name).unlink(missing_ok=True)
        written = sorted(place.iterdir(), key=lambda x: x.name == CONFIG)  # last: it completes the model
        return [file.replace(folder / file.name) for file in written]


def _check(model: AcousticModel, tokenizer: Tokenizer) -> None:
    """Raise UserError unless transformers supports such a model."""
    config = model.config
    kind = config.pretrained.get("transformers", {}).get("model_type")
    unit = "the pieces of a published model" if kind == PARAKEET else "tokenizer.kind=character"
    fits = isinstance(tokenizer, PieceTokenizer) if kind == PARAKEET else tokenizer.unit == "character"
    for right, expected, found in (
        (kind, "a pretrained encoder (model.encoder=)", "an encoder of this project"),
        (kind != WHISPER, "an encoder that has a CTC head in transformers", "Whisper's"),
        (config.topology == "ctc", "loss.topology=ctc", config.topology),
        (set(model.encoder.factors) == {1}, "all frames in each layer (frames=1)", config.model.frames),
        (not config.model.self_conditioned, "model.self_conditioned=false", "true"),
        (fits, unit, f"a vocabulary of {tokenizer.unit}s"),
    ):
        if not right:
            raise UserError(f"format=transformers: expected a model with {expected}, found {found}")


def _processor(pretrained: dict[str, Any], tokenizer: Tokenizer, folder: Path) -> Any:
    """Return transformers' processor; a vocabulary is written into a folder."""
    transformers, extractor = import_transformers(), feature_extractor(pretrained)
    if isinstance(tokenizer, PieceTokenizer):
        from tokenizers import Tokenizer as Pieces

        pieces = Pieces.from_str(tokenizer.model)
        special = {"pad_token": pieces.id_to_token(tokenizer.order[0])}
        special |= {"unk_token": UNKNOWN} if UNKNOWN in tokenizer.symbols else {}
        theirs = transformers.ParakeetTokenizer(tokenizer_object=pieces, **special)
        return transformers.ParakeetProcessor(extractor, theirs)
    pad = next(x for x in ("<pad>", "[PAD]", "<ctc>") if x not in tokenizer.symbols)
    symbols = [pad, *tokenizer.symbols[1:]]
    write_json({symbol: i for i, symbol in enumerate(symbols)}, folder / SYMBOLS)
    special = {f"{name}_token": x if x in symbols else None for name, x in (("bos", "<s>"), ("eos", "</s>"))}
    unknown: str | None = UNKNOWN
    lower = False
    if isinstance(tokenizer, VocabularyTokenizer):
        unknown, lower = tokenizer.unknown, tokenizer.lower
    theirs = transformers.Wav2Vec2CTCTokenizer(
        folder / SYMBOLS, pad_token=pad, unk_token=unknown, do_lower_case=lower, **special
    )
    kind = pretrained["transformers"]["model_type"]
    processor = "Wav2Vec2BertProcessor" if kind == STACKED else "Wav2Vec2Processor"
    return getattr(transformers, processor)(extractor, theirs)


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
        f"A `{kind}` with its processor, {AUTHOR} {metadata.version('clustered-asr')}.",
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
