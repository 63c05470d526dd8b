"""The encoder: padding, subsampling, positions and presets."""

import pytest
import torch
from torch import Tensor

from asr.attention.multihead import SelfAttention
from asr.errors import UserError
from asr.model.encoder import Encoder, Subsampling, sinusoidal_positions
from asr.model.options import ModelConfig
from asr.training.config import train_options

SMALL = {"layers": 2, "heads": 2, "head_dim": 8, "feedforward": 32, "dropout": 0.0}


def encoder(attention: str = "full", **options: object) -> Encoder:
    torch.manual_seed(0)
    return Encoder(ModelConfig(**{**SMALL, **options}), bins=10, attention=attention).eval()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("attention", "subsampling", "positions"),
    [
        ("full", size, kind)
        for size in (1, 2, 4, 8)
        for kind in ("sinusoidal", "rotary", "convolution", "none")
    ]
    + [(name, 2, "rotary") for name in ("shared-full", "clustered-5", "i-clustered-5:topk=4")],
)
def test_states_do_not_depend_on_padding_or_the_batch(
    attention: str, subsampling: int, positions: str
) -> None:
    model = encoder(attention, subsampling=subsampling, positions=positions)
    lengths = torch.tensor([37, 20, 1, 36])
    features = torch.randn(4, 40, 10)
    features[torch.arange(40) >= lengths.unsqueeze(1)] = float("nan")
    states, frames = model(features, lengths)
    assert frames.tolist() == [-(-length // subsampling) for length in lengths.tolist()]
    for i, length in enumerate(lengths.tolist()):
        alone, _ = model(features[i : i + 1, :length], lengths[i : i + 1])
        assert torch.allclose(states[i, : frames[i]], alone[0], atol=1e-5)


@pytest.mark.parametrize("attention", ["full", "local-3", "i-clustered-5:topk=4", "near-5:topk=4"])
@pytest.mark.parametrize("backend", ["reference", "auto"])
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_gradients_do_not_depend_on_padding(attention: str, backend: str, precision: torch.dtype) -> None:
    """No layer zeroes the padding, which is finite and ignored."""
    torch.manual_seed(0)
    model = Encoder(ModelConfig(**SMALL), bins=10, attention=attention, backend=backend)  # type: ignore[arg-type]
    lengths, features = torch.tensor([37, 20]), torch.randn(2, 40, 10)

    def gradients(features: Tensor, lengths: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == torch.bfloat16):
            states, frames = model(features, lengths)
        model.zero_grad()
        states[0, : frames[0]].square().sum().backward()
        found = [x.grad.flatten() for x in model.parameters() if x.grad is not None]
        assert len(found) == len(list(model.parameters()))
        return torch.cat(found)

    alone = gradients(features[:1, :37], lengths[:1])
    features[torch.arange(40) >= lengths.unsqueeze(1)] = float("nan")
    together = gradients(features, lengths)
    assert (alone - together).norm() <= 0.02 * alone.norm()


@pytest.mark.parametrize("factor", [1, 2, 4, 8])
def test_subsampling_lengths_match_the_output(factor: int) -> None:
    module = Subsampling(10, 16, factor)
    for frames in range(1, 18):
        x, lengths = module(torch.randn(1, frames, 10), torch.tensor([frames]))
        assert x.shape[1] == int(lengths) == int(module.lengths(torch.tensor([frames])))


def test_sinusoidal_positions_follow_the_paper() -> None:
    table = sinusoidal_positions(5, 6, torch.device("cpu"))
    for position in range(5):
        for i in range(3):
            angle = torch.tensor(position / 10000 ** (2 * i / 6))
            assert table[position, 2 * i] == pytest.approx(float(angle.sin()), abs=1e-6)
            assert table[position, 2 * i + 1] == pytest.approx(float(angle.cos()), abs=1e-6)


def test_the_base_of_rotary_positions_reaches_every_layer() -> None:
    layers = [x for x in encoder(positions="rotary").modules() if isinstance(x, SelfAttention)]
    assert [layer.rotary_base for layer in layers] == [1e4, 1e4]
    config = train_options(["model=conformer", "model.position_base=1.5e6"]).model
    layers = [x for x in Encoder(config, 10).modules() if isinstance(x, SelfAttention)]
    assert {layer.rotary_base for layer in layers} == {1.5e6}
    with pytest.raises(UserError, match=r"model.position_base=1.* has no effect with model.positions=sin"):
        train_options(["model.position_base=1.5e6"])


@pytest.mark.parametrize(("preset", "millions"), [("tiny", 1.2), ("wsj", 4.1), ("switchboard", 5.5)])
def test_presets_have_the_stated_number_of_parameters(preset: str, millions: float) -> None:
    options = train_options([f"model={preset}"])
    parameters = sum(x.numel() for x in Encoder(options.model, 80).parameters())
    assert parameters / 1e6 == pytest.approx(millions, rel=0.08)
