"""Models with exchangeable mechanisms, one for all layers or each: state, and weights from other runs."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

from asr.attention import build_self_attention
from asr.attention.hashing import RandomDirections
from asr.errors import UserError
from asr.model import checkpoint
from asr.model.attention_model import AttentionModel, initialise, model_state, restore


@dataclass
class Sizes:
    model_dim: int = 16


class Stack(AttentionModel):
    def __init__(self, attention: str, model_dim: int = 16) -> None:
        super().__init__()
        self.layers = nn.ModuleList(build_self_attention(attention, model_dim, heads=2) for _ in range(2))


def saved(attention: str, path: Path) -> Stack:
    torch.manual_seed(0)
    model = Stack(attention)
    checkpoint.save({"format": checkpoint.FORMAT, "model": model_state(model, Sizes())}, path)
    return model


def test_weights_of_an_exchangeable_mechanism_are_loaded_and_the_own_one_is_kept(tmp_path: Path) -> None:
    full = saved("full", tmp_path / "full.ckpt")
    model = Stack("clustered-3")
    initialise(model, str(tmp_path / "full.ckpt"), "reference")
    assert model.attention == "clustered-3"
    assert model.backend_on("cpu") == "reference"
    assert all(torch.equal(x, y) for x, y in zip(model.parameters(), full.parameters(), strict=True))


def test_stored_planes_are_loaded_and_shown() -> None:
    model = Stack("clustered-3:planes=layer")
    state = model_state(model, Sizes())
    state["weights"] = {name: x + ("stored" in name) for name, x in state["weights"].items()}
    other = Stack("clustered-3:planes=layer")
    restore(other, state, "auto")
    assert all(torch.equal(x, state["weights"][name]) for name, x in other.state_dict().items())
    x = torch.randn(1, 30, 16)
    layer = other.layers[1].eval()
    q, k, v = layer.project(x)
    torch.testing.assert_close(layer.weights(layer.name, x) @ v, layer.mechanism(q, k, v))


def test_layers_keep_planes_of_their_own_after_an_exchange() -> None:
    """Recipes exchanged mechanisms layer by layer, which gave all layers the planes of the first."""
    model = Stack("full")
    restore(model, model_state(Stack("clustered-3:planes=layer"), Sizes()), "auto")
    model.set_attention("clustered-3:planes=layer")
    one, other = (x.stored for x in model.modules() if isinstance(x, RandomDirections))
    assert not torch.equal(one, other)


def test_each_layer_has_a_mechanism() -> None:
    model = Stack("full")
    model.set_attention("full*1,i-clustered-3:bits=31,topk=2*1")
    assert [layer.name for layer in model.layers] == ["full", "i-clustered-3:topk=2,bits=31"]
    assert model.attention == "full*1,i-clustered-3:topk=2,bits=31*1"
    assert model.backend_on("cpu") == "native"
    restored = Stack("local-4")
    restore(restored, model_state(model, Sizes()), "auto")
    assert restored.attention == "local-4"
    model.set_attention("local-4*2", "reference")
    assert model.attention == "local-4"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("full*3", "attention 'full*3': expected mechanisms for 2 layers, found 3"),
        ("full*1,local-4", "expected a mechanism and a number of layers for each part, e.g. full*3,"),
        ("full*0,local-4*2", "expected a mechanism and a number of layers"),
        ("full*,full*1", "expected a mechanism and a number of layers"),
        ("full*1,loca-4*1", "unknown attention 'loca-4'"),
        ("full*1,cast-4*1", "can't be exchanged for 'cast-4'|parameters of its own"),
    ],
)
def test_wrong_mechanisms_of_layers_are_named(name: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        Stack("full").set_attention(name)
    assert any(part in str(error.value) for part in message.split("|"))


@pytest.mark.parametrize("attention", ["cast-4", "linear"])
def test_other_mechanisms_and_sizes_are_refused_in_one_line(attention: str, tmp_path: Path) -> None:
    saved(attention, tmp_path / "own.ckpt")
    for model in (Stack("full"), Stack(attention, model_dim=8)):
        with pytest.raises(UserError, match="init_from=") as error:
            initialise(model, str(tmp_path / "own.ckpt"), "auto")
        assert "\n" not in str(error.value)
