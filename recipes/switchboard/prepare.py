"""Recipe `switchboard`: converts Switchboard-1 and eval2000 to manifests, a lexicon and references."""

import csv
import shutil
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from asr.console import counted
from asr.data.facts import audio_facts, header_facts, samples_as_expected
from asr.data.places import GLM, WORD_RULES
from asr.errors import UserError
from asr.files import file_state
from asr.preparation.cuts import recording, utterance_cut
from asr.preparation.run import Preparation
from asr.scoring.official import FILLERS
from asr.scoring.stm import write_stm
from asr.scoring.word_filter import WordFilterRules
from asr.text.files import read_lines, write_lines
from asr.text.lexicon import Lexicon

from . import eval2000 as test_set
from .layout import DICTIONARY, Corpus, Eval2000, conversation_of, find_corpus, find_eval2000
from .options import Options
from .pronunciations import letters, public_dictionary, read_dictionary
from .splits import SEGMENTS, divide
from .transcripts import SideSegment, read_transcript
from .words import NOISES

if TYPE_CHECKING:  # lhotse loads PyTorch, which takes seconds
    from lhotse import MonoCut, Recording

SAMPLE_RATE = 8000
CHANNEL = {"A": 0, "B": 1}
LEFT_OUT = "dictionary_left_out.txt"
FILES = (2435, 2438)  # both numbers of audio files are in use
OVERHANG_S = 0.5  # a segment may end this far beyond its audio and is then shortened
LICENCE = (
    "Switchboard-1 Release 2 (LDC97S62) and eval2000 (LDC2002S09, LDC2002T43) are licensed by the Linguistic "
    "Data Consortium: https://www.ldc.upenn.edu. The audio is not copied: the manifests point into it."
)


def prepare(options: Options, folder: Path) -> None:
    """Write train_dev, train_nodev and train_nodup, eval2000 with its subsets, lexicon and LM text.

    The audio stays in place: a cut names file, channel and time.
    """
    corpus = find_corpus(options.corpus, options.transcripts)
    evaluation = find_eval2000(options.eval2000, options.eval2000_transcripts) if options.eval2000 else None
    places = (options.corpus, options.transcripts, options.eval2000, options.eval2000_transcripts)
    sources = [Path(place) for place in (*places, options.call_table) if place]
    run = Preparation("switchboard", folder, options)
    if run.is_done(sources):
        return
    speakers = _callers(options.call_table) if options.call_table else {}
    if corpus.ignored:
        run.say(
            f"corpus={options.corpus}: ignoring {counted(corpus.ignored, 'recording')} of evaluation sets "
            "(sw_*, en_*)"
        )
    for first, second in corpus.repeated:
        message = f"{second}: expected one file of this name, found another of different length: {first}"
        run.problem(message, "duplicates")
    segments = _read_segments(run, corpus)
    recordings = _recordings(run, corpus.audio, "reading audio", options.verify)
    incomplete = _compare(run, corpus)
    run.expect("segments with words in the transcripts", SEGMENTS, len(segments))
    segments = [segment for segment in segments if _fits(run, segment, recordings, incomplete)]
    divided = divide(segments, options.dev_utterances)
    splits: dict[str, Iterable[MonoCut]] = {
        name: _training_cuts(members, recordings, speakers) for name, members in divided.items()
    }
    notes = {"Licence": LICENCE}
    # For plain WER; it misleads on eval2000, whose reference has optional words and alternatives.
    rules = WordFilterRules(drop=[*NOISES, *sorted(FILLERS)])
    files: dict[str, Callable[[Path], object]] = {WORD_RULES: rules.save}
    if evaluation:
        splits |= _test_cuts(run, evaluation, files, notes, options.verify)
    run.check()
    lexicon, dictionary, notes["Lexicon"] = _lexicon(options, corpus, divided["train_nodev"], files)
    run.finish(
        splits,
        lexicon=lexicon,
        dictionary=dictionary,
        texts={"train": _sentences(divided["train_nodev"])},
        sources=sources,
        notes=notes,
        files=files,
        train="train_nodup",
    )


def _sentences(segments: list[SideSegment]) -> Iterator[str]:
    """Yield the words of each utterance that has words other than noises."""
    for segment in segments:
        if words := [word for word in segment.text.split() if word not in NOISES]:
            yield " ".join(words)


def _read_segments(run: Preparation, corpus: Corpus) -> list[SideSegment]:
    """Read all transcripts; report broken ones, and drop segments without words."""
    segments: list[SideSegment] = []
    paths = list(corpus.transcripts.values())
    for transcript in run.map(
        read_transcript, paths, "reading transcripts", key=file_state, kind="damaged_text"
    ):
        if transcript is None:
            continue
        for message in transcript["problems"]:
            run.problem(message)
        for start, end, text in transcript["segments"]:
            segment = SideSegment(transcript["conversation"], transcript["side"], start, end, text)
            if text:
                segments.append(segment)
            else:
                run.drop(segment.name, "silence")
    return segments


def _recordings(run: Preparation, audio: dict[str, str], label: str, verify: bool) -> "dict[str, Recording]":
    """Return the recordings by conversation; audio other than two channels at 8 kHz becomes a problem."""
    # Threads, because reading headers is limited by the disk.
    read = audio_facts if verify else header_facts
    headers = run.map(read, list(audio.values()), label, key=file_state, threads=not verify)
    recordings: dict[str, Recording] = {}
    for (conversation, path), facts in zip(audio.items(), headers, strict=True):
        if facts is not None:
            with run.reporting():
                samples = samples_as_expected(path, facts, SAMPLE_RATE, len(CHANNEL))
                recordings[conversation] = recording(conversation, path, samples, SAMPLE_RATE, len(CHANNEL))
    return recordings


def _compare(run: Preparation, corpus: Corpus) -> set[str]:
    """Report transcripts without audio and audio without transcripts; return the conversations to leave out.

    If the number of audio files is in `FILES`, up to three incomplete conversations (the difference of the
    two numbers) are returned instead of reported.
    """
    if len(corpus.audio) not in FILES:
        message = f"audio files: expected {FILES[0]} or {FILES[1]}, found {len(corpus.audio)}"
        run.problem(message, "counts")
    unpaired: dict[str, tuple[str, str]] = {}
    for side, path in corpus.transcripts.items():
        if side.partition("-")[0] not in corpus.audio:
            unpaired[path] = f"expected the audio {side.partition('-')[0]}.sph, found none", "missing_audio"
    for conversation, path in corpus.audio.items():
        if missing := [side for side in CHANNEL if f"{conversation}-{side}" not in corpus.transcripts]:
            sides = " and ".join(missing)
            unpaired[path] = f"expected a transcript of side {sides}, found none", "missing_text"
    concerned = {conversation_of(Path(path).name) for path in unpaired}
    # Copies may lack up to three conversations, the difference between the two usual numbers of files.
    if len(corpus.audio) in FILES and len(concerned) <= FILES[1] - FILES[0]:
        return concerned
    for path, (message, kind) in unpaired.items():
        run.problem(f"{path}: {message}", kind)
    return set()


def _fits(
    run: Preparation, segment: SideSegment, recordings: "dict[str, Recording]", incomplete: set[str]
) -> bool:
    if segment.conversation in incomplete:
        run.drop(segment.name, "a conversation without audio or transcripts in this copy")
        return False
    audio = recordings.get(segment.conversation)  # None: the audio file is reported
    return audio is not None and _within(run, segment.name, audio, segment.start / 100, segment.end / 100)


def _within(run: Preparation, name: str, audio: "Recording", start_s: float, end_s: float) -> bool:
    """Return whether an utterance lies within its audio; report it otherwise."""
    if start_s < audio.duration and end_s <= audio.duration + OVERHANG_S:
        return True
    run.problem(
        f"utterance {name!r}: expected it within the {audio.duration:.2f} s of "
        f"{audio.sources[0].source}, found its end at {end_s:.2f} s",
        "times",
    )
    return False


def _training_cuts(
    segments: list[SideSegment], recordings: "dict[str, Recording]", speakers: dict[str, str]
) -> "Iterator[MonoCut]":
    for segment in segments:
        audio, side = recordings[segment.conversation], f"{segment.conversation}-{segment.side}"
        span_s = segment.start / 100, segment.end / 100
        yield _cut(segment.name, audio, segment.text, speakers.get(side, side), segment.side, *span_s)


def _cut(
    name: str, audio: "Recording", text: str, speaker: str, side: str, start_s: float, end_s: float
) -> "MonoCut":
    """Return an utterance of a side; it ends at the end of the audio at the latest."""
    duration_s = round(min(end_s, audio.duration) - start_s, 6)
    start_s = round(start_s, 6)
    channel = CHANNEL[side]
    return utterance_cut(name, audio, text, speaker, start_s=start_s, duration_s=duration_s, channel=channel)


def _test_cuts(
    run: Preparation,
    evaluation: Eval2000,
    files: dict[str, Callable[[Path], object]],
    notes: dict[str, str],
    verify: bool,
) -> "dict[str, Iterable[MonoCut]]":
    """Return the splits of eval2000; add references and rules to `files`, repairs to `notes`."""
    test = test_set.read_test_set(evaluation.pem, evaluation.stm)
    for message in test.problems:
        run.problem(message)
    for name in test.ignored:
        run.drop(name, "eval2000: not to be scored")
    recordings = _recordings(run, evaluation.audio, "reading audio of eval2000", verify)
    run.expect("eval2000: conversations", test_set.CONVERSATIONS, len(evaluation.audio))
    named = {span.conversation for span in test.spans.values()}
    for conversation in sorted(named - evaluation.audio.keys()):
        message = f"{evaluation.pem}: expected the audio {conversation}.sph, found none"
        run.problem(message, "missing_audio")
    files[GLM] = partial(shutil.copyfile, evaluation.glm)
    splits: dict[str, Iterable[MonoCut]] = {}
    for split, expected in test_set.UTTERANCES.items():
        members = test_set.subset(test.spans, split)
        run.expect(f"{split}: utterances", expected, len(members))
        there = [name for name in members if test.spans[name].conversation in recordings]
        splits[split] = _evaluation_cuts(run, there, test, recordings)
        files[f"{split}.stm"] = partial(write_stm, stm=test.stm.restricted(test_set.PREFIXES[split]))
    changes = ", ".join(f"{count} × {what}" for what, count in test.repairs.items()) or "none"
    notes["eval2000"] = (
        f"Segments of {evaluation.pem.name}, each end extended by {test_set.MARGIN_S} s where there is room. "
        f"Removed from the reference, because NIST's programs mishandle it: {changes}. The manifests hold "
        f"the words without markup; `asr score official=true` gives the STM files and {GLM} to sclite."
    )
    return splits


def _evaluation_cuts(
    run: Preparation, names: list[str], test: test_set.TestSet, recordings: "dict[str, Recording]"
) -> "Iterator[MonoCut]":
    for name in names:
        span = test.spans[name]
        audio = recordings[span.conversation]
        if _within(run, name, audio, span.start_s, span.end_s):
            speaker = f"{span.conversation}-{span.side}"
            yield _cut(name, audio, test.texts[name], speaker, span.side, span.start_s, span.end_s)


def _lexicon(
    options: Options, corpus: Corpus, segments: list[SideSegment], files: dict[str, Callable[[Path], object]]
) -> tuple[Lexicon, Lexicon, str]:
    """Return lexicon, dictionary and a sentence on them; add the list of lines left out to `files`."""
    if options.lexicon == "ms98" and corpus.dictionary is None:
        raise UserError(f"lexicon=ms98: expected {DICTIONARY} in the corpus, found none")
    if options.lexicon != "cmudict" and corpus.dictionary is not None:
        lexicon, left_out = read_dictionary(corpus.dictionary)
        files[LEFT_OUT] = partial(write_lines, lines=left_out)
        note = (
            f"{corpus.dictionary.name} of the distribution with letters and noises; "
            f"{counted(len(left_out), 'line')} left out, listed in {LEFT_OUT}."
        )
        return lexicon, lexicon, note
    dictionary = public_dictionary()
    words = {word for segment in segments for word in segment.text.split()}
    reason = f"since {DICTIONARY} is missing" if corpus.dictionary is None else "as requested"
    note = f"CMUdict, {reason}: phone error rates are not comparable with those of other lexica."
    return dictionary.of({*words, *letters(), *NOISES}), dictionary, note


def _callers(path: str) -> dict[str, str]:
    """Return the caller of each conversation side from the LDC's call table, `2001, "A", 1007, …`."""
    callers = {}
    for number, line in read_lines(path):
        fields = [field.strip().strip('"') for field in next(csv.reader([line], skipinitialspace=True))]
        if len(fields) < 3 or not fields[0].isdigit() or fields[1] not in CHANNEL or not fields[2].isdigit():
            raise UserError(f"{path}:{number}: expected `conversation, side, caller, …`, found {line[:60]!r}")
        callers[f"sw0{fields[0]}-{fields[1]}"] = f"sw{fields[2]}"
    return callers
