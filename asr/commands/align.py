"""`asr align`: forced alignment of known transcripts with their audio."""

import json
import logging
from collections import Counter
from pathlib import Path

from asr.config import refuse, values_affecting
from asr.console import track
from asr.data.manifest import manifest_digest, read_cuts
from asr.data.places import manifest_path, training_folder
from asr.errors import UserError
from asr.files import check_writable, file_state
from asr.recognizer import Recognizer
from asr.records.job import Job, identity
from asr.records.options import parse_shard
from asr.records.results import Results
from asr.records.run_folder import RunFolder
from asr.transcription.align import align, groups_to_align, transcribed_cuts, transcribed_file, write
from asr.transcription.batches import unfinished
from asr.transcription.options import AlignOptions

log = logging.getLogger(__name__)


def run(paths: list[Path], options: AlignOptions) -> None:
    """Align the transcripts, write the times and report the utterances that could not be aligned."""
    if not 1 <= len(paths) <= 2:
        raise UserError(
            "asr align takes a run folder, checkpoint or published model, and at most one audio file"
        )
    recognizer = Recognizer.load_as(paths[0], options)
    model, tokenizer = recognizer.model, recognizer.tokenizer
    run_folder = recognizer.run_folder
    inputs = {"model": model.digest(), "device": model.device.type, "computed": model.precision.name}
    assert run_folder is not None
    if len(paths) == 2:
        refuse(options, ("split", "data", "shard"), f"to align {paths[1]}")
        audio = Path(paths[1])
        folder, name = Path(options.output or audio.parent), audio.stem
        inputs |= {"audio": file_state(audio), "text": file_state(audio.with_suffix(".txt"))}
        utterances = [transcribed_file(audio, options.text, tokenizer)]
    else:
        if options.text:
            raise UserError(f"text={options.text!r}: expected an audio file to align it with, found none")
        manifest = manifest_path(options.data or training_folder(run_folder), options.split)
        inputs["data"] = manifest_digest(manifest)
        folder, name = Path(options.output or RunFolder(run_folder).aligned(options.split)), options.split
        utterances = transcribed_cuts(read_cuts(manifest))
    check_writable(folder / f"{name}.jsonl")

    shard = parse_shard(options.shard)
    same = identity("align", values_affecting(options, "result"), **inputs)
    work = Results(Job.in_folder(folder, same, shard), [str(i) for i in range(len(utterances))])
    groups = unfinished(groups_to_align(model, utterances, options), shard, ())
    own = sum(map(len, groups))
    left = unfinished(groups, None, work.found)
    results = align(model, tokenizer, utterances, left, options, min_fit=options.min_fit, name=name)
    for position, result in track(results, "aligning", total=sum(map(len, left))):
        if position not in work.found:
            work.add(position, result)
    if not shard:
        write(work, folder)
    work.job.finish({})
    table = f"{name}.jsonl"
    fits: list[tuple[float, str]] = []
    unknown: Counter[str] = Counter()
    for text in (result.files[table] for result in work.found.values() if result.files):
        entry = json.loads(text)
        fits.append((entry["fit"], entry["id"]))
        unknown.update(tokenizer.oov(" ".join(word["word"] for word in entry["words"])))
    if fits:
        fit, worst = min(fits)
        least = f"fit {fit:.2f}" if own == 1 else f"least fit {fit:.2f} ({worst})"
        print(f"aligned {len(fits)} of {own} utterances: {folder}; {least}")
    if unknown:
        log.warning(
            "unreliable times for words outside the model's vocabulary (%d): %s%s",
            unknown.total(),
            ", ".join(sorted(unknown)[:10]),
            " …" if len(unknown) > 10 else "",
        )
    work.report()
