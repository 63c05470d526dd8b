"""Encoder blocks against their equations, with padding and stochastic depth."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv1d, gelu, glu, layer_norm, silu

from asr.errors import UserError
from asr.model.blocks import Block, Residual
from asr.model.options import BlockConfig
from asr.training.config import train_options

SMALL = {"layers": 2, "heads": 2, "head_dim": 8, "feedforward": 32, "dropout": 0.0, "convolution_kernel": 5}
BLOCKS = ("transformer", "conformer", "ebranchformer")


def block(
    attention: str = "full", rotary_base: float | None = None, skip: float = 0.0, **options: object
) -> Block:
    torch.manual_seed(0)
    config = BlockConfig(**{**SMALL, **options})  # type: ignore[arg-type]
    module = Block(config, attention, "auto", rotary_base, skip)
    for parameter in module.parameters():  # norms and gates must not be at their neutral start
        torch.nn.init.normal_(parameter, std=0.3)
    return module.eval().double()


class Oracle:
    """The blocks' equations, written with the parameters of a block for one utterance x [T, M]."""

    def __init__(self, module: Block) -> None:
        self.weights = dict(module.named_parameters())
        self.module = module

    def linear(self, name: str, x: Tensor) -> Tensor:
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def norm(self, name: str, x: Tensor) -> Tensor:
        return layer_norm(x, x.shape[-1:], self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def convolve(self, name: str, x: Tensor) -> Tensor:
        """y_tc = b_c + Σ_j w_cj x_{t + j − kernel/2, c}, zero outside the utterance."""
        weight, bias = self.weights[f"{name}.convolution.weight"], self.weights[f"{name}.convolution.bias"]
        return conv1d(x.T, weight, bias, padding=weight.shape[-1] // 2, groups=len(weight)).T

    def feedforward(self, name: str, x: Tensor) -> Tensor:
        return self.linear(f"{name}.layers.3", gelu(self.linear(f"{name}.layers.0", x)))

    def attention(self, index: int, x: Tensor, branch: bool = False) -> Tensor:
        layer = self.module.sublayers[index].sublayer
        attend = layer.attention if branch else layer
        return attend(x.unsqueeze(0)).squeeze(0)  # type: ignore[operator]

    def convolution(self, name: str, x: Tensor) -> Tensor:
        y = glu(self.linear(f"{name}.gated", x))
        y = gelu(self.norm(f"{name}.norm", self.convolve(f"{name}.depthwise", y)))
        return self.linear(f"{name}.output", y)

    def branches(self, index: int, x: Tensor) -> Tensor:
        name = f"sublayers.{index}.sublayer"
        a, b = gelu(self.linear(f"{name}.local.input.0", x)).chunk(2, dim=-1)
        gate = self.convolve(f"{name}.local.depthwise", self.norm(f"{name}.local.norm", b))
        local = self.linear(f"{name}.local.output", a * gate)
        both = torch.cat((self.attention(index, x, branch=True), local), -1)
        return self.linear(f"{name}.merge", both + self.convolve(f"{name}.depthwise", both))

    def pre_norm_transformer(self, x: Tensor) -> Tensor:
        x = x + self.attention(0, self.norm("sublayers.0.norm", x))
        return x + self.feedforward("sublayers.1.sublayer", self.norm("sublayers.1.norm", x))

    def post_norm_transformer(self, x: Tensor) -> Tensor:
        x = self.norm("sublayers.0.norm", x + self.attention(0, x))
        return self.norm("sublayers.1.norm", x + self.feedforward("sublayers.1.sublayer", x))

    def pre_norm_conformer(self, x: Tensor) -> Tensor:
        x = x + 0.5 * self.feedforward("sublayers.0.sublayer", self.norm("sublayers.0.norm", x))
        x = x + self.attention(1, self.norm("sublayers.1.norm", x))
        x = x + self.convolution("sublayers.2.sublayer", self.norm("sublayers.2.norm", x))
        x = x + 0.5 * self.feedforward("sublayers.3.sublayer", self.norm("sublayers.3.norm", x))
        return self.norm("norm", x)

    def post_norm_conformer(self, x: Tensor) -> Tensor:
        x = self.norm("sublayers.0.norm", x + 0.5 * self.feedforward("sublayers.0.sublayer", x))
        x = self.norm("sublayers.1.norm", x + self.attention(1, x))
        x = self.norm("sublayers.2.norm", x + self.convolution("sublayers.2.sublayer", x))
        return self.norm("sublayers.3.norm", x + 0.5 * self.feedforward("sublayers.3.sublayer", x))

    def pre_norm_ebranchformer(self, x: Tensor) -> Tensor:
        x = x + 0.5 * self.feedforward("sublayers.0.sublayer", self.norm("sublayers.0.norm", x))
        x = x + self.branches(1, self.norm("sublayers.1.norm", x))
        x = x + 0.5 * self.feedforward("sublayers.2.sublayer", self.norm("sublayers.2.norm", x))
        return self.norm("norm", x)

    def post_norm_ebranchformer(self, x: Tensor) -> Tensor:
        x = self.norm("sublayers.0.norm", x + 0.5 * self.feedforward("sublayers.0.sublayer", x))
        x = self.norm("sublayers.1.norm", x + self.branches(1, x))
        return self.norm("sublayers.2.norm", x + 0.5 * self.feedforward("sublayers.2.sublayer", x))


@pytest.mark.parametrize("kind", BLOCKS)
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_blocks_follow_their_equations(kind: str, norm: str) -> None:
    module = block(block=kind, norm=norm)
    x = torch.randn(11, 16, dtype=torch.float64)
    found = module(x.unsqueeze(0), torch.tensor([11])).squeeze(0)
    expected = getattr(Oracle(module), f"{norm}_norm_{kind}")(x)
    assert torch.allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize(
    ("kind", "norm", "attention", "rotary_base"),
    [(kind, norm, "i-clustered-5:topk=4", 1e4) for kind in BLOCKS for norm in ("pre", "post")]
    + [("transformer", "pre", name, base) for name in ("full", "shared-full") for base in (None, 1e4)],
)
def test_an_utterance_alone_equals_the_utterance_in_a_batch(
    kind: str, norm: str, attention: str, rotary_base: float | None
) -> None:
    module = block(attention, rotary_base, block=kind, norm=norm)
    lengths = torch.tensor([19, 7, 1])
    x = torch.randn(3, 20, 16, dtype=torch.float64)
    x[torch.arange(20) >= lengths.unsqueeze(1)] = 1e9
    together = module(x, lengths)
    for i, length in enumerate(lengths.tolist()):
        alone = module(x[i : i + 1, :length], lengths[i : i + 1])
        assert torch.allclose(together[i, :length], alone[0], atol=1e-9)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("kind", BLOCKS)
def test_a_block_without_attention(kind: str, norm: str) -> None:
    """What is left equals the same sublayers of a block with attention, and every parameter is used."""
    full, module = (block(name, block=kind, norm=norm) for name in ("full", "none"))
    x, lengths = torch.randn(2, 9, 16, dtype=torch.float64), torch.tensor([9, 9])
    out = module(x, lengths)
    out.square().sum().backward()
    assert all(parameter.grad is not None for parameter in module.parameters())
    if kind == "ebranchformer":
        assert len(module.sublayers) == 3
        return
    at = 0 if kind == "transformer" else 1
    kept = [layer for i, layer in enumerate(full.sublayers) if i != at]
    for mine, other in zip(module.sublayers, kept, strict=True):
        mine.load_state_dict(other.state_dict())
    module.norm.load_state_dict(full.norm.state_dict())
    expected = x
    for layer in kept:
        expected = layer(expected, lengths)
    torch.testing.assert_close(module(x, lengths), full.norm(expected))


@pytest.mark.parametrize("kind", ["conformer", "ebranchformer"])
def test_neither_padding_nor_other_utterances_change_gradients(kind: str) -> None:
    """Batch normalisation in the convolution would mix utterances in training."""
    module = block(block=kind).train()
    x = torch.randn(2, 12, 16, dtype=torch.float64)

    def gradients(features: Tensor, lengths: Tensor) -> list[Tensor]:
        module.zero_grad()
        module(features, lengths)[0, :8].square().sum().backward()
        return [parameter.grad.clone() for parameter in module.parameters() if parameter.grad is not None]

    alone = gradients(x[:1, :8], torch.tensor([8]))
    together = gradients(x, torch.tensor([8, 12]))
    assert len(alone) == len(list(module.parameters()))
    assert all(torch.allclose(a, b, atol=1e-9) for a, b in zip(alone, together, strict=True))


@pytest.mark.parametrize(("activation", "function"), [("relu", torch.relu), ("swish", silu), ("gelu", gelu)])
def test_the_activation_is_the_one_that_was_chosen(activation: str, function) -> None:  # type: ignore[no-untyped-def]
    module = block(activation=activation)
    x = torch.linspace(-3, 3, 7, dtype=torch.float64)
    assert torch.equal(module.sublayers[1].sublayer.layers[1](x), function(x))  # type: ignore[union-attr,index,operator]


class Double(torch.nn.Module):
    """The sublayer 2x."""

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        return 2 * x


def test_stochastic_depth_skips_utterances_in_training_and_keeps_the_mean() -> None:
    config = BlockConfig(**{**SMALL, "dropout": 0.0})  # type: ignore[arg-type]
    module = Residual(Double(), config, skip=0.25)
    x, lengths = torch.randn(1, 5, 16).expand(4000, 5, 16), torch.full((4000,), 5)
    whole = module.eval()(x, lengths) - x
    torch.manual_seed(0)
    parts = module.train()(x, lengths) - x
    skipped = (parts == 0).all(dim=2).all(dim=1)
    assert torch.allclose(parts[~skipped], whole[~skipped] / 0.75, atol=1e-5)
    assert 0.22 < skipped.float().mean() < 0.28  # ± 4.4 standard errors
    torch.manual_seed(0)
    assert torch.equal(module(x, lengths) - x, parts)


def test_stochastic_depth_rises_linearly_with_depth() -> None:
    """Huang et al. 2016, equation 4."""
    from asr.model.encoder import Encoder
    from asr.model.options import ModelConfig

    encoder = Encoder(ModelConfig(**{**SMALL, "layers": 4, "layer_drop": 0.2}), bins=10)  # type: ignore[arg-type]
    skips = [layer.skip for stack in encoder.blocks for layer in stack.sublayers]  # type: ignore[union-attr]
    assert skips == pytest.approx([0.05, 0.05, 0.1, 0.1, 0.15, 0.15, 0.2, 0.2])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.convolution_kernel=30"], r"convolution_kernel=30: expected an odd number of frames"),
        (["model.position_kernel=4"], r"position_kernel=4: expected an odd number of frames"),
        (["model.block=ebranchformer", "model.feedforward=33"], r"feedforward=33: expected an even size"),
        (["model.block=zipformer"], r"block=zipformer: expected one of transformer, conformer"),
    ],
)
def test_sizes_that_do_not_fit_are_one_line(overrides: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        train_options(overrides)
