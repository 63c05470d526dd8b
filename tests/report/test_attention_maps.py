"""Attention maps are the mechanisms' weights; exact mechanisms have no distance to full attention."""

import base64
import io
from pathlib import Path

import pytest
import torch
from PIL import Image

from asr.data.audio import load_cut
from asr.data.manifest import read_cuts
from asr.errors import UserError
from asr.model.acoustic_model import AcousticModel, AcousticModelConfig
from asr.recognizer import Recognizer
from asr.report.attention_maps import approximation_errors, attention_maps, layer_weights
from asr.report.figures.attention import picture


@pytest.fixture(scope="module")
def spoken(tone_corpus: Path) -> tuple[torch.Tensor, str]:
    cut = next(iter(read_cuts(tone_corpus / "test.cuts.jsonl.gz")))
    return torch.from_numpy(load_cut(cut, 16000)), cut.supervisions[0].text


def test_maps_are_weights_on_the_models_queries_and_keys(
    recognizer: Recognizer, spoken: tuple[torch.Tensor, str]
) -> None:
    audio, text = spoken
    maps = attention_maps(recognizer, audio, text, ["full", "i-clustered-5"])
    frames = recognizer.model.encoder_frames(len(audio) / 16000)
    layer = recognizer.model.attention_layers()[0]
    inputs: list[torch.Tensor] = []
    with torch.inference_mode(), layer.register_forward_pre_hook(lambda _, given: inputs.append(given[0])):
        recognizer.model(audio.unsqueeze(0), torch.tensor([len(audio)]))
        q, k, _ = layer.project(inputs[0])  # type: ignore[attr-defined]
    for (_, head, _), weights_NN in zip(maps.heads, maps.weights_NN, strict=True):
        scores = (q[0, head - 1] @ k[0, head - 1].T) / q.shape[-1] ** 0.5
        assert weights_NN["full"].shape == (frames, frames)
        torch.testing.assert_close(weights_NN["full"], scores.softmax(-1))
        torch.testing.assert_close(weights_NN["i-clustered-5"].sum(-1), torch.ones(frames))
    assert [label for label, _ in maps.labels] == recognizer.tokenizer.tokens(
        recognizer.tokenizer.encode(text)
    )
    assert sorted(place[:2] for place in maps.heads) == [(1, 1), (1, 2)]


def test_maps_of_fewer_frames_have_the_encoder_s(
    recognizer: Recognizer, spoken: tuple[torch.Tensor, str]
) -> None:
    """Labels are aligned with the encoder's frames, of which the weights had half."""
    audio, text = spoken
    recognizer.set_frames("2")
    try:
        maps = attention_maps(recognizer, audio, text, ["full"])
    finally:
        recognizer.set_frames("1")
    frames = recognizer.model.encoder_frames(len(audio) / 16000)
    weights_NN = maps.weights_NN[0]
    assert weights_NN["full"].shape == (frames, frames)
    assert torch.equal(weights_NN["full"][0], weights_NN["full"][1])


def test_maps_of_joined_frames_are_refused(recognizer: Recognizer, spoken: tuple[torch.Tensor, str]) -> None:
    recognizer.set_frames("merge-0.4:at=1")
    try:
        with pytest.raises(
            UserError, match=r"^frames=merge-0\.4:cap=2,at=1: expected a factor for each layer"
        ):
            attention_maps(recognizer, *spoken, ["full"])
    finally:
        recognizer.set_frames("1")


def test_the_heads_are_those_that_differ_most(
    recognizer: Recognizer, spoken: tuple[torch.Tensor, str]
) -> None:
    """The most peaked head was drawn, where clustered attention looks like full attention."""
    audio, text = spoken
    names = ["full", "clustered-2", "i-clustered-2:topk=3"]
    maps = attention_maps(recognizer, audio, text, names)
    with torch.inference_mode():
        full, one, other = map(layer_weights(recognizer.model, audio)[0], names)
    far = [(x - y).abs().sum(-1).mean(-1) for x, y in ((full, one), (full, other), (one, other))]
    expected = torch.stack(far).mean(0).sort(descending=True, stable=True)
    assert [head - 1 for _, head, _ in maps.heads] == expected.indices.tolist()
    assert [x for *_, x in maps.heads] == pytest.approx(expected.values.tolist(), rel=1e-5)
    assert maps.heads[0][2] > maps.heads[1][2] > 0
    for (_, head, _), weights_NN in zip(maps.heads, maps.weights_NN, strict=True):
        torch.testing.assert_close(weights_NN["clustered-2"], one[head - 1])


def test_exact_mechanisms_have_no_error_and_few_clusters_have_one(
    recognizer: Recognizer, spoken: tuple[torch.Tensor, str]
) -> None:
    names = ["full", "oracle-top-1000", "clustered-2", "clustered-2:grouping=keys"]
    rows = approximation_errors(recognizer.model, [spoken[0]], names)
    errors = {row["mechanism"]: float(row["error"]) for row in rows}
    assert len(rows) == 4  # one layer
    assert errors["full"] == 0
    assert errors["oracle-top-1000"] == pytest.approx(0, abs=1e-5)
    assert 0.001 < errors["clustered-2"] <= 2
    assert 0.001 < errors["clustered-2:grouping=keys"] <= 2


def test_errors_are_averaged_over_positions_of_all_utterances(
    recognizer: Recognizer, spoken: tuple[torch.Tensor, str]
) -> None:
    whole, part = spoken[0], spoken[0][:8000]
    each = [
        (
            float(approximation_errors(recognizer.model, [x], ["clustered-2"])[0]["error"]),
            frames(recognizer, x),
        )
        for x in (whole, part)
    ]
    both = float(approximation_errors(recognizer.model, [whole, part], ["clustered-2"])[0]["error"])
    assert both == pytest.approx(sum(e * n for e, n in each) / sum(n for _, n in each), rel=1e-5)


def frames(recognizer: Recognizer, audio: torch.Tensor) -> int:
    return recognizer.model.encoder_frames(len(audio) / 16000)


def test_invalid_audio_and_models_are_refused(
    recognizer: Recognizer, spoken: tuple[torch.Tensor, str]
) -> None:
    with pytest.raises(UserError, match="shorter than one encoder frame"):
        layer_weights(recognizer.model, spoken[0][:10])
    config = AcousticModelConfig("cast-2", model=recognizer.model.config.model)
    other = AcousticModel(config, len(recognizer.tokenizer)).eval()
    with pytest.raises(UserError, match="own"):
        layer_weights(other, spoken[0])[0]("full")


def test_a_picture_keeps_orientation_and_scale() -> None:
    uri = picture(torch.tensor([[0.0, 1.0], [0.5, 2.0]]), 1.0)
    image = Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))).convert("RGB")
    dark, light = (0x00, 0x20, 0x4D), (0xFF, 0xEA, 0x46)
    assert image.size == (2, 2)
    assert image.getpixel((0, 0)) == dark
    assert image.getpixel((1, 0)) == image.getpixel((1, 1)) == light  # above the scale: saturated
    assert image.getpixel((0, 1)) not in (dark, light)
