"""Training, decoding and scoring with a recipe, through the command line."""

import json
from pathlib import Path
from typing import Any

from asr import cli

SMALL = ["model.layers=1", "model.heads=2", "model.head_dim=16", "model.feedforward=32", "data.workers=0"]
SMALL += ["trainer.accelerator=cpu", "trainer.max_steps=2", "run=exp/run"]


def train_decode_score(recipe: str, split: str, *words: str) -> dict[str, Any]:
    """Train a tiny model in the working directory; return its score.json."""
    assert cli.main(["train", f"recipe={recipe}", *SMALL, *words]) == 0
    assert cli.main(["decode", "exp/run", f"split={split}", "device=cpu"]) == 0
    [decoded] = Path("exp/run/decode", split).iterdir()
    assert cli.main(["score", str(decoded)]) == 0
    return json.loads((decoded / "score.json").read_text())
