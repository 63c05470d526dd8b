"""Certainty of a recording: what it weighs, and what it says of audio unlike the training data."""

import math
import shutil
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from asr_recipes.prompts.confidence import learn_usual, store
from tone_corpora import PITCH_HZ

from asr import Recognizer, checkpoint
from asr.confidence import (
    PIECE_LABELS,
    UNKNOWN_LIMIT,
    Evidence,
    UsualCertainty,
    certainty,
    usual_certainty,
    usual_limit,
    weigh,
)
from asr.ctc import ctc_loss
from asr.data.manifest import load_cuts
from asr.data.recording import Samples
from asr.export import write_portable
from asr.label_model import estimate_label_model
from asr.search.greedy import greedy_search
from asr.transcript import PAUSE_S

NOTHING = UsualCertainty()
RATE = 16000


def certain(probs_TV: torch.Tensor) -> float:
    return certainty(weigh(probs_TV.log(), frame_s=0.02), NOTHING)


def test_silence_weighs_nothing_and_doubt_between_labels_counts() -> None:
    sure = torch.tensor([[0.02, 0.98, 0.0], [1.0, 0.0, 0.0]] * 3)
    silence = torch.tensor([[1.0, 0.0, 0.0]] * 50)
    doubt = torch.tensor([[0.0, 0.51, 0.49], [1.0, 0.0, 0.0]] * 3)
    assert certain(sure) == pytest.approx(0.98)
    assert certain(torch.cat([silence, sure, silence])) == pytest.approx(0.98)
    assert certain(doubt) == pytest.approx(0.51)
    assert certain(torch.cat([sure, doubt])) == pytest.approx(math.sqrt(0.98 * 0.51))
    assert certain(silence) == 0.0


def test_doubt_about_the_time_of_a_label_is_none_about_the_label() -> None:
    when = torch.tensor([[0.45, 0.55], [0.45, 0.55], [0.999, 0.001]])
    assert certain(when) == pytest.approx(1 - 0.45**2 * 0.999 - 0.55 * 0.45 * 0.001, abs=0.01)


def test_a_long_recording_is_weighed_in_pieces_as_it_is_in_one() -> None:
    torch.manual_seed(0)
    log_probs_TV = (4 * torch.randn(3 * PIECE_LABELS, 5)).log_softmax(dim=-1)
    (path,) = greedy_search(log_probs_TV[None], torch.tensor([len(log_probs_TV)]))
    assert len(path.ids) > PIECE_LABELS
    frames, labels = torch.tensor([len(log_probs_TV)]), torch.tensor([len(path.ids)])
    whole = -float(ctc_loss(log_probs_TV[None], frames, torch.tensor([path.ids]), labels))
    evidence = weigh(log_probs_TV, 0.02)
    assert evidence.labels == len(path.ids)
    assert evidence.acoustic == pytest.approx(whole, rel=0.01)
    assert evidence.acoustic <= whole + 1e-3  # alignments over a cut are left out


def test_labels_begin_anew_after_a_pause() -> None:
    model = estimate_label_model([[1, 2]] * 20, 3)
    labels = torch.eye(3)[[1, 2, 0, 1, 2]].clamp(min=1e-6).log()
    pause = torch.eye(3)[[1, 2, *[0] * round(PAUSE_S / 0.02), 1, 2]].clamp(min=1e-6).log()
    once = weigh(labels[:2], 0.02, model).sequence
    assert weigh(pause, 0.02, model).sequence == pytest.approx(2 * once)
    assert weigh(labels, 0.02, model).sequence < 2 * once - 1


def test_the_usual_limit_leaves_out_one_in_twenty_at_every_length() -> None:
    random = np.random.default_rng(0)

    def made(count: int) -> list[Evidence]:
        lengths = random.integers(3, 60, count)
        return [Evidence(int(n), -float(random.exponential(0.3, n).sum()), 0.0) for n in lengths]

    usual = usual_certainty(made(2000))
    fresh = made(2000)
    for low, high in ((3, 10), (10, 30), (30, 60)):
        own = [x for x in fresh if low <= x.labels < high]
        marked = np.mean([certainty(x, usual) < usual_limit(x, usual) for x in own])
        assert 0.005 < marked < 0.1
    few, many, more = (usual_limit(Evidence(n, 0.0, 0.0), usual) for n in (4, 100, 4000))
    assert few < many == more  # long recordings aren't expected to be all alike


def test_the_order_of_labels_counts_as_much_as_it_varies() -> None:
    random = np.random.default_rng(0)
    known = [Evidence(10, -random.normal(3, 1), -random.normal(20, 4)) for _ in range(500)]
    usual = usual_certainty(known)
    assert usual.sequence_weight == pytest.approx(0.25, rel=0.1)
    assert usual.sequence_mean == pytest.approx(-2, rel=0.02)
    likely, unlikely = Evidence(10, -3, -20), Evidence(10, -3, -40)
    assert certainty(likely, usual) > usual_limit(likely, usual)
    assert certainty(unlikely, usual) < usual_limit(unlikely, usual)
    assert certainty(unlikely, NOTHING) == certainty(likely, NOTHING)


def test_a_development_set_without_labels_teaches_nothing() -> None:
    for evidences in ([], [Evidence(0, 0.0, 0.0)]):
        assert usual_certainty(evidences) == NOTHING
    assert usual_limit(Evidence(5, -1.0, 0.0), NOTHING) == UNKNOWN_LIMIT
    alone = usual_certainty([Evidence(5, -1.0, -9.0)])
    assert (alone.spread, alone.sequence_weight) == (0.0, 0.0)


def foreign(random: np.random.Generator) -> Samples:
    """Speak the corpus's phones as clearly as it does, in an order that it never has."""
    words = [("T", "S", "B"), ("IY", "AA"), ("K", "S"), ("T", "B", "K"), ("AA", "IY", "S")]
    parts = []
    for i in random.permutation(len(words))[:4]:
        for phone in words[i]:
            time_s = np.arange(int(random.uniform(0.06, 0.1) * RATE)) / RATE
            parts.append(0.3 * np.sin(2 * np.pi * PITCH_HZ[phone] * time_s))
        parts.append(np.zeros(int(0.03 * RATE)))
    samples = np.concatenate(parts)
    return (samples + 0.003 * random.standard_normal(len(samples))).astype(np.float32)


def test_known_words_are_usual_noise_is_not(
    trained: Path, tone_corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recognizer = Recognizer.load(trained)
    assert recognizer.config.usual.labels > 3
    for cut in load_cuts(tone_corpus / "test.cuts.jsonl.gz"):
        transcript = recognizer.transcribe(cut.recording.sources[0].source)
        assert transcript.certainty > transcript.usual_certainty - 0.1
    noise = tmp_path / "noise.wav"
    soundfile.write(noise, 0.1 * np.random.default_rng(0).standard_normal(48000), RATE)
    caplog.clear()
    transcript = recognizer.transcribe(noise)
    assert transcript.low_confidence
    assert transcript.certainty < transcript.usual_certainty
    assert "noise.wav: low confidence" in caplog.text
    caplog.clear()
    assert not recognizer.transcribe(noise, min_confidence=0.0).low_confidence
    assert not caplog.text


def test_another_language_is_marked_though_its_sounds_are_clear(trained: Path, tmp_path: Path) -> None:
    """Half of the French and Spanish prompts passed for English when certainty was that of sounds alone."""
    random = np.random.default_rng(1)
    recognizer = Recognizer.load(trained)
    usual = recognizer.config.usual
    for i in range(6):
        file = tmp_path / f"{i}.wav"
        soundfile.write(file, foreign(random), RATE)
        transcript = recognizer.transcribe(file)
        assert transcript.low_confidence
        assert any(segment.low_confidence for segment in transcript.segments)
    with torch.inference_mode():
        samples = torch.from_numpy(foreign(random))[None]
        log_probs, _ = recognizer(samples, torch.tensor([samples.shape[1]]))
    evidence = weigh(log_probs[0], recognizer.frame_s, recognizer.label_model)
    sounds = Evidence(evidence.labels, evidence.acoustic, evidence.labels * usual.sequence_mean)
    assert math.exp(sounds.acoustic / sounds.labels) > 0.9
    assert evidence.sequence < sounds.sequence - evidence.labels
    assert certainty(evidence, usual) < certainty(sounds, usual)


def test_what_is_usual_travels_with_exported_models(trained: Path, tmp_path: Path) -> None:
    recognizer = Recognizer.load(trained)
    write_portable(recognizer.state(), tmp_path / "model")
    exported = Recognizer.load(tmp_path / "model")
    assert exported.config.usual == recognizer.config.usual
    assert recognizer.label_model is not None
    assert exported.label_model is not None
    assert torch.equal(exported.label_model, recognizer.label_model)


def test_an_earlier_checkpoint_has_a_fixed_limit_until_it_learns_its_own(
    trained: Path, tone_corpus: Path, tmp_path: Path
) -> None:
    """Checkpoints had one number, `usual_certainty`, or nothing, and no label model."""
    shutil.copytree(trained, tmp_path / "run")
    today = Recognizer.load(trained)
    file = checkpoint.find(tmp_path / "run")
    content = checkpoint.load(file)
    del content["recognizer"]["config"]["usual"], content["recognizer"]["weights"]["label_model"]
    content["recognizer"]["config"]["usual_certainty"] = 0.9
    checkpoint.save(content, file)
    earlier = Recognizer.load(file)
    transcript = earlier.transcribe(tone_corpus / "wav" / "test-0.wav")
    assert transcript.usual_certainty == UNKNOWN_LIMIT
    assert not transcript.low_confidence
    learn_usual(earlier, str(tone_corpus))
    store(earlier)
    learnt = Recognizer.load(file)
    assert asdict(learnt.config.usual) == pytest.approx(asdict(today.config.usual), rel=1e-2)
    assert learnt.label_model is not None
    assert today.label_model is not None
    assert torch.equal(learnt.label_model, today.label_model)
