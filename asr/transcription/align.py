"""Aligns transcripts with their audio: TextGrids, CTM files and a JSON line per utterance."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from lhotse.cut import MonoCut
from torch import Tensor

from asr.errors import UserError
from asr.files import build, parse_json, write_record
from asr.model.acoustic_model import AcousticModel
from asr.records.results import Result, Results
from asr.records.run_folder import ALIGNING
from asr.scoring.ctm import CtmWord, ctm_text
from asr.search.forced_alignment import AlignedText, AlignedToken, AlignedWord, align_text
from asr.text.files import read_lines, read_text
from asr.text.normalise import normalise
from asr.text.tokenizer import Tokenizer
from asr.transcription.batches import (
    SECONDS_PER_BATCH,
    encoded_together,
    groups_by_length,
    longest_like_training_s,
)
from asr.transcription.formats import textgrid
from asr.transcription.options import EncodingOptions
from asr.transcription.pipeline import Advance, Channel, Pipeline
from asr.transcription.posteriors import failure
from asr.transcription.sources import CutSource, FileSource, Source


@dataclass(frozen=True)
class Transcribed:
    """An utterance whose transcript is known.

    Attributes:
        id: name of the utterance.
        stem: name of the TextGrid, without suffix.
        text: transcript.
        source: source of the audio.
        duration_s: duration in seconds; 0: unknown until the audio is read.
        recording: name of the recording.
        channel: channel number, from 1.
        start_s: start in the recording in seconds.
    """

    id: str
    stem: str
    text: str
    source: Source
    duration_s: float
    recording: str
    channel: str = "1"
    start_s: float = 0.0


def transcribed_cuts(cuts: Sequence[MonoCut]) -> list[Transcribed]:
    """Return the utterances of a manifest; raise UserError if two would share a TextGrid."""
    by_stem: dict[str, Transcribed] = {}
    for index, cut in enumerate(cuts):
        stem = _stem(cut.id)
        if stem in by_stem:
            raise UserError(f"{cut.id}: expected a name of its own, found {stem}.TextGrid for two utterances")
        text = cut.supervisions[0].text or ""
        place = cut.recording_id, str(cut.channel + 1), cut.start
        by_stem[stem] = Transcribed(cut.id, stem, text, CutSource(cuts, index), cut.duration, *place)
    return list(by_stem.values())


def transcribed_file(audio: Path, text: str, tokenizer: Tokenizer) -> Transcribed:
    """Return an audio file with its transcript, normalised as the training texts may have been.

    Args:
        audio: audio file; whether it exists is checked when it is read.
        text: transcript; empty: read the .txt file beside the audio.
        tokenizer: tokenizer of the model; the normalisation that leaves the fewest unknown words is chosen.

    Raises:
        UserError: there is no transcript.
    """
    if not text and audio.is_file():
        beside = audio.with_suffix(".txt")
        if not beside.is_file():
            raise UserError(f"{audio}: expected a transcript in text='…' or in {beside}, found neither")
        text = read_text(beside)
    # In a tie, min() returns the first: the text as written.
    texts = (
        " ".join(text.split()),
        *(normalise(text, rule) for rule in ("none", "lower", "words", "spoken")),
    )
    known = min(texts, key=lambda text: len(tokenizer.oov(text)))
    return Transcribed(str(audio), audio.stem, known, FileSource(audio), 0.0, audio.stem)


def groups_to_align(
    model: AcousticModel, utterances: Sequence[Transcribed], options: EncodingOptions
) -> list[list[int]]:
    """Return positions of utterances to align together: long ones alone, then batches of short ones."""
    longest_s, rate = longest_like_training_s(model), model.sample_rate
    samples = np.array([round(x.duration_s * rate) for x in utterances], dtype=np.int64)
    short = np.array([encoded_together(x.duration_s, longest_s, options) for x in utterances], dtype=bool)
    places = np.flatnonzero(short)
    batches = groups_by_length(samples[places], round(SECONDS_PER_BATCH * rate))
    return [[i] for i in np.flatnonzero(~short).tolist()] + [places[batch].tolist() for batch in batches]


def align(
    model: AcousticModel,
    tokenizer: Tokenizer,
    utterances: Sequence[Transcribed],
    groups: list[list[int]],
    options: EncodingOptions,
    *,
    min_fit: float,
    name: str,
) -> Iterator[tuple[int, Result]]:
    """Yield the position of each utterance in the groups, and its text in each output file or its error.

    Args:
        model: acoustic model.
        tokenizer: tokenizer of the model.
        utterances: audio and transcripts.
        groups: positions of the utterances to align together.
        options: encoding of long recordings.
        min_fit: minimum fit of a transcript to its audio, 0 … 1; a lower one is an error.
        name: name of the tables, without suffix.
    """

    def search(
        channels: Sequence[Channel], log_probs: list[Tensor], advance: Advance
    ) -> list[AlignedText | UserError]:
        return [
            _aligned(log_probs_TV, utterances[channel.position], model, tokenizer, min_fit)
            for channel, log_probs_TV in zip(channels, log_probs, strict=True)
        ]

    pipeline = Pipeline(model, options, search)
    for position, outcome in pipeline([x.source for x in utterances], groups):
        utterance = utterances[position]
        if isinstance(outcome, Exception):
            yield position, Result(error=failure(outcome, utterance.stem))
            continue
        ((channel, text),) = outcome
        assert text is not None
        grid = _textgrid(text, tokenizer, len(channel.samples) / model.sample_rate)
        yield position, Result({f"{utterance.stem}.TextGrid": grid} | _tables(utterance, text, name))


def _aligned(
    log_probs_TV: Tensor, utterance: Transcribed, model: AcousticModel, tokenizer: Tokenizer, min_fit: float
) -> AlignedText | UserError:
    try:
        text = align_text(
            log_probs_TV, utterance.text, tokenizer, model.frame_s, utterance.id, model.config.topology
        )
    except UserError as error:
        return error
    if text.fit >= min_fit:
        return text
    unknown = sorted(set(tokenizer.oov(utterance.text)))
    outside = f" (outside the model's vocabulary: {', '.join(unknown)[:60]})" if unknown else ""
    return UserError(
        f"{utterance.id}: the transcript doesn't fit the audio: expected a fit of at least "
        f"min_fit={min_fit:g}, found {text.fit:.3f}{outside}"
    )


def write(work: Results, folder: Path, origin: dict[str, Any]) -> None:
    """Write the alignments; remove TextGrids of utterances that only an earlier alignment had.

    Args:
        work: alignments.
        folder: output folder.
        origin: entries of its align.json; empty: none, for the alignment of an audio file.
    """
    files = work.files()
    tables = [path for path in map(folder.joinpath, files) if path.suffix == ".jsonl" and path.exists()]
    for path in tables:
        for number, line in read_lines(path):
            entry = build(dict[str, Any], parse_json(line, f"{path}:{number}"), f"{path}:{number}")
            name = f"{_stem(str(entry.get('id')))}.TextGrid"
            if name not in files:
                Path(folder, name).unlink(missing_ok=True)
    work.write(folder)
    if origin:
        write_record(origin, folder / ALIGNING)


def _stem(name: str) -> str:
    return name.replace("/", "_")


def _textgrid(text: AlignedText, tokenizer: Tokenizer, duration_s: float) -> str:
    """Return a TextGrid with tiers for words and labels; times are relative to the utterance."""
    tokens = [token for word in text.words for token in word.tokens]
    tiers = {
        "words": [(word.start_s, word.end_s, word.word) for word in text.words],
        f"{tokenizer.unit}s": [(token.start_s, token.end_s, token.label) for token in tokens],
    }
    return textgrid(tiers, duration_s)


def _tables(utterance: Transcribed, text: AlignedText, name: str) -> dict[str, str]:
    """Return an utterance's lines in each table: words and tokens (CTM, times in the recording), JSON."""
    words = [_ctm(utterance, word.word, word) for word in text.words]
    tokens = [_ctm(utterance, token.label, token) for word in text.words for token in word.tokens]
    entry = {"id": utterance.id, "fit": round(text.fit, 4), "words": [asdict(word) for word in text.words]}
    return {
        f"{name}.words.ctm": ctm_text(words),
        f"{name}.tokens.ctm": ctm_text(tokens),
        f"{name}.jsonl": json.dumps(entry, ensure_ascii=False) + "\n",
    }


def _ctm(utterance: Transcribed, label: str, aligned: AlignedWord | AlignedToken) -> CtmWord:
    return CtmWord(
        utterance.recording,
        utterance.channel,
        round(utterance.start_s + aligned.start_s, 3),
        round(aligned.end_s - aligned.start_s, 3),
        label,
        aligned.confidence,
    )
