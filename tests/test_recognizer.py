from pathlib import Path

import pytest
import soundfile
import torch

from asr import Recognizer
from asr.errors import UserError
from asr.model import checkpoint


def test_transcribes_the_tones(trained: Path, tone_corpus: Path) -> None:
    from asr.data.manifest import load_cuts

    recognizer = Recognizer.load(trained)
    for cut in load_cuts(tone_corpus / "test.cuts.jsonl.gz"):
        transcript = recognizer.transcribe(cut.recording.sources[0].source)
        assert transcript.text == cut.supervisions[0].text
        assert transcript.times_s == sorted(transcript.times_s)
        assert transcript.times_s[-1] < transcript.duration_s == pytest.approx(cut.duration)
        assert transcript.words is not None
        assert [word for word, _ in transcript.words] == transcript.text.split()
        assert len(transcript.tokens) == len(transcript.confidence) == len(transcript.times_s)
        assert transcript.text == recognizer.transcribe(cut.recording.sources[0].source, decoder="beam").text


def test_the_same_audio_in_other_containers_reads_the_same(
    trained: Path, tone_corpus: Path, tmp_path: Path
) -> None:
    recognizer = Recognizer.load(trained)
    wav = tone_corpus / "wav" / "test-3.wav"
    audio, rate = soundfile.read(wav)
    expected = recognizer.transcribe(wav).text
    for suffix, form in (("flac", "FLAC"), ("ogg", "OGG"), ("mp3", "MP3"), ("sph", "NIST")):
        path = tmp_path / f"test.{suffix}"
        soundfile.write(path, audio, rate, format=form)
        assert recognizer.transcribe(path).text == expected


def test_attention_is_exchanged_and_stays_with_the_weights(trained: Path, tone_corpus: Path) -> None:
    recognizer = Recognizer.load(trained)
    audio, _ = soundfile.read(tone_corpus / "wav" / "test-0.wav", dtype="float32")
    batch = torch.from_numpy(audio).unsqueeze(0), torch.tensor([len(audio)])
    with torch.no_grad():
        full, _ = recognizer.model(*batch)
        recognizer.set_attention("i-clustered-1000")
        assert recognizer.model.config.attention == "i-clustered-1000"
        same, _ = recognizer.model(*batch)
        recognizer.set_attention("clustered-2")
        other, _ = recognizer.model(*batch)
    assert torch.allclose(full, same, atol=1e-5)
    assert not torch.allclose(full, other, atol=1e-3)
    with pytest.raises(UserError, match="cast"):
        recognizer.set_attention("cast-4")


def test_state_comes_back_from_a_file(trained: Path) -> None:
    state = checkpoint.load(checkpoint.find(trained, "last"))["model"]
    recognizer = Recognizer.from_state(state, "last")
    assert not recognizer.model.training
    assert all(torch.equal(state["weights"][name], x) for name, x in recognizer.model.state_dict().items())
    assert recognizer.tokenizer.state() == state["tokenizer"]


def test_weights_of_another_size_are_refused(trained: Path) -> None:
    state = checkpoint.load(checkpoint.find(trained))["model"]
    state["config"]["model"]["feedforward"] *= 2
    with pytest.raises(UserError, match=r"x\.ckpt: weights don't fit the model"):
        Recognizer.from_state(state, "x.ckpt")


def test_averaging_takes_the_mean(trained: Path, tmp_path: Path) -> None:
    source = checkpoint.find(trained, "last")
    state = checkpoint.load(source)
    for factor in (1.0, 3.0):
        weights = {
            name: x * factor if x.is_floating_point() else x for name, x in state["model"]["weights"].items()
        }
        changed = {"format": checkpoint.FORMAT, "model": {**state["model"], "weights": weights}}
        checkpoint.save(changed, tmp_path / f"{factor}.ckpt")
    mean = checkpoint.average([tmp_path / "1.0.ckpt", tmp_path / "3.0.ckpt"])["model"]["weights"]
    for name, x in state["model"]["weights"].items():
        assert torch.allclose(mean[name], 2 * x if x.is_floating_point() else x)


def test_find_prefers_average_then_best_then_last(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    expected = "last"
    for name in ("last", checkpoint.best_name(0.31, 900), checkpoint.best_name(0.092, 1000), "average"):
        (folder / f"{name}.ckpt").touch()
        expected = name
        assert checkpoint.find(tmp_path).stem == expected
    assert checkpoint.find(tmp_path, "best").stem == checkpoint.best_name(0.092, 1000)
    assert checkpoint.find(tmp_path, "last.ckpt").stem == "last"
    with pytest.raises(UserError, match="no checkpoint 'newest' \\(found: average, best-"):
        checkpoint.find(tmp_path, "newest")


def test_encoder_frames_agree_with_the_model(trained: Path) -> None:
    recognizer = Recognizer.load(trained)
    for samples in (399, 400, 719, 720, 8000, 12345):
        with torch.no_grad():
            _, frames = recognizer.model(torch.zeros(1, samples), torch.tensor([samples]))
        assert recognizer.model.encoder_frames(samples / 16000) == int(frames)


def test_transcribing_leaves_the_model_in_its_mode(trained: Path, tone_corpus: Path) -> None:
    """A model in training mode was in evaluation mode afterwards."""
    recognizer = Recognizer.load(trained)
    wav = tone_corpus / "wav" / "test-0.wav"
    expected = recognizer.transcribe(wav)
    recognizer.model.train()
    assert recognizer.transcribe(wav) == expected
    assert recognizer.model.training
    recognizer.model.eval()
    recognizer.transcribe(wav, mode="chunked")
    assert not recognizer.model.training
