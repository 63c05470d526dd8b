"""The recogniser: transcription, exchangeable attention, saved state."""

import io
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

import asr.attention.backend
import attention_ext
from asr import Recognizer
from asr.attention.table import given_name, parse_name
from asr.cli import main
from asr.data.manifest import read_cuts
from asr.errors import UserError
from asr.model import checkpoint
from asr.model.acoustic_model import AcousticModel, AcousticModelConfig
from asr.model.options import FeatureConfig, ModelConfig
from asr.model.portable import write_portable
from asr.search.decoders.beam import Beam
from asr.search.forced_alignment import force_align
from asr.text.tokenizer import CharacterTokenizer


def test_transcribes_the_tones(trained: Path, tone_corpus: Path) -> None:
    recognizer = Recognizer.load(trained)
    for cut in read_cuts(tone_corpus / "test.cuts.jsonl.gz"):
        transcript = recognizer.transcribe(cut.recording.sources[0].source)
        assert transcript.text == cut.supervisions[0].text
        assert transcript.times_s == sorted(transcript.times_s)
        assert transcript.times_s[-1] < transcript.duration_s == pytest.approx(cut.duration)
        assert transcript.words is not None
        assert [word for word, _ in transcript.words] == transcript.text.split()
        assert len(transcript.tokens) == len(transcript.confidence) == len(transcript.times_s)
        assert transcript.text == recognizer.transcribe(cut.recording.sources[0].source, decoder="beam").text


def test_the_transcript_does_not_depend_on_the_container(
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


def test_frames_are_exchanged_when_loading_decoding_and_later(
    trained: Path, tone_corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Texts come from another computation, with as many labels' frames; folders name the schedule."""
    layers = len(Recognizer.load(trained).model.attention_layers())
    recognizer = Recognizer.load(trained, frames=f"2*{layers}")
    assert recognizer.model.config.model.frames == "2"
    audio = tone_corpus / "wav" / "test-0.wav"
    halved = recognizer.transcribe(audio)
    recognizer.set_frames("1")
    assert recognizer.transcribe(audio).confidence != halved.confidence
    assert recognizer.transcribe(audio).confidence == Recognizer.load(trained).transcribe(audio).confidence
    assert main(["transcribe", str(trained), str(audio), "frames=2"]) == 0
    assert halved.text in capsys.readouterr().out
    assert main(["decode", str(trained), "frames=2", f"data={tone_corpus}", "device=cpu"]) == 0
    assert "frames-2-greedy" in capsys.readouterr().out
    joined = "merge-0.4:cap=2,at=1"
    recognizer.set_frames(joined)
    text = recognizer.transcribe(audio).text
    assert main(["transcribe", str(trained), str(audio), f"frames={joined}"]) == 0
    assert text in capsys.readouterr().out
    for command in ("decode", "align"):
        assert main([command, str(trained), f"data={tone_corpus}", f"frames={joined}", "device=cpu"]) == 0
    for command in (["transcribe", str(trained), str(audio)], ["export", str(trained), "format=safetensors"]):
        assert main([*command, f"frames=1*{layers + 1}"]) == 1
        error = capsys.readouterr().err
        assert f"expected factors for {layers} layers, found {layers + 1}" in error
        assert error.count("\n") == 1


def test_set_attention_changes_the_mechanism_and_keeps_the_weights(trained: Path, tone_corpus: Path) -> None:
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


@pytest.mark.parametrize("attention", ["full", "local-8", "clustered-4", "i-clustered-4", "near-4"])
def test_a_model_trained_in_float32_is_used_in_bfloat16(
    attention: str, trained: Path, tone_corpus: Path
) -> None:
    """With its own mechanism, and with another one in its place."""
    audio, _ = soundfile.read(tone_corpus / "wav" / "test-0.wav", dtype="float32")
    batch = torch.from_numpy(audio).unsqueeze(0), torch.tensor([len(audio)])
    with torch.no_grad():
        recognizers = Recognizer.load(trained), Recognizer.load(trained, precision="bf16")
        for recognizer in recognizers:
            recognizer.set_attention(attention)
        exact, rounded = (recognizer.model(*batch)[0] for recognizer in recognizers)
    assert rounded.dtype == torch.float32
    assert not torch.equal(exact, rounded)
    assert (exact.exp() - rounded.exp()).abs().max() < 0.05
    assert torch.equal(exact.argmax(-1), rounded.argmax(-1))


def test_a_recognizer_is_restored_from_a_checkpoint(trained: Path) -> None:
    state = checkpoint.load(checkpoint.find(trained, "last"))["model"]
    recognizer = Recognizer.from_state(state, "last")
    assert not recognizer.model.training
    assert all(torch.equal(state["weights"][name], x) for name, x in recognizer.model.state_dict().items())
    assert recognizer.tokenizer.state() == state["tokenizer"]


def test_a_single_model_has_no_choice_of_checkpoints(trained: Path, tmp_path: Path) -> None:
    """`checkpoint=best` with an exported model, or `last.ckpt`, was ignored."""
    write_portable(Recognizer.load(trained).state(), tmp_path)
    for path in (tmp_path, checkpoint.find(trained, "last")):
        Recognizer.load(path)
        with pytest.raises(UserError, match=r"checkpoint=best: has no effect with .*, which is one model"):
            Recognizer.load(path, checkpoint="best")


def test_weights_of_another_size_are_rejected(trained: Path) -> None:
    state = checkpoint.load(checkpoint.find(trained))["model"]
    state["config"]["model"]["feedforward"] *= 2
    with pytest.raises(UserError, match=r"x\.ckpt: weights don't fit the model"):
        Recognizer.from_state(state, "x.ckpt")


def test_a_model_of_an_earlier_version_loads_unless_it_needs_what_is_gone(trained: Path) -> None:
    state = checkpoint.load(checkpoint.find(trained))["model"]
    state["config"]["features"]["normalise_window_s"] = 10.0
    state["config"]["model"]["lora"]["alpha"] = 16
    assert not Recognizer.from_state(state, "x.ckpt").model.training
    state["config"]["features"]["normalise_window_s"] = 5.0
    with pytest.raises(UserError, match=r"x\.ckpt: normalise_window_s=5\.0: this version knows 10\.0 only"):
        Recognizer.from_state(state, "x.ckpt")


OWN = '''\
import torch

from asr.attention import OwnParameterLayer


class Scale(OwnParameterLayer):
    """The input times a number that is read when the layer is built."""

    source, time, memory = "a test", "N", "N"

    def __init__(self, name, backend, model_dim, heads, head_dim, dropout):
        super().__init__(name, backend)
        self.factor = float(torch.ones(()))

    def forward(self, x, lengths=None):
        return x * self.factor
'''


@pytest.mark.parametrize("name", ["none", "hyper", "full*1,none*8", "own"])
def test_layers_with_few_weights_can_be_loaded(name: str, tmp_path: Path) -> None:
    """A trained model without attention and with small feed-forward layers had too few weights."""
    if name == "own":
        (tmp_path / "scale.py").write_text(OWN)
        name = given_name(f"{tmp_path}/scale.py:Scale")
    sizes = ModelConfig(layers=9, heads=8, head_dim=8, feedforward=8)
    model = AcousticModel(AcousticModelConfig(name, model=sizes), 5)
    restored = AcousticModel.from_state(model.state(), 5, "x.ckpt").state_dict()
    assert all(x.equal(restored[key]) for key, x in model.state_dict().items())


def test_encoder_frames_agree_with_the_model(trained: Path) -> None:
    recognizer = Recognizer.load(trained)
    for samples in (399, 400, 719, 720, 8000, 12345):
        with torch.no_grad():
            _, frames = recognizer.model(torch.zeros(1, samples), torch.tensor([samples]))
        assert recognizer.model.encoder_frames(samples / 16000) == int(frames)


def test_transcribing_restores_the_models_mode(trained: Path, tone_corpus: Path) -> None:
    """Transcribing left a model that was in training mode in evaluation mode."""
    recognizer = Recognizer.load(trained)
    wav = tone_corpus / "wav" / "test-0.wav"
    expected = recognizer.transcribe(wav)
    recognizer.model.train()
    assert recognizer.transcribe(wav) == expected
    assert recognizer.model.training
    recognizer.model.eval()
    recognizer.transcribe(wav, mode="chunked")
    assert not recognizer.model.training


def test_recordings_come_as_paths_arrays_tensors_file_objects_and_lists(
    trained: Path, tone_corpus: Path
) -> None:
    recognizer = Recognizer.load(trained)
    wavs = [tone_corpus / "wav" / f"test-{i}.wav" for i in range(4)]
    expected = [recognizer.transcribe(wav) for wav in wavs]
    samples, rate = soundfile.read(wavs[0], dtype="int16")
    floats = (samples / 32768).astype(np.float32)
    for audio in (samples, floats, torch.from_numpy(floats).unsqueeze(0), floats.astype(np.float64)):
        assert recognizer.transcribe(audio, rate) == expected[0]
    with wavs[0].open("rb") as stream:
        assert recognizer.transcribe(stream) == expected[0]
    assert recognizer.transcribe(io.BytesIO(wavs[0].read_bytes())) == expected[0]
    together = recognizer.transcribe([str(wavs[0]), wavs[1], *wavs[2:]])
    assert [x.text for x in together] == [x.text for x in expected]
    assert [x.times_s for x in together] == [x.times_s for x in expected]
    assert recognizer.transcribe([]) == []


def test_audio_that_is_not_a_recording_is_named(trained: Path) -> None:
    recognizer = Recognizer.load(trained)
    for audio, rate, message in [
        (np.zeros(8000, np.float32), None, "recording: expected its sample_rate, found none"),
        (np.zeros((8000, 2), np.float32), 8000, "expected .*channels, samples.*found shape .8000, 2"),
        (np.zeros(8000, complex), 8000, "expected floats .* found complex128"),
        (np.full(8000, np.nan, np.float32), 8000, "recording: sample 0 is not finite"),
        (np.zeros(8000, np.float32), 10, "recording: expected a sample rate"),
        (7, None, "expected a path, an array or tensor with its rate, or a file object, found int"),
        ([np.ones(8000, np.float32), np.ones(1, np.float32)], 8000, "recording 2: 0.1 ms is shorter"),
        (io.BytesIO(b""), None, "recording: empty file"),
        (io.StringIO("RIFF"), None, "expected a file object opened in binary mode, found one in text mode"),
        (torch.zeros(8000).to_sparse(), 8000, "expected a dense tensor in memory, found torch.sparse_coo"),
    ]:
        with pytest.raises(UserError, match=message):
            recognizer.transcribe(audio, rate)


def test_options_are_those_of_decoding(trained: Path, tone_corpus: Path) -> None:
    """`beam={"size": 5}` and unknown options were raw errors of Python."""
    recognizer, audio = Recognizer.load(trained), tone_corpus / "wav" / "test-0.wav"
    found = recognizer.transcribe(audio, decoder="beam", beam={"size": 5})
    assert found.text == recognizer.transcribe(audio, decoder="beam", beam=Beam(size=5)).text
    for options, message in (
        ({"chunk": 5}, "^unknown option 'chunk'"),
        ({"mode": 5}, "^mode=5: expected text"),
        ({"chunk_s": "x"}, "^chunk_s=x: expected a number$"),
    ):
        with pytest.raises(UserError, match=message):
            recognizer.transcribe(audio, **options)


def test_arguments_of_other_types_are_named(trained: Path) -> None:
    """A torch.device was refused, and other types were raw errors of Python."""
    recognizer = Recognizer.load(trained, device=torch.device("cpu"))  # type: ignore[arg-type]
    assert repr(recognizer) == f"Recognizer({trained}: full, 0.0 M parameters)"
    recognizer.set_frames("2")
    assert repr(recognizer) == f"Recognizer({trained}: full frames=2, 0.0 M parameters)"
    for call, message in (
        (lambda: Recognizer.load(None), "^model: expected a path, found None$"),  # type: ignore[arg-type]
        (lambda: Recognizer.load(trained, attention=5), "^attention=5: expected text$"),  # type: ignore[arg-type]
        (lambda: recognizer.set_attention(["full"]), "^attention: expected the name of a mechanism"),  # type: ignore[arg-type]
        (lambda: recognizer.set_frames(2), "^frames=2: expected text"),  # type: ignore[arg-type]
    ):
        with pytest.raises(UserError, match=message):
            call()


@pytest.mark.parametrize("name", ["cast-4:heads=own,assign=single", "agglomerative-4:tie=false"])
def test_a_mechanism_named_in_another_way_can_be_loaded(name: str, tmp_path: Path) -> None:
    """A model trained with a default written out, or options in another order, could not be decoded."""
    sizes = ModelConfig(layers=1, heads=2, head_dim=8, feedforward=16, subsampling=2)
    tokenizer = CharacterTokenizer.train(["go on"])
    model = AcousticModel(AcousticModelConfig(name, model=sizes), len(tokenizer))
    write_portable(Recognizer(model, tokenizer).state(), tmp_path)
    loaded = Recognizer.load(tmp_path, backend="auto")
    loaded.set_attention(name)
    assert loaded.model.config.attention == loaded.model.attention == parse_name(name).name


@pytest.mark.parametrize("name", ["agglomerative-4:tie=true", "hyper:tie=true"])
def test_a_layer_with_tied_weights_can_be_exported(name: str, tmp_path: Path) -> None:
    """Export ended with a traceback, and left an earlier export in the folder without its config.json."""
    tokenizer = CharacterTokenizer.train(["go on"])
    sizes = ModelConfig(layers=1, heads=2, head_dim=8, feedforward=16)
    model = AcousticModel(AcousticModelConfig(name, model=sizes), len(tokenizer))
    write_portable(Recognizer(model, tokenizer).state(), tmp_path)
    loaded = Recognizer.load(tmp_path).model.state_dict()
    assert all(x.equal(loaded[key]) for key, x in model.state_dict().items())


def test_a_model_trained_with_the_kernels_loads_where_they_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No option made it load."""
    tokenizer = CharacterTokenizer.train(["go on"])
    sizes = ModelConfig(layers=1, heads=2, head_dim=8, feedforward=16)
    config = AcousticModelConfig("i-clustered-8", "native", model=sizes)
    with monkeypatch.context() as present:
        present.setattr(attention_ext, "why_unavailable", lambda device: None)
        present.setattr(asr.attention.backend, "load_operators", lambda backend: None)
        state = Recognizer(AcousticModel(config, len(tokenizer)), tokenizer).state()
    write_portable(state, tmp_path)
    monkeypatch.setattr(attention_ext, "why_unavailable", lambda device: "no compiler")
    assert Recognizer.load(tmp_path).model.config.backend == "auto"
    assert Recognizer.load(tmp_path, backend="reference").model.backend_on("cpu") == "reference"
    with pytest.raises(UserError, match="backend native can't run i-clustered-8: cpu: no compiler"):
        Recognizer.load(tmp_path, backend="native")


def test_eight_feature_frames_in_an_encoder_frame() -> None:
    """Numbers of frames around multiples of eight, times of labels and of an alignment."""
    torch.manual_seed(0)
    sizes = ModelConfig(layers=1, heads=2, head_dim=8, feedforward=16, subsampling=8)
    tokenizer = CharacterTokenizer.train(["go on"])
    model = AcousticModel(AcousticModelConfig(model=sizes), len(tokenizer)).eval()
    assert model.frame_s == pytest.approx(0.08)
    front_end = model.front_end
    shift, extra = front_end.shift_samples, front_end.window_samples - front_end.shift_samples
    samples = torch.tensor([n * shift + extra for n in (1, 7, 8, 9, 16, 17, 80)])
    with torch.no_grad():
        log_probs, frames = model(torch.randn(len(samples), int(samples.max())), samples)
    assert frames.tolist() == [1, 1, 1, 2, 2, 3, 10]
    assert model.encoder_lengths(samples.numpy() / model.sample_rate).tolist() == frames.tolist()
    spans = force_align(log_probs[-1], tokenizer.encode("go on"))
    assert len(spans) == 5
    assert spans[-1].end_frame <= 10
    with pytest.raises(UserError, match="needs 5 encoder frames, found 3"):
        force_align(log_probs[-2, :3], tokenizer.encode("go on"))
    model.head.projection.bias.data[0] = -1e3  # no blanks
    recognizer = Recognizer(model, tokenizer)
    # Noise that swells and fades: steady noise gets no words.
    swelling = np.random.default_rng(0).normal(size=32_000) * np.cos(np.arange(32_000) * np.pi / 4_000) ** 2
    transcript = recognizer.transcribe(swelling.astype("f4"), 16_000)
    assert transcript.tokens
    for time in transcript.times_s:
        assert time == pytest.approx(0.08 * round(time / 0.08), abs=1e-6)
        assert time <= transcript.duration_s


def test_times_follow_the_samples_between_frames() -> None:
    """At 22,050 Hz, frames of 10 ms are 220 samples apart; times were 8 s late after an hour."""
    config = AcousticModelConfig(features=FeatureConfig(sample_rate=22050))
    model = AcousticModel(config, 5)
    assert model.frame_s == model.config.model.subsampling * 220 / 22050
