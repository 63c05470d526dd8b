"""Silence inside a recording: no words there, and the speech as it is without it, in every mode."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from quick import quick
from tone_corpora import tones

from asr import Recognizer
from asr.data.audio_file import SILENT_PEAK, Samples
from asr.model.acoustic_model import AcousticModel, AcousticModelConfig
from asr.model.options import ModelConfig
from asr.search.greedy import greedy_search
from asr.transcription import silence
from asr.transcription.options import EncodingOptions, TranscriptionConfig
from asr.transcription.posteriors import encode, posteriors
from asr.transcription.silence import MARGIN_S, SHORTEST_S, SPECTRUM_S, UNHEARD, Sound, sound_of

RATE = 16000
LSB = 1 / 32768
Fill = Callable[[float], Samples]
TEXTS = ["a cat", "sea back be", "tea a cat be", "back sea", "be be a"]
MODES = {
    "onepass": EncodingOptions(mode="onepass"),
    "chunked": EncodingOptions(mode="chunked"),
    "short chunks": EncodingOptions(mode="chunked", chunk_s=1.5, overlap_s=0.5),
    "auto": EncodingOptions(),
}


def zeros(seconds: float) -> Samples:
    return np.zeros(round(seconds * RATE), dtype=np.float32)


def dither(seconds: float) -> Samples:
    """Noise of ±1 step of 16 bits."""
    steps = np.random.default_rng(1).integers(-1, 2, round(seconds * RATE))
    return (LSB * steps).astype(np.float32)


def noise(seconds: float) -> Samples:
    return 0.1 * np.random.default_rng(4).standard_normal(round(seconds * RATE)).astype(np.float32)


def swelling(seconds: float) -> Samples:
    """Noise that swells and fades four times a second."""
    return noise(seconds) * np.cos(np.arange(round(seconds * RATE)) * 2 * np.pi * 2 / RATE) ** 2


def speech(seconds: float, seed: int = 7) -> Samples:
    random = np.random.default_rng(seed)
    parts: list[Samples] = []
    while sum(map(len, parts)) < seconds * RATE:
        parts.append(tones(TEXTS[len(parts) % len(TEXTS)], RATE, random))
    return np.concatenate(parts)


def labels_in(log_probs_TV: torch.Tensor, start_s: float, end_s: float, frame_s: float) -> int:
    (path,) = greedy_search(log_probs_TV[None], torch.tensor([len(log_probs_TV)]))
    return sum(start_s <= frame * frame_s < end_s for frame in path.frames)


def hiss(seconds: float) -> Samples:
    """Noise at −60 dB."""
    return 1e-3 * np.random.default_rng(3).standard_normal(round(seconds * RATE)).astype(np.float32)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("quiet", [zeros, dither, hiss])
def test_silence_between_speech_has_no_labels(
    recognizer: Recognizer, quiet: Fill, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a minute of dither in one channel of a call became 80 words: each chunk was normalised by itself.

    In one pass, where speech and silence were normalised together, 89 % of the words were wrong.
    """
    model, options = recognizer.model, MODES[mode]
    before = speech(2.5)
    call = np.concatenate([before, quiet(20), speech(2.5, seed=8)])
    margin_s = MARGIN_S + model.frame_s  # the silence starts within a frame, noise within a spectrum
    margin_s += SPECTRUM_S if quiet is hiss else 0
    pause_s = len(before) / RATE + margin_s, len(before) / RATE + 20 - margin_s
    found = posteriors(model, call, options)
    assert len(found) == model.encoder_frames(len(call) / RATE)
    assert not labels_in(found, *pause_s, model.frame_s)
    assert labels_in(found, 0, len(call) / RATE, model.frame_s) > 20
    if quiet is not zeros and mode != "onepass":
        monkeypatch.setattr(silence, "SILENT_PEAK", 0.0)
        monkeypatch.setattr(silence, "STEADY_DB", -1.0)
        assert labels_in(posteriors(model, call, options), *pause_s, model.frame_s) > 5


def test_the_rest_of_a_recording_is_encoded_as_if_there_were_no_silence(recognizer: Recognizer) -> None:
    model = recognizer.model
    hop = round(model.frame_s * RATE)
    before, after = speech(2.5), speech(2.5, seed=8)
    before, after = before[: len(before) // hop * hop], after[: len(after) // hop * hop]
    margin, cut = round(MARGIN_S / model.frame_s), 100
    call = np.concatenate([before, np.zeros((2 * margin + cut) * hop, np.float32), after])
    joined = np.concatenate([before, np.zeros(2 * margin * hop, np.float32), after])
    first = len(before) // hop + margin
    for options in MODES.values():
        found, expected = (posteriors(model, own, options) for own in (call, joined))
        assert torch.equal(torch.cat([found[:first], found[first + cut :]]), expected)
        silent = found[first : first + cut]
        assert (silent[:, 0] == 0).all()
        assert (silent[:, 1:] == UNHEARD).all()
        assert torch.allclose(silent.logsumexp(dim=-1), torch.zeros(cut), atol=1e-6)


def test_batches_know_silence_too(recognizer: Recognizer) -> None:
    """`asr decode` and short recordings are encoded in batches, among others with and without silence."""
    model = recognizer.model
    batch = [
        np.concatenate([speech(1), dither(3), speech(1, seed=8)]),
        speech(2),
        zeros(2),
        np.concatenate([zeros(1), speech(1), dither(1)]),
    ]
    found = encode(model, batch)
    assert found.lengths_B.tolist() == [model.encoder_frames(len(own) / RATE) for own in batch]
    for own, samples in zip(found.each(), batch, strict=True):
        assert torch.allclose(own, posteriors(model, samples, MODES["onepass"]), atol=1e-3)
    assert (found.each()[2][:, 0] == 0).all()
    (alone,) = encode(model, [zeros(2)]).each()
    assert torch.equal(alone, found.each()[2])


def test_recordings_without_silence_are_encoded_as_before(
    recognizer: Recognizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pauses and quiet speech included: of the model's input, not a bit changes."""
    model = recognizer.model
    batch = [
        speech(3),
        np.concatenate([speech(1), zeros(SHORTEST_S - 0.05), speech(1, seed=8)]),
        1e-3 / 0.3 * speech(3),  # peaks at −60 dB
        np.concatenate([speech(1), 1e-2 * np.random.default_rng(2).standard_normal(RATE)]).astype(np.float32),
    ]
    assert all(sound_of(model, samples).samples is samples for samples in batch)
    found = [posteriors(model, x, options) for x in batch for options in MODES.values()]
    together = encode(model, batch)
    monkeypatch.setattr(silence, "SILENT_PEAK", 0.0)
    expected = [posteriors(model, x, options) for x in batch for options in MODES.values()]
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert torch.equal(together.log_probs_BTV, encode(model, batch).log_probs_BTV)


@pytest.mark.parametrize("attenuation_db", [20, 30, 40, 50])
def test_quiet_speech_beside_loud_speech_is_no_noise(recognizer: Recognizer, attenuation_db: int) -> None:
    """Its level varies by more than that of steady noise, however far it is below."""
    call = np.concatenate([speech(4), 10 ** (-attenuation_db / 20) * swelling(20), speech(4, seed=8)])
    assert sound_of(recognizer.model, call.astype(np.float32)).whole
    assert not sound_of(recognizer.model, np.concatenate([speech(4), hiss(4), speech(4)])).whole


@pytest.mark.parametrize("level_db", [-60, -20, 0])
@pytest.mark.parametrize("mode", MODES)
def test_noise_alone_has_no_words(recognizer: Recognizer, level_db: int, mode: str) -> None:
    """30 s of white noise became 115 words at any level, because features are normalised."""
    hum = 0.3 * np.sin(np.arange(6 * RATE) * 2 * np.pi * 50 / RATE).astype(np.float32)
    for sound in (noise(6), np.cumsum(noise(6) - noise(6).mean()), noise(6) + hum, noise(2)):
        samples = (10 ** (level_db / 20) * sound).astype(np.float32)
        assert (posteriors(recognizer.model, samples, MODES[mode])[:, 0] == 0).all()
        assert sound_of(recognizer.model, np.concatenate([samples, speech(2)])).samples.size < 2.6 * RATE


def test_speech_in_noise_is_sound(recognizer: Recognizer) -> None:
    """Words of an utterance in noise as loud as itself are not taken for the noise."""
    clean = speech(6)
    noisy = clean + np.sqrt(np.square(clean).mean()) / 0.1 * noise(len(clean) / RATE)
    assert sound_of(recognizer.model, noisy.astype(np.float32)).whole


def test_silence_is_not_encoded(recognizer: Recognizer, monkeypatch: pytest.MonkeyPatch) -> None:
    model = recognizer.model
    seconds: list[float] = []

    def counted(self: AcousticModel, audio: torch.Tensor, lengths: torch.Tensor) -> object:
        seconds.append(float(lengths.sum()) / RATE)
        return forward(self, audio, lengths)

    forward = AcousticModel.forward
    monkeypatch.setattr(AcousticModel, "forward", counted)
    for options in MODES.values():
        assert (posteriors(model, dither(60), options)[:, 0] == 0).all()
    assert seconds == []
    posteriors(model, np.concatenate([zeros(30), speech(2), dither(30)]), MODES["auto"])
    assert 2 < sum(seconds) < 4


@pytest.mark.parametrize("subsampling", quick([1, 2, 4, 8], lambda subsampling: subsampling == 4))
def test_as_many_frames_are_cut_as_are_put_back(subsampling: int) -> None:
    """For every length of the recording, and silence at its start, within it and at its end."""
    model = AcousticModel(
        AcousticModelConfig(model=ModelConfig(layers=1, heads=1, head_dim=8, subsampling=subsampling)), 5
    ).eval()
    random = np.random.default_rng(subsampling)
    for _ in range(300):
        parts = [random.choice([zeros, dither, swelling])(random.uniform(0.05, 1.5)) for _ in range(4)]
        samples = np.concatenate(parts)
        sound = sound_of(model, samples)
        assert len(sound.silent_T) == model.encoder_frames(len(samples) / RATE)
        assert model.encoder_frames(len(sound.samples) / RATE) == (~sound.silent_T).sum()
        assert np.abs(samples).max() < SILENT_PEAK or np.abs(sound.samples).sum() > 0


def test_the_times_of_a_transcript_are_those_of_the_recording(recognizer: Recognizer) -> None:
    pause_s = 8.0
    turn = speech(2)
    call = np.concatenate([turn, dither(pause_s)] * 3)
    for options in (TranscriptionConfig(), TranscriptionConfig(mode="onepass", decoder="prefix")):
        ((_, outcome),) = recognizer.transcribe_each([call], options, sample_rate=RATE)
        assert not isinstance(outcome, Exception)
        (transcript,) = outcome
        turn_s, margin_s = len(turn) / RATE, MARGIN_S + recognizer.model.frame_s
        since_margin_s = [time + margin_s for time in transcript.times_s]
        turns = [int(time // (turn_s + pause_s)) for time in since_margin_s]
        assert all(turns.count(number) > 5 for number in range(3))
        assert all(time % (turn_s + pause_s) < turn_s + 2 * margin_s for time in since_margin_s)


@pytest.mark.parametrize(("topology", "outputs"), [("ctc", [2, 2, 1, 1]), ("hmm", [2, 4, 1, 3])])
def test_a_label_ends_before_silence_in_both_topologies(topology: str, outputs: list[int]) -> None:
    log_probs_TV = torch.full((4, 3 if topology == "ctc" else 5), -9.0)
    log_probs_TV[torch.arange(4), outputs] = -0.001
    silent_T = np.array([False, False, True, True, True, False, False, True])
    found = Sound(zeros(1), silent_T).with_silence(log_probs_TV)
    (path,) = greedy_search(found[None], torch.tensor([8]), topology)
    assert (path.ids, path.frames, path.ends) == ([2, 1], [0, 5], [2, 7])
