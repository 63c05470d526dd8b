"""Earlier results in an output folder, which aren't replaced silently."""

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from asr.config import values_affecting
from asr.data.manifest import manifest_digest
from asr.errors import UserError
from asr.files import read_record
from asr.model.acoustic_model import AcousticModel
from asr.model.options import LoadOptions
from asr.records.job import differences


def origin_of(model: AcousticModel, checkpoint: Path, manifest: Path, options: LoadOptions) -> dict[str, Any]:
    """Return the origin of results, which their record in the output folder states.

    Args:
        model: acoustic model.
        checkpoint: file that the model was loaded from.
        manifest: manifest of the split.
        options: options of the command.
    """
    used = {"attention": model.config.attention, "frames": model.config.model.frames}
    return {
        "checkpoint": str(checkpoint),
        "manifest": str(manifest),
        "data": manifest_digest(manifest),
        "asked": values_affecting(options, "result") | used,
    }


def check_replaced(path: Path, origin: dict[str, Any], *, chosen: bool) -> None:
    """Print a line if results of another origin are about to be replaced.

    Args:
        path: record of the results in the folder; may be missing.
        origin: origin of the new results, see `origin_of`.
        chosen: whether the user chose the folder; otherwise it is named after the data folder.

    Raises:
        UserError: the results are of other data, in a folder that the user didn't choose.
    """
    before: dict[str, Any] = {}
    with suppress(UserError):  # none, or a damaged record
        before = read_record(path)
    known = [name for name in origin if name in before]
    changed = differences({x: before[x] for x in known}, {x: origin[x] for x in known})
    changed.pop("manifest", None)
    # A prepared folder may change or move, but not both.
    moved = "manifest" in known and Path(before["manifest"]).resolve() != Path(origin["manifest"]).resolve()
    if moved and ("data" in changed or "data" not in known) and not chosen:
        raise UserError(
            f"{path.parent}: has results of {before['manifest']}; choose a folder for those of "
            f"{origin['manifest']}: output=<folder>"
        )
    if changed:
        name, (was, now) = next(iter(changed.items()))
        what = name.removeprefix("asked.")
        print(f"{path.parent}: replaced: {what} was {was!r:.150}, is now {now!r:.150}", file=sys.stderr)
