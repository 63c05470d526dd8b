"""Joining the shards of prepare, decode, transcribe or align."""

import shutil
from pathlib import Path

from asr import config
from asr.errors import UserError
from asr.files import locked
from asr.preparation.recipes import is_own, preparation_module
from asr.preparation.record import whole_job
from asr.records.job import Job, read_shards
from asr.records.options import FOLDER
from asr.records.results import Results
from asr.records.run_folder import HYPOTHESES
from asr.scoring.hypotheses import write_decoded
from asr.transcription import align
from asr.transcription.decode import joined_record


def merge(folder: Path, recipe: str = "") -> Results:
    """Write the files that a single process would have written, and remove the shards.

    Args:
        folder: output folder of the shards.
        recipe: folder of the user's own recipe, for shards of its preparation; empty: an included recipe.

    Returns:
        The results of all items, with the errors of those that failed.

    Raises:
        UserError: a shard is missing or belongs to another job.
    """
    job = read_shards(folder)
    command = job.identity["command"]
    if recipe and command != "prepare":
        raise UserError(f"{recipe}: has no effect: {folder} holds shards of asr {command}")
    work = Results(job, [] if command == "prepare" else sorted(job.stored, key=int), again=False)
    with locked(folder, "asr merge"):
        match command:
            case "prepare":
                _prepare(folder, job, recipe)
            case "decode":
                record = joined_record(job.record or {}, work)
                write_decoded(folder, work.files().get(HYPOTHESES, ""), record)
            case "align":
                align.write(work, folder, job.record or {})
            case _:
                work.write(folder)
        shutil.rmtree(folder / FOLDER)
    return work


def _prepare(folder: Path, job: Job, recipe_folder: str) -> None:
    """Prepare a folder, with the shards' results as if they were the journal of an interrupted run.

    The code of a user's recipe runs only if its folder is given as `own`.
    """
    source, recipe = f"{folder / FOLDER}: job", job.identity["recipe"]
    try:
        if not recipe_folder and is_own(recipe):
            raise UserError(f"expected the name of a recipe, found {recipe!r}: name its folder, too")
        module = preparation_module(recipe_folder or recipe)
    except UserError as error:
        raise UserError(f"{source}: {error}") from None
    options = config.from_dict(module.Options, job.identity["options"], source)
    whole = whole_job(folder, job.identity)
    for key, result in job.stored.items():
        whole.add(key, result)
    whole.close()
    module.prepare(options, folder)
