"""Pretrained encoders: the states of transformers, padding, exchanged attention, gradients."""

from pathlib import Path

import pytest
import torch
from pretrained_models import LAYOUTS, load_model, save_model, states, transformers, utterances

from asr.attention.pretrained_layers import GatedBiasAttention
from asr.errors import UserError
from asr.model import pretrained
from asr.model.acoustic_model import AcousticModel
from asr.model.options import AugmentConfig

LENGTHS = torch.tensor([16000, 7000, 3001])


@torch.no_grad()
def reference_states(model: torch.nn.Module, folder: Path, samples: torch.Tensor) -> torch.Tensor:
    """Return what transformers computes for one utterance alone, [T, M]."""
    extractor = transformers.AutoFeatureExtractor.from_pretrained(folder)
    values = extractor(samples.numpy(), sampling_rate=16000, return_tensors="pt").input_values
    return model(values).last_hidden_state[0]


@pytest.mark.parametrize(("family", "norm", "stable"), LAYOUTS)
@pytest.mark.parametrize("padding", [float("nan"), 1e9])
def test_states_equal_those_of_transformers_with_any_padding(
    family: str, norm: str, stable: bool, padding: float, tmp_path: Path
) -> None:
    """In a padded batch, transformers' own states differ with group normalisation."""
    theirs = save_model(tmp_path, family, norm, stable)
    ours, frames = states(load_model(tmp_path), utterances(LENGTHS, padding), LENGTHS)
    for own, samples, length, count in zip(ours, utterances(LENGTHS), LENGTHS, frames.tolist(), strict=True):
        expected = reference_states(theirs, tmp_path, samples[:length])
        assert count == len(expected)
        torch.testing.assert_close(own[:count], expected, rtol=0, atol=1e-5)


def test_samples_are_scaled_only_where_the_folder_says_so(tmp_path: Path) -> None:
    theirs = save_model(tmp_path, norm="layer", normalise=False)
    ours, _ = states(load_model(tmp_path), utterances(LENGTHS)[:1], LENGTHS[:1])
    expected = reference_states(theirs, tmp_path, utterances(LENGTHS)[0])
    torch.testing.assert_close(ours[0], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("norm", ["group", "layer"])
def test_latents_do_not_depend_on_blocks(norm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_model(tmp_path, norm=norm)
    front_end = load_model(tmp_path).front_end
    whole, frames = front_end(utterances(LENGTHS, 1e9), LENGTHS)
    assert frames.tolist() == [100, 44, 19]
    monkeypatch.setattr(pretrained, "BLOCK_FRAMES", 21)
    torch.testing.assert_close(front_end(utterances(LENGTHS, 1e9), LENGTHS)[0], whole, rtol=0, atol=1e-5)


def test_frames_agree_with_transformers(tmp_path: Path) -> None:
    theirs = save_model(tmp_path)
    model = load_model(tmp_path)
    samples = torch.arange(70, 1000, 7)
    assert torch.equal(model.front_end.frames(samples), theirs._get_feat_extract_output_lengths(samples))
    assert model.encoder_frames(0.1) == 10
    assert model.frame_s == 0.01


@pytest.mark.parametrize("family", ["wav2vec2", "hubert", "wavlm"])
def test_mechanisms_are_exchanged_without_changing_weights(family: str, tmp_path: Path) -> None:
    save_model(tmp_path, family, initializer_range=0.5)
    model = load_model(tmp_path)
    full, frames = states(model, utterances(LENGTHS), LENGTHS)
    keep = torch.arange(full.shape[1]) < frames.unsqueeze(1)
    model.set_attention("i-clustered-100:topk=100")
    torch.testing.assert_close(
        states(model, utterances(LENGTHS), LENGTHS)[0][keep], full[keep], rtol=0, atol=1e-4
    )
    model.set_attention("i-clustered-4:topk=3")
    clustered, _ = states(model, utterances(LENGTHS, float("nan")), LENGTHS)
    assert (clustered[keep] - full[keep]).abs().max() > 0.1
    alone, _ = states(model, utterances(LENGTHS)[1:2, :7000], LENGTHS[1:2])
    torch.testing.assert_close(clustered[1, :44], alone[0], rtol=0, atol=1e-4)
    model.set_attention("full")
    assert torch.equal(states(model, utterances(LENGTHS), LENGTHS)[0], full)


@pytest.mark.parametrize("name", ["lsh-1", "shared-full", "cast-4", "linear"])
@pytest.mark.parametrize("family", ["wav2vec2", "wavlm"])
def test_mechanisms_that_do_not_fit_are_refused(name: str, family: str, tmp_path: Path) -> None:
    save_model(tmp_path, family)
    with pytest.raises(UserError, match=f"attention '{name}' (needs keys tied|can't)|parameters of its own"):
        load_model(tmp_path, name)
    with pytest.raises(UserError, match=f"attention .*'{name}"):
        load_model(tmp_path).set_attention(name)


def test_wavlm_has_no_compiled_kernels(tmp_path: Path) -> None:
    save_model(tmp_path, "wavlm")
    model = load_model(tmp_path)
    assert model.backend_on("cpu") == "reference"
    with pytest.raises(UserError, match="backend 'native' can't add a bias to the logits: expected auto"):
        model.set_attention("local-5", backend="native")
    layer = next(part for part in model.modules() if isinstance(part, GatedBiasAttention))
    with pytest.raises(ValueError, match=r"expected lengths 0 … 5, found \[6\]"):
        layer(torch.ones(1, 5, layer.attention.embed_dim), torch.tensor([6]))


@pytest.mark.parametrize("family", ["wav2vec2", "wavlm"])
@pytest.mark.parametrize("name", ["full", "local-5", "clustered-4", "i-clustered-4:topk=3"])
@torch.no_grad()
def test_dense_weights_give_the_output(name: str, family: str, tmp_path: Path) -> None:
    save_model(tmp_path, family)
    model = load_model(tmp_path, name)
    found: list[tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor], torch.Tensor]] = []
    layer = model.attention_layers()[1]
    layer.register_forward_hook(lambda _, *seen: found.append(seen), with_kwargs=True)
    states(model, utterances(LENGTHS)[:1], LENGTHS[:1])
    (x, _), bias, y = found[0]
    wavlm = family == "wavlm"
    value, output = (
        (layer.attention.v_proj, layer.attention.out_proj) if wavlm else (layer.value, layer.output)
    )
    mixed = layer.weights(name, x, **bias) @ value(x).unflatten(-1, (2, -1)).transpose(1, 2)
    torch.testing.assert_close(output(mixed.transpose(1, 2).flatten(2)), y, rtol=0, atol=1e-5)
    with pytest.raises(UserError, match=r"can't replace|parameters of its own"):
        layer.weights("cast-4", x, **bias)


@pytest.mark.parametrize("family", ["wav2vec2", "wavlm"])
def test_all_parts_but_the_front_end_are_trained(family: str, tmp_path: Path) -> None:
    """Also with an utterance of no frames, which must not turn the gradients of others into NaN."""
    save_model(tmp_path, family, hidden_dropout=0.1, attention_dropout=0.1, layerdrop=0.2)
    assert not load_model(tmp_path).normalisation.masked_frame.requires_grad
    masks = AugmentConfig(frequency_masks=1, time_mask_every=20)
    model = load_model(tmp_path, augment=masks, intermediate=[1]).train()
    outputs, frames = model.emit(
        *model.input(utterances(LENGTHS, float("nan")), torch.tensor([16000, 69, 3001]))
    )
    assert frames.tolist() == [100, 0, 19]
    assert len(outputs) == 2
    sum(x[0].sum() + x[2, :19].sum() for x in outputs).backward()  # type: ignore[union-attr]
    for name, parameter in model.named_parameters():
        if name.startswith("front_end"):
            assert parameter.grad is None
        else:
            assert parameter.grad.isfinite().all(), name
    assert model.normalisation.masked_frame.grad.abs().sum() > 0


def test_a_frozen_encoder_gets_no_gradients(tmp_path: Path) -> None:
    save_model(tmp_path)
    model = load_model(tmp_path).train()
    model.encoder_frozen = True
    model.emit(*model.input(utterances(LENGTHS), LENGTHS))[0][-1].sum().backward()
    trained = [name for name, parameter in model.named_parameters() if parameter.grad is not None]
    assert trained == ["head.projection.weight", "head.projection.bias"]


def test_layer_drop_skips_the_blocks_of_single_utterances(tmp_path: Path) -> None:
    dropouts = ("hidden_dropout", "attention_dropout", "activation_dropout", "feat_proj_dropout")
    save_model(tmp_path, layerdrop=0.5, final_dropout=0.0, **dict.fromkeys(dropouts, 0.0))
    model = load_model(tmp_path)
    lengths = LENGTHS[:1].repeat(16)
    features = model.input(utterances(LENGTHS)[:1].repeat(16, 1), lengths)
    with torch.no_grad():
        variants, _ = model.encoder.train()(*features)
    distinct = {tuple(x[0].tolist()) for x in variants}
    assert len(distinct) == 4  # neither, either or both of two blocks


def test_a_model_is_restored_without_its_folder(tmp_path: Path) -> None:
    save_model(tmp_path / "folder")
    model = load_model(tmp_path / "folder", "i-clustered-4")
    expected = model(utterances(LENGTHS), LENGTHS)
    state = model.state()
    (tmp_path / "folder").rename(tmp_path / "moved")
    restored = AcousticModel.from_state(state, 5, "checkpoint")
    assert restored.digest() == model.digest()
    assert torch.equal(restored(utterances(LENGTHS), LENGTHS)[0], expected[0])
