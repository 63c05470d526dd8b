"""`asr align`: forced alignment of known transcripts with their audio."""

import json
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lhotse.cut import MonoCut

from asr.config import refuse, to_dict
from asr.console import track
from asr.data.audio import load_cut
from asr.data.manifest import manifest_digest, read_cuts
from asr.data.places import manifest_path, training_folder
from asr.data.recording import Samples, read_recording
from asr.errors import UserError
from asr.files import build, check_writable, file_state, parse_json
from asr.recognizer import Recognizer
from asr.scoring.ctm import CtmWord, ctm_text
from asr.search.forced_alignment import AlignedText, AlignedToken, AlignedWord, align_text
from asr.shards import Result, ResumableWork, Work, job, parse_shard
from asr.text.files import read_lines, read_text
from asr.text.normalise import normalise
from asr.text.tokenizer import Tokenizer
from asr.transcription.encoding import TOO_LONG, emissions, is_out_of_memory
from asr.transcription.formats import textgrid
from asr.transcription.options import AlignOptions

POSITIONAL = "<run folder or checkpoint> [<audio file>]"
Options = AlignOptions

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Utterance:
    """An utterance to align.

    Attributes:
        id: name of the utterance.
        text: transcript.
        samples: [samples] at the model's sample rate.
        recording: name of the recording.
        channel: channel number, from 1.
        start_s: start in the recording in seconds.
    """

    id: str
    text: str
    samples: Samples
    recording: str
    channel: str = "1"
    start_s: float = 0.0


def run(paths: list[Path], options: AlignOptions) -> None:
    """Align the transcripts, write the times and report the utterances that could not be aligned."""
    if not 1 <= len(paths) <= 2:
        raise UserError("asr align takes a run folder or checkpoint, and at most one audio file")
    recognizer = Recognizer.load_as(paths[0], options)
    model, tokenizer = recognizer.model, recognizer.tokenizer
    run_folder = recognizer.run_folder
    inputs = {"model": model.digest(), "device": model.device.type}
    assert run_folder is not None
    if len(paths) == 2:
        refuse(options, ("split", "data", "shard"), f"to align {paths[1]}")
        audio = Path(paths[1])
        folder, name = Path(options.output or audio.parent), audio.stem
        inputs |= {"audio": file_state(audio), "text": file_state(audio.with_suffix(".txt"))}
        loads: dict[str, Callable[[], Utterance]] = {
            name: partial(_from_file, audio, options.text, model.sample_rate, tokenizer)
        }
    else:
        if options.text:
            raise UserError(f"text={options.text!r}: expected an audio file to align it with, found none")
        manifest = manifest_path(options.data or training_folder(run_folder), options.split)
        cuts = list(read_cuts(manifest))
        inputs["data"] = manifest_digest(manifest)
        folder, name = Path(options.output or run_folder / "align" / options.split), options.split
        loads = {}
        for cut in cuts:
            stem = _stem(cut.id)
            if stem in loads:
                raise UserError(
                    f"{cut.id}: expected a name of its own, found {stem}.TextGrid for two utterances"
                )
            loads[stem] = partial(_from_cut, cut, model.sample_rate)
    check_writable(folder / f"{name}.jsonl")

    shard = parse_shard(options.shard)
    items = list(enumerate(loads.items()))
    own = shard.of(items) if shard else items
    work = ResumableWork(folder, job("align", to_dict(options), **inputs), len(loads), shard)
    left = [item for item in own if item[0] not in work.results]
    for position, (stem, load) in track(left, "aligning"):
        try:
            utterance = load()
            log_probs_TV = emissions(model, utterance.samples, options, utterance.id)
            found = align_text(
                log_probs_TV, utterance.text, tokenizer, model.frame_s, utterance.id, model.config.topology
            )
            if found.fit < options.min_fit:
                raise UserError(
                    f"{utterance.id}: the transcript doesn't fit the audio: expected a fit of at least "
                    f"min_fit={options.min_fit:g}, found {found.fit:.3f}{_outside(utterance.text, tokenizer)}"
                )
        except UserError as error:
            work.add(position, Result(error=error.line))
            continue
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            work.add(position, Result(error=f"{stem}: {TOO_LONG}"))
            continue
        grid = _textgrid(utterance, found.words, recognizer)
        work.add(position, Result({f"{stem}.TextGrid": grid} | _tables(utterance, found, name)))
    if not shard:
        write(work, folder)
    work.finish()
    table = f"{name}.jsonl"
    fits: list[tuple[float, str]] = []
    unknown: Counter[str] = Counter()
    for text in (result.files[table] for result in work.results.values() if result.files):
        entry = json.loads(text)
        fits.append((entry["fit"], entry["id"]))
        unknown.update(tokenizer.oov(" ".join(word["word"] for word in entry["words"])))
    if fits:
        fit, worst = min(fits)
        least = f"fit {fit:.2f}" if len(own) == 1 else f"least fit {fit:.2f} ({worst})"
        print(f"aligned {len(fits)} of {len(own)} utterances: {folder}; {least}")
    if unknown:
        log.warning(
            "unreliable times for words outside the model's vocabulary (%d): %s%s",
            unknown.total(),
            ", ".join(sorted(unknown)[:10]),
            " …" if len(unknown) > 10 else "",
        )
    work.report()


def write(work: Work, folder: Path) -> None:
    """Write the alignments; the TextGrids of utterances that only an earlier alignment has are removed."""
    files = work.files()
    tables = [path for path in map(folder.joinpath, files) if path.suffix == ".jsonl" and path.exists()]
    for path in tables:
        for number, line in read_lines(path):
            entry = build(dict[str, Any], parse_json(line, f"{path}:{number}"), f"{path}:{number}")
            name = f"{_stem(str(entry.get('id')))}.TextGrid"
            if name not in files:
                Path(folder, name).unlink(missing_ok=True)
    work.write(folder)


def _stem(name: str) -> str:
    """Return the name of an utterance's TextGrid, without suffix."""
    return name.replace("/", "_")


def _from_file(audio: Path, text: str, sample_rate: int, tokenizer: Tokenizer) -> Utterance:
    if not audio.is_file():
        read_recording(audio, sample_rate)  # raises
    if not text:
        beside = audio.with_suffix(".txt")
        if not beside.is_file():
            raise UserError(f"{audio}: expected a transcript in text='…' or in {beside}, found neither")
        text = read_text(beside)
    (samples,) = read_recording(audio, sample_rate)
    # Training texts may have been normalised; of equal ones, min() returns the first, the text as written.
    texts = (" ".join(text.split()), *(normalise(text, rule) for rule in ("none", "lower", "words")))
    known = min(texts, key=lambda text: len(tokenizer.oov(text)))
    return Utterance(str(audio), known, samples, audio.stem)


def _outside(text: str, tokenizer: Tokenizer) -> str:
    """Return what the vocabulary lacks, for the end of a message; empty if it lacks nothing."""
    unknown = sorted(set(tokenizer.oov(text)))
    return f" (outside the model's vocabulary: {', '.join(unknown)[:60]})" if unknown else ""


def _from_cut(cut: MonoCut, sample_rate: int) -> Utterance:
    samples = load_cut(cut, sample_rate)
    text = cut.supervisions[0].text or ""
    return Utterance(cut.id, text, samples, cut.recording_id, str(cut.channel + 1), cut.start)


def _textgrid(utterance: Utterance, words: list[AlignedWord], recognizer: Recognizer) -> str:
    """Return a TextGrid with tiers for words and labels; times are relative to the utterance."""
    tokens = [token for word in words for token in word.tokens]
    tiers = {
        "words": [(word.start_s, word.end_s, word.word) for word in words],
        f"{recognizer.tokenizer.unit}s": [(token.start_s, token.end_s, token.label) for token in tokens],
    }
    return textgrid(tiers, len(utterance.samples) / recognizer.model.sample_rate)


def _tables(utterance: Utterance, text: AlignedText, name: str) -> dict[str, str]:
    """Return the lines of the words and tokens (CTM, times in the recording) and of `<name>.jsonl`."""
    words = [_ctm(utterance, word.word, word) for word in text.words]
    tokens = [_ctm(utterance, token.label, token) for word in text.words for token in word.tokens]
    entry = {"id": utterance.id, "fit": round(text.fit, 4), "words": [asdict(word) for word in text.words]}
    return {
        f"{name}.words.ctm": ctm_text(words),
        f"{name}.tokens.ctm": ctm_text(tokens),
        f"{name}.jsonl": json.dumps(entry, ensure_ascii=False) + "\n",
    }


def _ctm(utterance: Utterance, label: str, aligned: AlignedWord | AlignedToken) -> CtmWord:
    return CtmWord(
        utterance.recording,
        utterance.channel,
        round(utterance.start_s + aligned.start_s, 3),
        round(aligned.end_s - aligned.start_s, 3),
        label,
        aligned.confidence,
    )
