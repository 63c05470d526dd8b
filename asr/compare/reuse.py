"""Finished runs that a comparison need not train again."""

import json
from pathlib import Path
from typing import Any

import yaml

from asr.config import flat, to_dict
from asr.errors import UserError
from asr.training.config import train_options_from

# What changes neither the outcome of a training nor what it costs.
IMMATERIAL = ("run", "resume", "trainer.checkpoint_every", "data.prefetch")


def find_run(place: Path, settings: dict[str, Any]) -> Path | None:
    """Return the finished run below a folder that had the settings of a training cell, None without one."""
    for path in sorted(place.glob("*/config.yaml")):
        if _same(path.parent, settings):
            return path.parent
    return None


def _same(run: Path, settings: dict[str, Any]) -> bool:
    try:
        values = train_options_from(yaml.safe_load((run / "config.yaml").read_text()), str(run))
        summary = json.loads((run / "training.json").read_text())
        environment = json.loads((run / "environment.json").read_text())
    except (OSError, ValueError, yaml.YAMLError, UserError):
        return False  # unfinished, or of another version of the program
    made, wanted = flat(to_dict(values)), dict(settings["options"])
    if made["init_from"] or settings["start"]:
        return False  # its start may have changed since
    if any(made[key] != wanted.get(key) for key in made if key not in IMMATERIAL):
        return False
    stopped_early = wanted["trainer.early_stopping"] or wanted["trainer.stop_at"] >= 0
    whole = bool(wanted["trainer.budget"]) or summary["steps"] == summary["planned_steps"] or stopped_early
    hashes = [value for name, value in settings["data"].items() if name.startswith("train")]
    same_lexicon = (environment.get("lexicon") or "") == settings["data"]["lexicon"]
    return bool(whole) and same_lexicon and list(environment["data"].values()) == hashes
