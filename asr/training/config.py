"""Options of a training: from overrides, a run's config.yaml, or its initial weights."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asr import config
from asr.config import Given, by_key, flat
from asr.config.names import split_source
from asr.config.schema import written
from asr.errors import UserError
from asr.files import as_path
from asr.model.options import ModelConfig, without_lost
from asr.records.run_folder import RunFolder
from asr.training.options import TrainConfig, train_schema

log = logging.getLogger(__name__)

# Options whose value may differ from that of the weights.
ADJUSTABLE = {"model.attention_dropout", "model.dropout", "model.layer_drop"}
# Options of the model that its weights don't depend on.
FREE = ADJUSTABLE | {
    "model.frames",
    "model.freeze_encoder_steps",
    "model.lora.rank",
}


def train_options(given: Given) -> TrainConfig:
    """Build the options of a training run from the user's.

    `recipe=`, `model=`, `loss=` and `optimizer=` select configurations. The weights that `init_from=` or
    `model.encoder=` names give features, model and tokenizer their values in place of the recipe's;
    `init_from=` a published model becomes `model.encoder=`. Code that `attention=` names is loaded.

    Raises:
        UserError: see `compose` and `determined`; or an option that contradicts the weights.

    Example:
        >>> train_options(["recipe=demo", "model.layers=6"]).model.layers
        6
    """
    options = _composed(by_key(given))
    if any(split_source(part.partition("*")[0])[0] for part in options.attention.split(",")):
        from asr.attention import given_name  # loads PyTorch

        options.attention = given_name(options.attention)
    return options


def _composed(values: dict[str, Any]) -> TrainConfig:
    schema = train_schema(chosen_recipe(values))
    start = values.get("init_from", "")
    where = f"init_from={start}" if start else f"model.encoder={values.get('model.encoder', '')}"
    given = determined(where)
    if given.get("model.encoder") == start:  # published
        values = {key: value for key, value in values.items() if key != "init_from"}
    options = config.compose(schema, "train", values, given)
    run = RunFolder(run_folder(options))
    if start and not given and options.resume == "auto" and run.options.exists():  # init_from was deleted
        before = flat(config.to_dict(run_options(run)))
        given = sizes(before)
        options = config.compose(schema, "train", values, given)
    chosen = flat(config.to_dict(options))
    if given and values.get("model"):  # the user has chosen the sizes of this group, too
        named = flat(config.to_dict(config.compose(schema, "train", values)))
        chosen |= {key: value for key, value in named.items() if key.startswith("model.")}
    check_determined(chosen, given, where)
    return options


def run_folder(options: TrainConfig) -> Path:
    """Return the run's folder: exp/<recipe>/<attention> unless the options name one.

    Stars in the mechanism, as in `full*3`, become x, because shells expand stars.
    """
    return Path(options.run or Path("exp", options.recipe.name, options.attention.replace("*", "x")))


def determined(where: str) -> dict[str, Any]:
    """Return the options of features, model and tokenizer that the weights determine, by dotted name.

    Args:
        where: `init_from=<run, checkpoint, exported or published model>` or `model.encoder=<folder>`. The
            result is empty for an empty value, or a path that doesn't exist: it may be a candidate's label.

    Raises:
        UserError: see `read_state` and `read_pretrained`.
    """
    key, _, place = where.partition("=")
    if not place:
        return {}
    as_path(place, key)
    from asr.model.hub import local_folder  # loads PyTorch
    from asr.model.published import is_published

    if key == "model.encoder":
        return _of_encoder(place)
    if is_published(local_folder(place)):
        return _of_published(place)
    if not Path(place).exists():
        return {}
    try:
        return _of_model(Path(place))
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def sizes(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options, by dotted name, that determine which weights fit."""
    kept = ("features.", "model.", "tokenizer.")
    return {key: value for key, value in options.items() if key.startswith(kept) and key not in FREE}


def check_determined(chosen: Mapping[str, Any], given: Mapping[str, Any], where: str) -> None:
    """Raise UserError for an option whose value contradicts the weights.

    Args:
        chosen: all options by dotted name.
        given: see `determined`.
        where: the option that names the weights.
    """
    for key, value in given.items():
        if chosen[key] != value and key not in ADJUSTABLE:
            expected = written(value) or "none"
            raise UserError(f"{key}={written(chosen[key])}: expected {expected} with {where}")


def _of_encoder(folder: str) -> dict[str, Any]:
    from asr.model.pretrained_folder import encoder_options, read_pretrained

    return encoder_options(read_pretrained(folder))


def _of_published(folder: str) -> dict[str, Any]:
    """Like `_of_encoder`, with the folder, and the tokenizer's kind if the model has a head."""
    from asr.model.pretrained_folder import has_head
    from asr.model.published import read_tokenizer

    given = {"model.encoder": folder, **_of_encoder(folder)}
    if has_head(folder):
        given["tokenizer.kind"] = _kind(read_tokenizer(folder).unit)
    return given


def _of_model(path: Path) -> dict[str, Any]:
    """Return the options of a model of this project; a model of a recipe's own task has no features."""
    from asr.model.acoustic_model import AcousticModelConfig
    from asr.model.portable import read_state
    from asr.text.tokenizer import SentencePieceTokenizer, tokenizer_from_state

    file, state = read_state(path)
    source = str(file)
    stored = without_lost(state["config"], source)
    if "tokenizer" not in state:
        return sizes(flat({"model": config.to_dict(config.from_dict(ModelConfig, stored, source))}))
    own = config.from_dict(AcousticModelConfig, stored, source)
    given = sizes(flat({"features": config.to_dict(own.features), "model": config.to_dict(own.model)}))
    if own.model.self_conditioned:
        given["loss.intermediate"] = own.intermediate
    tokenizer = tokenizer_from_state(state["tokenizer"], source)
    given["tokenizer.kind"] = _kind(tokenizer.unit)
    if isinstance(tokenizer, SentencePieceTokenizer):
        given["tokenizer.pieces"] = len(tokenizer) - 1
    return given


def _kind(unit: str) -> str:
    return "sentencepiece" if unit == "piece" else unit


def chosen_recipe(given: Given) -> str:
    """Return the name of the recipe that the user chooses, or an empty string.

    A recipe in a file has the name that the file sets, which tells whose task options are valid.
    """
    chosen = by_key(given).get("recipe")
    return config.recipe_name(str(chosen), config.search_path(given)) if chosen else ""


def train_options_from(values: dict[str, Any], source: str) -> TrainConfig:
    """Build the options of a training run from a run's config.yaml.

    Raises:
        UserError: the values don't fit the schema; the message names `source`.
    """
    recipe = values.get("recipe")
    name = recipe.get("name") if isinstance(recipe, dict) else ""
    return config.from_stored(train_schema(str(name)), values, source)


def warn_of_lost(options: TrainConfig, stored: dict[str, Any], source: str) -> None:
    """Warn of the options of an earlier version's run that this version lacks.

    Raises:
        UserError: the run had a value by which this version can't act; see `without_lost`.
    """
    gone = flat(without_lost(config.nested(config.lost(options, stored)), source))
    if gone:
        found = ", ".join(f"{key}={written(value)}" for key, value in gone.items())
        log.warning("%s: this version lacks %s; the training goes on without", source, found)


def run_options(run: RunFolder) -> TrainConfig:
    """Return the options of a run, from its config.yaml.

    Raises:
        OSError: it can't be read.
        UserError: it doesn't fit the schema.
    """
    return train_options_from(run.read_options(), str(run.options))
