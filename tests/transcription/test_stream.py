"""Audio as it comes, against the transcript of the whole recording."""

import io
import itertools
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from once import once
from tone_corpora import LEXICON, TINY, tones

from asr import Recognizer, UserError
from asr.cli import main
from asr.data.audio_file import Samples
from asr.search.path import TimedWord
from asr.transcription.posteriors import encode
from asr.transcription.transcript import Transcript

RATE = 16000
STREAMED = ["attention=local-8:right=2", "features.normalise=corpus", "model.positions=rotary"]
TOKENIZERS = {
    "phone": [],
    "character": ["tokenizer.kind=character"],
    "sentencepiece": ["tokenizer.kind=sentencepiece", "tokenizer.pieces=12"],
}


@pytest.fixture(scope="module", params=TOKENIZERS)
def streamed(request: pytest.FixtureRequest, tone_corpus: Path, shared: Path) -> Recognizer:
    """A model with bounded look-ahead for each kind of labels."""
    from asr.training.config import train_options
    from asr.training.run import train

    def make(folder: Path, kind: str) -> None:
        length = ["trainer.max_steps=100", "trainer.validate_every=100", "seed=1"]
        options = [*TINY, *STREAMED, *TOKENIZERS[kind], *length]
        train(train_options([*options, f"data.train=[{tone_corpus}]", f"run={folder}"]))

    place = once(shared / f"streamed-{request.param}", partial(make, kind=request.param))
    return Recognizer.load(place)


def speech(seconds: float, seed: int = 7) -> Samples:
    random = np.random.default_rng(seed)
    parts: list[Samples] = []
    while sum(map(len, parts)) < seconds * RATE:
        parts.append(tones(" ".join(random.choice(list(LEXICON), 3)), RATE, random))
        if len(parts) % 3 == 0:
            parts.append(3e-3 * random.standard_normal(2 * RATE).astype(np.float32))  # as between words
    return np.concatenate(parts)


def blocks(samples: Samples, size: int) -> Iterator[Samples]:
    return (samples[start : start + size] for start in range(0, len(samples), size))


def words_of(transcript: Transcript) -> list[TimedWord]:
    return [word for segment in transcript.segments for word in segment.words]


def assert_same(found: list[TimedWord], expected: list[TimedWord]) -> None:
    assert [(x.word, x.start_s, x.end_s) for x in found] == [(x.word, x.start_s, x.end_s) for x in expected]
    confidences = [[x.confidence for x in words] for words in (found, expected)]
    assert confidences[0] == pytest.approx(confidences[1], abs=2e-4)  # rounded to four digits


@pytest.mark.parametrize("decoder", ["greedy", "prefix"])
def test_words_are_those_of_the_recording(streamed: Recognizer, decoder: str) -> None:
    """For blocks of any size, in recordings of any length, with steady noise between the words."""
    long = speech(14)
    for samples, size in ((long, 1600), (long[: 3 * RATE], 333), (long[: 4 * RATE], 10**6), (long[:200], 7)):
        found = list(streamed.stream(decoder=decoder).words(blocks(samples, size)))
        if len(samples) < 400:  # too short for `transcribe`
            assert found == []
            continue
        expected = streamed.transcribe(samples, RATE, decoder=decoder)
        assert_same(found, words_of(expected))
        assert len(found) > len(samples) / RATE / 2


@pytest.mark.parametrize("decoder", ["greedy", "prefix"])
def test_words_come_before_the_end_and_pending_ones_are_those_so_far(
    streamed: Recognizer, decoder: str
) -> None:
    """The oracle transcribes what has been heard again and again."""
    samples = speech(9, seed=3)
    stream = streamed.stream(decoder=decoder)
    whole = words_of(streamed.transcribe(samples, RATE, decoder=decoder))
    final: list[TimedWord] = []
    ahead = round(stream.look_ahead_s * RATE)
    for end in range(RATE, len(samples), RATE):
        final += stream.push(samples[end - RATE : end])
        assert_same(final, whole[: len(final)])
        # The last frames of what has been heard have no look-ahead.
        heard = words_of(streamed.transcribe(samples[: end - ahead], RATE, decoder=decoder))
        late_s = (end - ahead) / RATE - 0.5
        early = [x.word for x in [*final, *stream.pending] if x.end_s < late_s]
        assert early == [x.word for x in heard if x.end_s < late_s]
        if decoder == "greedy" and end > 3 * RATE:
            assert final[-1].end_s > end / RATE - 3
    final += stream.push(samples[end:])
    assert_same([*final, *stream.close()], whole)
    assert stream.pending == []


def test_arrays_tensors_integers_and_other_rates(streamed: Recognizer) -> None:
    integers = np.round(32767 * speech(3)).astype(np.int16)
    samples = integers.astype(np.float32) / 32768
    expected = list(streamed.stream().words([samples]))
    for given in (integers, torch.from_numpy(samples), samples[None], samples.astype(np.float64)):
        assert list(streamed.stream().words([given])) == expected
    twice = np.repeat(samples, 2)
    found = list(streamed.stream(2 * RATE).words(blocks(twice, 999)))
    assert_same(found, words_of(streamed.transcribe(twice, 2 * RATE)))
    assert len(found) > 2


def test_a_silent_recording_has_no_words(streamed: Recognizer) -> None:
    """Words that a model finds in silence come once something is heard, as in a file."""
    quiet = np.full(2 * RATE, 5e-5, dtype=np.float32)
    assert list(streamed.stream().words(blocks(quiet, 1000))) == []
    beginning = np.concatenate([quiet, speech(3)])
    found = list(streamed.stream().words(blocks(beginning, 1000)))
    assert_same(found, words_of(streamed.transcribe(beginning, RATE)))


def test_silence_is_not_cut_out_of_the_recording(streamed: Recognizer) -> None:
    """What is steady beside the loudest two seconds is known at the end alone."""
    call = np.concatenate([speech(2), np.zeros(2 * RATE, np.float32), speech(2)])
    (found,) = encode(streamed.model, [call]).each()
    with torch.inference_mode():
        expected, _ = streamed.model(torch.from_numpy(call)[None], torch.tensor([len(call)]))
    assert torch.equal(found, expected[0])


def test_what_is_no_block_is_named(streamed: Recognizer) -> None:
    stream = streamed.stream()
    for block, message in (
        (np.zeros((2, 9), np.float32), "expected blocks of one channel, found 2: a stream for each"),
        (np.zeros((1, 1, 9), np.float32), r"found shape \[1, 1, 9\]"),
        (np.zeros(9, np.uint8), "floats in −1 … 1 or signed integers, found uint8"),
        (np.array([0, np.nan], np.float32), "stream: sample 1 is not finite"),
    ):
        with pytest.raises(UserError, match=message):
            stream.push(block)
    assert stream.push(np.zeros(0, np.float32)) == []
    stream.close()
    for call in (stream.close, lambda: stream.push(np.zeros(9, np.float32))):
        with pytest.raises(UserError, match="stream: closed; start another"):
            call()
    with pytest.raises(
        UserError, match=r"decoder=beam .*searches whole stretches: .* expected greedy or prefix"
    ):
        streamed.stream(decoder="beam")
    with pytest.raises(UserError, match="chunk_s"):
        streamed.stream(chunk_s=3)
    with pytest.raises(UserError, match="0 Hz"):
        streamed.stream(-3)


def test_a_model_without_bounded_look_ahead_is_refused(recognizer: Recognizer) -> None:
    with pytest.raises(UserError) as error:
        recognizer.stream()
    for part in (
        "this model can't recognise audio as it comes: ",
        "features.normalise=utterance takes its statistics from later audio",
        "model.positions=sinusoidal",
        "attention full looks ahead over the whole utterance: train with attention=local-64:right=4 or",
    ):
        assert part in str(error.value)


@pytest.mark.parametrize("container", [True, False])
def test_standard_input_is_transcribed_as_it_comes(
    streamed: Recognizer,
    container: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With a header, and without one; a pause of more than 0.7 s ends a line."""
    soundfile.write(
        tmp_path / "a.wav", np.concatenate([speech(3), speech(2, seed=9)]), RATE, subtype="PCM_16"
    )
    content = (tmp_path / "a.wav").read_bytes()
    expected = words_of(streamed.transcribe(tmp_path / "a.wav"))
    given = ["transcribe", str(streamed.run_folder), "-", "live=true"]
    given += [] if container else [f"rate={RATE}"]
    printed = []
    for form in ("text", "json"):
        pipe = io.BytesIO(content if container else content[44:])
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(pipe))
        assert main([*given, f"format={form}"]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0].split() == [word.word for word in expected]
    pauses = sum(two.start_s - one.end_s >= 0.7 for one, two in itertools.pairwise(expected))
    assert printed[0].count("\n") == pauses + 1
    assert_same([TimedWord(**json.loads(line)) for line in printed[1].splitlines()], expected)


def test_live_options_without_effect_are_refused(
    trained: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for given, message in (
        (["-", "live=true", "mode=chunked"], "mode=chunked: has no effect with live=true"),
        (["-", "live=true", "format=srt"], "format=srt: expected text or json with live=true"),
        (["-", "rate=16000"], "rate=16000: has no effect"),
        (["a.wav", "live=true"], "live=true: expected a model and - (standard input)"),
        (["-", "live=true"], "this model can't recognise audio as it comes: features.normalise=utterance"),
    ):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
        assert main(["transcribe", str(trained), *given]) == 1
        assert message in capsys.readouterr().err
