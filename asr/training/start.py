"""Finished runs with weights that a new run could start from."""

from pathlib import Path
from typing import Any

from asr import config
from asr.attention.table import exchange, layer_runs
from asr.config import flat
from asr.data.places import LEXICON, prepared_folder
from asr.errors import UserError
from asr.records.run_folder import RunFolder
from asr.training.config import run_options
from asr.training.options import TrainConfig, recipe_task

RUNS = Path("exp")
# Options of the model that another run's weights don't depend on.
FREE = {
    "model.attention_dropout",
    "model.dropout",
    "model.freeze_encoder_steps",
    "model.layer_drop",
    "model.lora.alpha",
    "model.lora.rank",
    "model.position_shift",
}


def offered_starts(options: TrainConfig, folder: Path) -> list[str]:
    """Return a line with the options that start training from the newest suitable run in `exp/`, if any.

    The run has another recipe's data, an exchangeable mechanism and the same unit of targets; phones also
    suit data with a lexicon. Options in which its model differs are part of the line.

    Args:
        options: options of the run that begins.
        folder: run folder.
    """
    if options.init_from or recipe_task(options.recipe.name):
        return []
    finished = sorted(RunFolder.finished(RUNS, "*/*"), key=lambda run: run.summary.stat().st_mtime)
    for run in reversed(finished):
        if run.path.absolute() != folder.absolute() and (overrides := _overrides(options, run)) is not None:
            return [f"to start from a trained model: {' '.join([f'init_from={run.path}', *overrides])}"]
    return []


def _overrides(options: TrainConfig, run: RunFolder) -> list[str] | None:
    """Return the options to change in order to start from a run; None if it doesn't suit."""
    try:
        other = run_options(run)
        run.read_summary()
    except (OSError, UserError):  # unfinished, or from another version of the program
        return None
    if recipe_task(other.recipe.name) or other.data.train == options.data.train:
        return None
    lexicon = all((prepared_folder(place) / LEXICON).is_file() for place in options.data.train)
    unit = other.tokenizer.kind
    if unit != options.tokenizer.kind and not (unit == "phone" and lexicon):
        return None
    if not _exchangeable(options.attention, other.attention):
        return None
    own, theirs = _shape(options), _shape(other)
    changes = {key: value for key, value in theirs.items() if own.get(key) != value}
    if unit != options.tokenizer.kind:
        changes = {"tokenizer.kind": unit, **changes}
    return config.as_overrides(changes)


def _shape(options: TrainConfig) -> dict[str, Any]:
    values = flat({"features": config.to_dict(options.features), "model": config.to_dict(options.model)})
    if options.model.self_conditioned:
        # Otherwise the suggested options are refused. With other models, the new run chooses these blocks.
        values["loss.intermediate"] = options.loss.intermediate
    return {key: value for key, value in values.items() if key not in FREE}


def _exchangeable(one: str, other: str) -> bool:
    specs = [spec for name in (one, other) for spec, _ in layer_runs(name)]
    return one == other or all(exchange(spec.mechanism) == "yes" for spec in specs)
