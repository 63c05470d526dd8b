"""Transcription of long recordings: chunks, stretches, one pass, channels and invalid options."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from tone_corpora import tones

from asr import Recognizer, config
from asr.cli import main
from asr.data.manifest import read_cuts
from asr.errors import UserError
from asr.search.greedy import greedy_search
from asr.search.run import search_stretches, split_stretches
from asr.transcription.options import TranscriptionConfig
from asr.transcription.posteriors import posteriors, split_chunks

TEXTS = ["a cat", "sea back be", "tea a cat be", "back sea", "be be a"]


@pytest.fixture(scope="module")
def long_audio() -> np.ndarray:
    """Concatenated utterances, 40 s."""
    random = np.random.default_rng(7)
    parts = []
    while sum(map(len, parts)) < 40 * 16000:
        parts.append(tones(TEXTS[len(parts) % len(TEXTS)], 16000, random))
    return np.concatenate(parts)


@pytest.mark.parametrize("frames", [1, 5, 40, 99, 100, 101, 160, 161, 1234])
@pytest.mark.parametrize("overlap", [0, 33, 50])
def test_chunks_keep_every_frame_once_and_away_from_their_edges(frames: int, overlap: int) -> None:
    chunks = split_chunks(frames, 100, overlap)
    kept = [i for chunk in chunks for i in range(chunk.keep_start, chunk.keep_end)]
    assert kept == list(range(frames))
    margin = overlap // 2
    for chunk in chunks:
        assert chunk.end - chunk.start <= 100
        assert chunk.start == 0 or chunk.keep_start - chunk.start == margin
        assert chunk.end == frames or chunk.end - chunk.keep_end >= margin


def test_one_pass_equals_the_models_output_and_does_not_depend_on_blocks(
    recognizer: Recognizer, long_audio: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    audio = torch.from_numpy(long_audio)
    with torch.no_grad():
        expected, _ = recognizer.model(audio.unsqueeze(0), torch.tensor([len(audio)]))
    monkeypatch.setattr("asr.model.features.BLOCK_FRAMES", 333)
    monkeypatch.setattr("asr.model.blocks.BLOCK_FRAMES", 77)
    found = posteriors(recognizer.model, long_audio, TranscriptionConfig(mode="onepass"))
    assert torch.allclose(found, expected[0], atol=1e-3)


def test_a_single_chunk_equals_one_pass_and_each_chunk_is_encoded_alone(
    recognizer: Recognizer, long_audio: np.ndarray
) -> None:
    short = long_audio[: 8 * 16000]
    whole = posteriors(recognizer.model, short, TranscriptionConfig(mode="onepass"))
    once = posteriors(recognizer.model, short, TranscriptionConfig(mode="chunked", chunk_s=20))
    assert torch.equal(whole, once)
    config = TranscriptionConfig(mode="chunked", chunk_s=6, overlap_s=2)
    chunked = posteriors(recognizer.model, long_audio, config)
    frames = recognizer.model.encoder_frames(len(long_audio) / 16000)
    assert chunked.shape[0] == frames
    second = split_chunks(frames, round(6 / recognizer.model.frame_s), round(2 / recognizer.model.frame_s))[1]
    hop = 160 * recognizer.model.config.model.subsampling
    own = posteriors(
        recognizer.model,
        long_audio[second.start * hop : second.end * hop + 240],
        TranscriptionConfig(mode="onepass"),
    )
    kept = slice(second.keep_start, second.keep_end)
    assert torch.allclose(chunked[kept], own[kept.start - second.start : kept.stop - second.start], atol=1e-3)


def test_stretches_are_cut_in_pauses() -> None:
    random = np.random.default_rng(0)
    labels: list[int] = []
    while len(labels) < 1000:
        labels += [*random.integers(1, 4, random.integers(20, 60)), *[0] * random.integers(4, 20)]
    log_probs = torch.nn.functional.one_hot(torch.tensor(labels), 4).float().mul(5).log_softmax(dim=-1)
    cuts = split_stretches(log_probs, frame_s=0.1)
    assert (cuts[0], cuts[-1]) == (0, len(labels))
    lengths_s = [(end - start) * 0.1 for start, end in itertools.pairwise(cuts)]
    assert len(lengths_s) > 4
    assert min(lengths_s[:-1]) >= 10
    assert max(lengths_s) <= 30
    assert not any(any(labels[cut - 2 : cut + 2]) for cut in cuts[1:-1])
    whole = greedy_search(log_probs.unsqueeze(0), torch.tensor([len(log_probs)]))[0]
    assert search_stretches(greedy_search, [log_probs], 0.1) == [whole]


def test_speech_without_pauses_is_cut_too() -> None:
    log_probs = torch.zeros(1000, 2)
    log_probs[:, 1] = 1.0
    lengths = [end - start for start, end in itertools.pairwise(split_stretches(log_probs, 0.1))]
    assert sum(lengths) == 1000
    assert max(lengths) <= 300


def test_chunks_are_at_most_as_long_as_the_training_audio() -> None:
    assert TranscriptionConfig().sizes_s(longest_s=5.0) == (5.0, 1.0)
    assert TranscriptionConfig().sizes_s(longest_s=40.0) == (20.0, 4.0)
    assert TranscriptionConfig().sizes_s(longest_s=0.0) == (20.0, 4.0)
    assert TranscriptionConfig(chunk_s=30, overlap_s=0).sizes_s(longest_s=5.0) == (30, 0)


def test_an_overlap_of_more_than_half_a_chunk_is_refused_with_an_automatic_chunk_too() -> None:
    """It was made smaller in silence, but refused where `chunk_s` was set."""
    with pytest.raises(UserError, match="overlap_s=11: expected at most half of a chunk, chunk_s=20"):
        config.parse(TranscriptionConfig, ["overlap_s=11"])
    options = config.parse(TranscriptionConfig, ["overlap_s=10"])
    assert options.sizes_s(longest_s=20.0) == (20.0, 10.0)
    with pytest.raises(UserError, match="overlap_s=10: expected at most half of a chunk, chunk_s=5"):
        options.sizes_s(longest_s=5.0)  # known only with the model


def test_auto_encodes_in_one_pass_up_to_training_s_lengths(
    recognizer: Recognizer, long_audio: np.ndarray
) -> None:
    """One pass over an hour was the default of a model trained on 5 s: 34.5 % WER instead of 6.4 %."""
    auto = TranscriptionConfig()
    assert [auto.in_chunks(x, longest_s=40.0) for x in (1, 60, 61)] == [False, False, True]
    assert [auto.in_chunks(x, longest_s=0.0) for x in (30, 31)] == [False, True]
    assert not TranscriptionConfig(mode="onepass").in_chunks(3600, 5.0)
    assert TranscriptionConfig(mode="chunked").in_chunks(1, 5.0)
    found = posteriors(recognizer.model, long_audio, auto)
    assert torch.equal(found, posteriors(recognizer.model, long_audio, TranscriptionConfig(mode="chunked")))


def test_progress_adds_up_to_one(recognizer: Recognizer, long_audio: np.ndarray, tmp_path: Path) -> None:
    """The bar stood still for the whole of a long recording."""
    path = tmp_path / "x.wav"
    soundfile.write(path, long_audio, 16000)
    for mode in ("onepass", "chunked"):
        shares: list[float] = []
        config = TranscriptionConfig(mode=mode)
        list(recognizer.transcribe_each([path], config, advance=shares.append))
        assert sum(shares) == pytest.approx(1)
        assert len(shares) > (5 if mode == "chunked" else 1)


def test_errors_name_the_option(recognizer: Recognizer) -> None:
    with pytest.raises(UserError, match="mode=chunk: expected one of auto, onepass, chunked"):
        recognizer.transcribe("x.wav", mode="chunk")
    with pytest.raises(UserError, match="overlap_s=3"):
        recognizer.transcribe("x.wav", mode="chunked", chunk_s=5, overlap_s=3)
    with pytest.raises(UserError, match="chunk_s=5: has no effect with mode=onepass"):
        recognizer.transcribe("x.wav", mode="onepass", chunk_s=5)
    with pytest.raises(UserError, match="channels='separate'"):
        recognizer.transcribe("x.wav", channels="separate")


def test_segments_contain_the_words_in_order(
    recognizer: Recognizer, long_audio: np.ndarray, tmp_path: Path
) -> None:
    path = tmp_path / "long.wav"
    soundfile.write(path, long_audio[: 12 * 16000], 16000)
    for options in ({"mode": "onepass"}, {"mode": "chunked", "chunk_s": 5, "overlap_s": 1}):
        transcript = recognizer.transcribe(path, **options)
        said = [word.word for segment in transcript.segments for word in segment.words]
        assert said == transcript.text.split()
        times = [time for s in transcript.segments for w in s.words for time in (w.start_s, w.end_s)]
        assert times == sorted(times)
        assert times[-1] <= transcript.duration_s
        assert transcript.text.split()[1:10] == " ".join(TEXTS).split()[1:10]


def test_a_recording_much_longer_than_the_training_audio_logs_a_warning(
    recognizer: Recognizer, long_audio: np.ndarray, caplog: pytest.LogCaptureFixture
) -> None:
    assert 0.5 < recognizer.model.config.longest_s < 3
    posteriors(recognizer.model, long_audio, TranscriptionConfig(mode="chunked"), "x.wav")
    assert not caplog.text
    posteriors(recognizer.model, long_audio, TranscriptionConfig(), "x.wav")
    assert not caplog.text
    posteriors(recognizer.model, long_audio, TranscriptionConfig(mode="onepass"), "x.wav")
    assert "x.wav: lasts 4" in caplog.text
    assert "data.concatenate_s" in caplog.text


def test_a_silent_recording_has_no_words(
    recognizer: Recognizer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "silence.wav"
    soundfile.write(path, np.zeros(32000, dtype=np.float32), 16000)
    transcript = recognizer.transcribe(path)
    assert (transcript.text, transcript.segments, transcript.low_confidence) == ("", [], True)
    assert "silence.wav: the recording is silent" in caplog.text


def test_channels_are_transcribed_separately_and_written_to_a_folder(
    trained: Path,
    tone_corpus: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    cuts = sorted(read_cuts(tone_corpus / "test.cuts.jsonl.gz"), key=lambda cut: cut.duration)
    # Similar lengths, because the tiny model has seen no long pause at the end of an utterance.
    pair = min(itertools.pairwise(cuts), key=lambda two: two[1].duration - two[0].duration)
    texts = [cut.supervisions[0].text for cut in pair]
    left, right = (soundfile.read(cut.recording.sources[0].source)[0] for cut in pair)
    size = max(len(left), len(right))
    both = 0.003 * np.random.default_rng(0).standard_normal((size, 2))
    both[: len(left), 0] = left
    both[: len(right), 1] = right
    calls = tmp_path / "calls"
    calls.mkdir()
    soundfile.write(calls / "a.wav", both, 16000)
    soundfile.write(calls / "b.wav", left, 16000)
    (calls / "b.txt").write_text(texts[0])
    (calls / ".listing").touch()
    arguments = ["transcribe", str(trained), str(calls), "channels=separate", f"output={tmp_path / 'out'}"]
    assert main([*arguments, "format=json"]) == 0
    assert "calls: skipped 2 transcripts or hidden files" in caplog.text
    lines = [json.loads(line) for line in (tmp_path / "out" / "a.json").read_text().splitlines()]
    assert [(line["channel"], line["text"]) for line in lines] == list(enumerate(texts, start=1))
    assert main([*arguments, "format=srt"]) == 0
    assert (tmp_path / "out" / "b.srt").read_text().startswith("1\n00:00:00,")
    assert main(["transcribe", str(trained), str(calls), "format=srt"]) == 0
    assert sorted(path.name for path in calls.glob("*.srt")) == ["a.srt", "b.srt"]


@pytest.mark.parametrize("command", ["transcribe", "align"])
def test_a_model_that_returns_no_numbers_is_noticed(
    command: str, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Samples of 1e30 gave an empty transcript, and a traceback when aligned."""
    soundfile.write(tmp_path / "x.wav", np.full(16000, 1e30), 16000, subtype="FLOAT")
    (tmp_path / "x.txt").write_text("a cat")
    assert main([command, str(trained), str(tmp_path / "x.wav")]) == 1
    assert "x.wav: expected log-probabilities, found NaN" in capsys.readouterr().err
