"""`asr merge`: join what the shards of prepare, decode, transcribe or align have written."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asr import config
from asr.commands import COMMANDS, NoOptions
from asr.errors import UserError
from asr.files import checked_entries, locked
from asr.preparation.recipes import is_own, preparation_module
from asr.records.options import FOLDER
from asr.records.run_folder import HYPOTHESES
from asr.records.shards import Work, read_shards, remove_shards
from asr.scoring.hypotheses import write_decoded
from asr.scoring.run import rates_line
from asr.transcription import align
from asr.transcription.decode import joined_record


def run(paths: list[Path], options: NoOptions) -> None:
    """Write the files that one process would have written, and remove the shards.

    Raises:
        UserError: a shard is missing or of another job, or items of the shards failed.
    """
    if len(paths) not in (1, 2):
        raise UserError(f"asr merge takes one {COMMANDS['merge'].takes}, found {len(paths)}")
    folder, own = Path(paths[0]), str(paths[1]) if len(paths) == 2 else ""
    work = read_shards(folder)
    if own and work.job["command"] != "prepare":
        raise UserError(f"{own}: has no effect: {folder} holds shards of asr {work.job['command']}")
    with locked(folder, "asr merge"):
        if work.job["command"] == "prepare":
            prepare(folder, work, own)
        elif work.job["command"] == "decode":
            write_decoded(folder, work.files().get(HYPOTHESES, ""), joined_record(work))
        elif work.job["command"] == "align":
            align.write(work, folder)
        else:
            work.write(folder)
        remove_shards(folder)
    print(f"joined: {folder}")
    if work.job["command"] == "decode":
        print(f"error rates: {rates_line(folder)}")
    work.report()


@dataclass(frozen=True)
class PreparedJob:
    """What the job of a preparation's shards says: the recipe, and its options that affect the result."""

    recipe: str
    options: dict[str, Any]


def prepare(folder: Path, work: Work, own: str = "") -> None:
    """Prepare a folder with the results of all shards as the journals of an interrupted run.

    Code of a user's own recipe runs only if its folder is given as `own`.
    """
    source = f"{folder / FOLDER}: job"
    job = PreparedJob(**checked_entries(PreparedJob, work.job, source))
    try:
        if not own and is_own(job.recipe):
            raise UserError(f"expected the name of a recipe, found {job.recipe!r}: name its folder, too")
        module = preparation_module(own or job.recipe)
    except UserError as error:
        raise UserError(f"{source}: {error}") from None
    options = config.from_dict(module.Options, job.options, source)
    work.write(folder)
    module.prepare(options, folder)
