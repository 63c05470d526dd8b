"""Preparation in shards, and training, decoding and scoring with a recipe, through the command line."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asr import cli

SMALL = ["model.layers=1", "model.heads=2", "model.head_dim=16", "model.feedforward=32", "data.workers=0"]
SMALL += ["trainer.accelerator=cpu", "trainer.max_steps=2", "run=exp/run"]


def train_decode_score(recipe: str, split: str, *overrides: str) -> dict[str, Any]:
    """Train a tiny model in the working directory; return its score.json."""
    assert cli.main(["train", f"recipe={recipe}", *SMALL, *overrides]) == 0
    assert cli.main(["decode", "exp/run", f"split={split}", "device=cpu"]) == 0
    [decoded] = Path("exp/run/decode", split).iterdir()
    assert cli.main(["score", str(decoded)]) == 0
    return json.loads((decoded / "score.json").read_text())


def assert_shards_join(folder: Path, *arguments: str, count: int = 2, merge_with: Sequence[str] = ()) -> None:
    """Assert that one process and the union of shards write the same files into a folder, byte for byte.

    Args:
        folder: output folder; removed between the two.
        arguments: the recipe and its options.
        count: number of shards.
        merge_with: further arguments of `asr merge`.
    """
    prepare = ["prepare", *arguments, "workers=1", f"folder={folder}"]
    assert cli.main(prepare) == 0
    whole = contents(folder)
    shutil.rmtree(folder)
    for index in range(count, 0, -1):
        assert cli.main([*prepare, f"shard={index}/{count}"]) == 0
        assert not list(folder.glob("*.cuts.jsonl.gz"))
    assert cli.main(["merge", str(folder), *merge_with]) == 0
    assert contents(folder) == whole


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder, except its lock, by path."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}
