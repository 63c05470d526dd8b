"""Models whose layers share a mechanism: state, and initial weights from other runs."""

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


@pytest.mark.parametrize("attention", ["cast-4", "linear"])
def test_other_mechanisms_and_sizes_are_refused_in_one_line(attention: str, tmp_path: Path) -> None:
    saved(attention, tmp_path / "own.ckpt")
    for model in (Stack("full"), Stack(attention, model_dim=8)):
        with pytest.raises(UserError, match="init_from=") as error:
            initialise(model, str(tmp_path / "own.ckpt"), "auto")
        assert "\n" not in str(error.value)
