"""Base class of models whose self-attention has exchangeable mechanisms; their state and initial weights."""

import logging
from pathlib import Path
from typing import Any

from torch import nn

from asr.attention.hashing import number_layers
from asr.attention.layer import SelfAttentionLayer
from asr.attention.table import code_digests, joined_name, layer_names
from asr.config import to_dict, user_code
from asr.errors import UserError, in_words
from asr.model import checkpoint

log = logging.getLogger(__name__)


class AttentionModel(nn.Module):
    """A model whose self-attention layers share one mechanism, or have one for each layer."""

    def attention_layers(self) -> list[SelfAttentionLayer]:
        """Return the attention layers, first to last."""
        return [layer for layer in self.modules() if isinstance(layer, SelfAttentionLayer)]

    @property
    def attention(self) -> str:
        """Canonical name of the mechanism, or of those of all layers; see `attention.table.layer_runs`."""
        return joined_name([layer.name for layer in self.attention_layers()])

    def backend_on(self, device_type: str) -> str:
        """Return the backend that attention uses on a device, `cpu` or `cuda`; several are joined by `+`."""
        return "+".join(dict.fromkeys(layer.backend_on(device_type) for layer in self.attention_layers()))

    def set_attention(self, name: str, backend: str | None = None) -> None:
        """Exchange the mechanism of all layers; see `SelfAttentionLayer.set_mechanism`.

        Args:
            name: mechanism, or one for each layer, e.g. `full*3,i-clustered-25*9`.
            backend: `auto`, `reference` or `native`; None: layers keep theirs.
        """
        layers = self.attention_layers()
        for layer, layer_name in zip(layers, layer_names(name, len(layers)), strict=True):
            layer.set_mechanism(layer_name, backend)
        number_layers(self)


def model_state(model: AttentionModel, config: Any) -> dict[str, Any]:
    """Return configuration, mechanism, digests of its code and weights as plain data and tensors."""
    code = code_digests(model.attention)
    return {
        "config": to_dict(config),
        "attention": model.attention,
        "code": code,
        "weights": model.state_dict(),
    }


def restore(model: AttentionModel, state: dict[str, Any], backend: str) -> None:
    """Load weights that were trained with the model's mechanism or an exchangeable one.

    Args:
        model: the model; it keeps its mechanism.
        state: see `model_state`.
        backend: backend of the model's mechanism.

    Raises:
        KeyError: the state is incomplete.
        UserError: the model has other sizes, or the mechanisms can't be exchanged.
    """
    attention = model.attention
    if line := user_code.changed(state.get("code", {})):
        log.warning("attention %s: %s", state["attention"], line)
    if attention != state["attention"]:  # only the same mechanism can use the stored hash planes
        model.set_attention(state["attention"], "reference")
    checkpoint.check_shapes(model.state_dict(), state["weights"], f"attention {state['attention']}")
    model.load_state_dict(state["weights"])
    if attention != state["attention"]:
        model.set_attention(attention, backend)


def initialise(model: AttentionModel, source: str, backend: str) -> None:
    """Initialise a model with the weights of a run, trained with the same or an exchangeable mechanism.

    Args:
        model: the model; it keeps its mechanism.
        source: run folder or checkpoint, the option `init_from`.
        backend: backend of the model's mechanism.

    Raises:
        UserError: the run doesn't exist, its weights don't fit, or the mechanisms can't be exchanged.
    """
    try:
        restore(model, checkpoint.load(checkpoint.find(Path(source)))["model"], backend)
    except (KeyError, UserError) as error:
        raise UserError(f"init_from={source}: {in_words(error)}") from None
