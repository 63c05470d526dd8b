"""Joined utterances depend on seed and epoch alone, lose nothing and keep texts in order."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from speech_data import speech_data

from asr import Recognizer
from asr.cli import main
from asr.data.concatenate import PAUSE_S, Concatenation, join
from asr.data.module import SpeechData
from asr.data.sampler import Cursor

DURATIONS_S = np.random.default_rng(0).uniform(1, 8, 500)


def test_every_utterance_occurs_once_per_epoch_and_groups_stay_within_the_limit() -> None:
    joined = Concatenation(DURATIONS_S, 20.0, seed=3)
    for epoch in range(3):
        groups = joined.groups(epoch)
        assert sorted(i for group in groups for i in group) == list(range(500))
        assert max(joined.durations(epoch)) <= 20.0
        sizes = [len(group) for group in groups]
        assert min(sizes) == 1
        assert max(sizes) >= 4


def test_groups_depend_on_seed_and_epoch_alone() -> None:
    first = Concatenation(DURATIONS_S, 20.0, seed=3).groups(5)
    again = Concatenation(DURATIONS_S, 20.0, seed=3)
    again.groups(1)
    assert again.groups(5) == first
    assert again.groups(6) != first
    assert Concatenation(DURATIONS_S, 20.0, seed=4).groups(5) != first


def test_groups_grow_from_single_utterances_to_the_limit() -> None:
    joined = Concatenation(DURATIONS_S, 40.0, seed=3, growth_epochs=4)
    assert joined.groups(0) != joined.groups(1)
    assert all(len(group) == 1 for group in joined.groups(0))
    longest = [joined.durations(epoch).max() for epoch in range(6)]
    means = [joined.durations(epoch).mean() for epoch in range(6)]
    assert all(longest[epoch] <= 10.0 * epoch for epoch in range(1, 5))
    assert all(a < b for a, b in itertools.pairwise(means[:5]))
    full = Concatenation(DURATIONS_S, 40.0, seed=3)
    assert [joined.groups(epoch) == full.groups(epoch) for epoch in range(6)] == [False] * 4 + [True] * 2


def test_an_utterance_longer_than_the_limit_stays_alone() -> None:
    assert Concatenation([30.0, 30.0], 20.0, seed=0).groups(0) in ([(0,), (1,)], [(1,), (0,)])


def test_durations_are_those_of_the_groups_with_the_longest_pauses() -> None:
    joined = Concatenation(DURATIONS_S, 20.0, seed=3)
    expected = [sum(DURATIONS_S[i] for i in group) + 1.2 * (len(group) - 1) for group in joined.groups(2)]
    assert max(map(len, joined.groups(2))) > 2
    np.testing.assert_allclose(joined.durations(2), expected, rtol=1e-12)


def test_pauses_are_quiet_and_speech_is_unchanged() -> None:
    parts = [np.full(1000, 0.5, dtype=np.float32), np.full(700, -0.5, dtype=np.float32)]
    audio = join(parts, 8000, seed=0, epoch=1, group=(4, 2))
    assert audio.dtype == np.float32
    assert (audio[:1000] == 0.5).all()
    assert (audio[-700:] == -0.5).all()
    pause = audio[1000:-700]
    assert PAUSE_S[0] <= len(pause) / 8000 <= PAUSE_S[1]
    assert 1e-4 < pause.std() / 0.5 < 1e-2
    assert (audio == join(parts, 8000, seed=0, epoch=1, group=(4, 2))).all()
    assert len(audio) != len(join(parts, 8000, seed=0, epoch=2, group=(4, 2)))


@pytest.mark.parametrize("scale", [2.0**-10, 2.0**15])
def test_pauses_are_as_far_below_quiet_and_loud_speech(scale: float) -> None:
    """Pauses had −100 … −60 dB of full scale: as loud as speech at −60 dB, and digital zeros beside samples
    in the range of 16-bit integers.
    """
    parts = [np.full(1000, 0.5, dtype=np.float32), np.full(700, -0.5, dtype=np.float32)]
    audio = join(parts, 8000, seed=0, epoch=1, group=(4, 2))
    scaled = join([part * np.float32(scale) for part in parts], 8000, seed=0, epoch=1, group=(4, 2))
    np.testing.assert_allclose(scaled, scale * audio, rtol=1e-6)


@pytest.fixture
def speech(recognizer: Recognizer, tone_corpus: Path) -> SpeechData:
    return speech_data(tone_corpus, recognizer, (0.9, 1.1), concatenate_s=5.0)


def test_batches_have_joined_texts_and_resume_after_an_interruption(speech: SpeechData) -> None:
    texts = {cut.id: cut.supervisions[0].text or "" for cut in speech.train_cuts}
    speech.batches = 2 * speech.epoch_batches(0)
    whole = list(speech.train_dataloader())
    seen = []
    for batch in whole:
        for i, names in enumerate(batch.ids):
            tokens = batch.tokens[i, : batch.token_lengths[i]].tolist()
            text = " ".join(texts[name] for name in names.split("+"))
            assert tokens == speech.tokenizer.encode(text)
        if batch.plan.epoch == 0:
            seen += [name for names in batch.ids for name in names.split("+")]
    assert sorted(seen) == sorted(texts)
    assert max(int(batch.audio_lengths.max()) for batch in whole) <= 5 * 16000
    assert any("+" in name for batch in whole for name in batch.ids)
    reached = whole[len(whole) // 2].plan
    speech.cursor = Cursor(reached.epoch, reached.position, len(whole) // 2)
    for resumed, batch in zip(speech.train_dataloader(), whole[len(whole) // 2 :], strict=True):
        assert resumed.ids == batch.ids
        assert resumed.audio.equal(batch.audio)


def test_longest_training_audio_is_the_limit(speech: SpeechData) -> None:
    assert speech.longest_s == 5.0
    assert "joined up to 5 s" in speech.describe()
    assert int(speech.worst_batch().audio_lengths.max()) > 3 * 16000


def test_the_worst_batch_is_that_of_the_full_length(tone_corpus: Path, recognizer: Recognizer) -> None:
    """Memory is tried before training: the single utterances of the first epoch would tell nothing."""
    grown = speech_data(tone_corpus, recognizer, concatenate_s=5.0, concatenate_epochs=3)
    assert all("+" in name for name in grown.worst_batch().ids)
    assert grown.train_frames(0).max() < 300 < grown.train_frames(3).max()
    assert "joined up to 5 s from epoch 3 on" in grown.describe()


def test_growth_that_has_no_effect_or_no_end_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "recipe=demo", "data.concatenate_epochs=3"]) == 1
    assert "concatenate_epochs" in capsys.readouterr().err
    growth = ["data.concatenate_s=30", "data.concatenate_epochs=3", "trainer.max_steps=0", "trainer.budget="]
    assert main(["train", "recipe=demo", *growth, "trainer.max_epochs=3"]) == 1
    expected = "data.concatenate_epochs=3: expected less than trainer.max_epochs=3"
    assert expected in capsys.readouterr().err
