"""Filter banks, against Kaldi's, and their normalisation."""

import kaldi_native_fbank
import numpy as np
import pytest
import torch
from sounds import odd_sounds, speech_like

from asr.config import from_dict, to_dict
from asr.errors import UserError
from asr.model.features import RANGE, CorpusStatistics, FilterBanks, Normalisation
from asr.model.options import FeatureConfig
from asr.training.config import train_options_from


@pytest.mark.parametrize(("rate", "bins"), [(16000, 40), (16000, 80), (8000, 40)])
def test_equals_kaldi_native_fbank(rate: int, bins: int) -> None:
    audio = speech_like(2 * rate + 123)
    options = kaldi_native_fbank.FbankOptions()
    options.frame_opts.samp_freq = rate
    options.frame_opts.dither = 0.0
    options.frame_opts.snip_edges = True
    options.mel_opts.num_bins = bins
    options.mel_opts.high_freq = -400.0
    kaldi = kaldi_native_fbank.OnlineFbank(options)
    kaldi.accept_waveform(rate, audio.tolist())
    kaldi.input_finished()
    expected = np.stack([kaldi.get_frame(i) for i in range(kaldi.num_frames_ready)])
    banks = FilterBanks(FeatureConfig(sample_rate=rate, mel_bins=bins))
    features, frames = banks(audio.unsqueeze(0), torch.tensor([len(audio)]))
    assert frames.tolist() == [len(expected)]
    assert np.abs(features[0].numpy() - expected).max() < 1e-3


@pytest.mark.parametrize("level", [1.0, 1e-3, 0.0])
def test_floor_is_that_of_kaldi_for_samples_in_16_bits(level: float) -> None:
    """It was Kaldi's number for samples in −1 … 1, 90 dB higher: WER went from 4 to 31 % at −50 dB."""
    audio = level * speech_like(16000)
    options = kaldi_native_fbank.FbankOptions()
    options.frame_opts.dither = 0.0
    options.mel_opts.num_bins = 80
    options.mel_opts.high_freq = -400.0
    kaldi = kaldi_native_fbank.OnlineFbank(options)
    kaldi.accept_waveform(16000, (2**15 * audio).tolist())
    expected = np.stack([kaldi.get_frame(i) for i in range(kaldi.num_frames_ready)]) - 30 * np.log(2)
    features, _ = FilterBanks(FeatureConfig())(audio.unsqueeze(0), torch.tensor([len(audio)]))
    assert np.abs(features[0].numpy() - expected).max() < 1e-3


@pytest.mark.parametrize("kind", ["utterance", "window"])
@pytest.mark.parametrize("sound", ["speech", "narrow band"])
def test_level_of_a_recording_has_no_effect(sound: str, kind: str) -> None:
    """With the higher floor, a recording at −50 dB lost its quieter bins."""
    audio = odd_sounds(2.0)[sound] if sound == "narrow band" else speech_like(32000)
    features, frames = FilterBanks(FeatureConfig())(
        torch.stack([audio, 10**-2.5 * audio]), torch.tensor([len(audio)] * 2)
    )
    loud, quiet = Normalisation(kind, 80)(features, frames)
    assert (loud - quiet).abs().max() < 1e-2
    assert loud.abs().max() > 1


@pytest.mark.parametrize("kind", ["utterance", "window"])
def test_bins_without_sound_are_zero(kind: str) -> None:
    """Leaks of the window above 4 kHz were scaled up to the level of speech: WER went from 42 to 84 %."""
    audio = odd_sounds(2.0)["narrow band"]
    features, frames = FilterBanks(FeatureConfig())(audio.unsqueeze(0), torch.tensor([len(audio)]))
    normal = Normalisation(kind, 80)(features, frames)[0]
    assert not normal[:, 68:].any()
    assert normal[:, :58].any(dim=0).all()


def test_digital_silence_leaves_the_deviations_of_speech() -> None:
    """At the floor of the energies, a second of zeros beside five of speech divided deviations by five."""
    banks, normalise = FilterBanks(FeatureConfig()), Normalisation("utterance", 80)
    samples, silence = speech_like(5 * 16000)[None], torch.zeros(1, 16000)
    deviations = []
    for audio in (samples, torch.cat([samples, silence], dim=1)):
        features, frames = banks(audio, torch.tensor([audio.shape[1]]))
        deviations.append(normalise(features, frames)[:, :490].std())
    assert deviations[1] > 0.3 * deviations[0]


def test_stored_options_without_a_floor_keep_the_former_one() -> None:
    """A checkpoint of a model that was trained with it would otherwise get features that it never saw."""
    assert from_dict(FeatureConfig, {"mel_bins": 40}, "run").floor == 2.0**-23
    assert from_dict(FeatureConfig, to_dict(FeatureConfig()), "run").floor == 2.0**-53
    assert train_options_from({"features": {"mel_bins": 40}}, "run").features.floor == 2.0**-23


@pytest.mark.parametrize(("rate", "window_ms"), [(24000, 9.0), (48000, 9.0), (24000, 36.0)])
def test_windows_that_are_not_exact_in_floating_point(rate: int, window_ms: float) -> None:
    """9 ms at 24 kHz are 216 samples, or 215 as lhotse rounds them."""
    banks = FilterBanks(FeatureConfig(sample_rate=rate, frame_length_ms=window_ms))
    features, frames = banks(torch.randn(1, rate), torch.tensor([rate]))
    assert features.shape[1] == int(frames)


def test_features_do_not_depend_on_padding_or_the_batch() -> None:
    banks = FilterBanks(FeatureConfig(mel_bins=40))
    lengths = torch.tensor([16000, 399, 400, 5003, 0])
    batch = torch.full((5, 17000), 1e4)
    batch[1, 399:] = float("nan")
    for row, length in zip(batch, lengths.tolist(), strict=True):
        row[:length] = speech_like(length)
    features, frames = banks(batch, lengths)
    assert frames.tolist() == [98, 0, 1, 29, 0]
    assert features.isfinite().all()
    for i, length in enumerate(lengths.tolist()):
        alone, count = banks(batch[i : i + 1, : max(length, 1)], lengths[i : i + 1])
        assert torch.allclose(features[i, : frames[i]], alone[0, : count[0]], atol=1e-4)
        assert not features[i, frames[i] :].any()


def test_blocks_of_frames_equal_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    banks = FilterBanks(FeatureConfig(mel_bins=40))
    audio = torch.stack([speech_like(20000, seed) for seed in range(2)])
    lengths = torch.tensor([20000, 9000])
    whole, frames = banks(audio, lengths)
    for block in (1, 7, int(frames[0]) - 1, int(frames[0])):
        monkeypatch.setattr("asr.model.features.BLOCK_FRAMES", block * len(audio))
        blocked, counts = banks(audio, lengths)
        assert counts.equal(frames)
        assert torch.allclose(blocked, whole, atol=1e-5)


def test_window_normalisation_equals_utterance_normalisation_of_each_window() -> None:
    random = torch.Generator().manual_seed(0)
    features = torch.randn(3, 50, 20, generator=random) * 3 + 5
    lengths = torch.tensor([50, 11, 0])
    features[1, 11:] = float("nan")
    features[2] = float("nan")
    for window in (4, 11, 49):
        normal = Normalisation("window", 20, window)(features, lengths)
        for i, length in enumerate(lengths.tolist()):
            size = min(window, length)
            for t in range(length):
                start = min(max(0, t - window // 2), length - size)
                around = features[i : i + 1, start : start + size]
                expected = Normalisation("utterance", 20)(around, torch.tensor([size]))[0, t - start]
                assert torch.allclose(normal[i, t], expected, atol=1e-4)
            assert not normal[i, length:].any()
    whole = Normalisation("utterance", 20)(features.nan_to_num(), lengths)
    assert torch.allclose(Normalisation("window", 20, 50)(features, lengths), whole, atol=1e-4)


def test_features_stay_float32_under_autocast() -> None:
    banks = FilterBanks(FeatureConfig(mel_bins=40))
    audio = speech_like(8000).unsqueeze(0)
    plain, _ = banks(audio, torch.tensor([8000]))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed, _ = banks(audio, torch.tensor([8000]))
    assert torch.equal(plain, mixed)


def test_utterance_normalisation_ignores_padding() -> None:
    features = torch.randn(2, 50, 4) * 3 + 5
    features[1, 20:] = 0
    lengths = torch.tensor([50, 20])
    normal = Normalisation("utterance", 4)(features, lengths)
    for i, length in enumerate(lengths.tolist()):
        valid = normal[i, :length]
        assert valid.mean(0).abs().max() < 1e-5
        assert (valid.std(0, unbiased=False) - 1).abs().max() < 1e-4
    assert not normal[1, 20:].any()


@pytest.mark.parametrize("kind", ["utterance", "window"])
@pytest.mark.parametrize("sound", list(odd_sounds(0.1)))
def test_bins_without_sound_are_normalised_alike_alone_in_a_batch_and_in_float64(sound, kind) -> None:
    """Their rounding noise was divided by its own deviation: log-probabilities differed by up to 5.7 nats."""
    banks = FilterBanks(FeatureConfig())
    for seconds in (0.5, 11.5, 31.0):
        audio = odd_sounds(seconds)[sound]
        batch = torch.zeros(2, 16000 * 47)
        batch[0, : len(audio)], batch[1] = audio, speech_like(16000 * 47)
        features, frames = banks(batch, torch.tensor([len(audio), 16000 * 47]))
        own = features[:1, : frames[0]]
        normalisation = Normalisation(kind, 80, 500)
        alone = normalisation(own, frames[:1])[0]
        together = normalisation(features, frames)[0, : frames[0]]
        exact = normalisation(own.double(), frames[:1])[0]
        assert (alone - together).abs().max() < 1e-4
        assert (alone - exact).abs().max() < 1e-4


def test_corpus_normalisation_uses_the_statistics_of_all_valid_frames() -> None:
    random = torch.Generator().manual_seed(0)
    batches = [(torch.randn(3, 30, 4, generator=random) * 2 + 7, torch.tensor([30, 10, 0])) for _ in range(4)]
    statistics = CorpusStatistics(4)
    for features, lengths in batches:
        statistics.update(features, lengths)
    normalisation = Normalisation("corpus", 4)
    statistics.store(normalisation)
    valid = torch.cat([x[i, :n] for x, lengths in batches for i, n in enumerate(lengths.tolist())])
    assert torch.allclose(normalisation.mean, valid.mean(0), atol=1e-5)
    assert torch.allclose(normalisation.std, valid.std(0, unbiased=False), atol=1e-5)


@pytest.mark.parametrize("kind", ["corpus", "none"])
def test_a_frame_without_the_rest_of_the_utterance_is_the_same(kind: str) -> None:
    """`corpus` had the range of the utterance, so that nothing could be recognised before its end."""
    random = torch.Generator().manual_seed(0)
    features = 30 * torch.randn(1, 40, 4, generator=random)  # more than the range
    normalisation = Normalisation(kind, 4)
    normalisation.mean.copy_(torch.tensor([-3.0, 0.0, 1.0, 5.0]))
    assert normalisation.framewise
    assert not Normalisation("utterance", 4).framewise
    whole = normalisation(features, torch.tensor([40]))
    each = [normalisation(features[:, t : t + 1], torch.tensor([1])) for t in range(40)]
    assert torch.equal(whole, torch.cat(each, dim=1))
    if kind == "corpus":
        assert torch.equal(whole.amin(dim=(0, 1)), 5 - RANGE - normalisation.mean)


@pytest.mark.parametrize(
    "change", [{"low_freq_hz": 8000.0}, {"high_freq_hz": 8001.0}, {"high_freq_hz": -8000.0}]
)
def test_filters_lie_between_zero_and_the_nyquist_frequency(change: dict[str, float]) -> None:
    with pytest.raises(UserError, match="half of the sample rate"):
        FeatureConfig(**change).check()


@pytest.mark.parametrize(("rate", "bins", "empty"), [(8000, 128, 6), (8000, 80, 0), (16000, 80, 0)])
def test_empty_filters_are_said(rate: int, bins: int, empty: int, caplog: pytest.LogCaptureFixture) -> None:
    """Filters that no spectral line falls into were trained with in silence."""
    FilterBanks(FeatureConfig(sample_rate=rate, mel_bins=bins))
    expected = f"mel_bins=128: {empty} filters lie between the spectral lines at 8000 Hz, always empty"
    assert caplog.messages == ([f"features.{expected}"] if empty else [])
