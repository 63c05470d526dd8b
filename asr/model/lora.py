"""LoRA (Hu et al. 2022): trains low-rank updates of the attention's projections; other weights are fixed.

peft adds the updates to a model in training. Checkpoints contain the sums, so nothing else needs peft; only a
resume point also contains the factors.
"""

from collections.abc import Mapping

from torch import Tensor, nn

from asr.attention.layer import SelfAttentionLayer
from asr.attention.multihead import SelfAttention
from asr.attention.pretrained_layers import BiasedAttention
from asr.errors import UserError
from asr.model.acoustic_model import AcousticModel
from asr.model.options import LoraConfig

PROJECTIONS = ("query", "key", "value", "output", "q_proj", "k_proj", "v_proj", "out_proj")
ALPHA = 16  # scale of the updates; another one acts like another learning rate
NAME = "default"  # peft's name of the only adapter
BASE, DOWN, UP = ".base_layer.", f".lora_A.{NAME}.weight", f".lora_B.{NAME}.weight"


def add_lora(model: AcousticModel, config: LoraConfig) -> None:
    """Add updates to the projections of every attention layer, and fix all weights except the head's.

    A projection W becomes W + 16 / r · BA, with B [out, r], initially zero, and A [r, in].

    Raises:
        UserError: peft is missing, or a layer's mechanism has its own parameters.
    """
    try:
        from peft import LoraConfig as Settings
        from peft import inject_adapter_in_model
    except ImportError:
        raise UserError(
            f"model.lora.rank={config.rank}: expected peft, found none: pip install 'clustered-asr[lora]'"
        ) from None
    for layer in model.attention_layers():
        if not isinstance(layer, SelfAttention | BiasedAttention):
            raise UserError(
                f"model.lora.rank={config.rank}: expected attention without parameters of its own, found "
                f"{layer.name}"
            )
    layers = [(name, x) for name, x in model.encoder.named_modules() if isinstance(x, SelfAttentionLayer)]
    modules = [
        f"{layer}.{name}" for layer, x in layers for name, part in x.named_modules() if projects(name, part)
    ]
    for module in (model.normalisation, model.encoder):
        module.requires_grad_(False)
    settings = Settings(r=config.rank, lora_alpha=ALPHA, target_modules=modules)
    inject_adapter_in_model(settings, model.encoder, NAME)


def projects(name: str, module: nn.Module) -> bool:
    """Return whether a module of an attention layer maps to queries, keys, values or the layer's output."""
    return isinstance(module, nn.Linear) and name.rpartition(".")[2] in PROJECTIONS


def merged(weights: Mapping[str, Tensor], config: LoraConfig) -> dict[str, Tensor]:
    """Return the weights after `add_lora` under their former names, with the updates added."""
    state = {}
    for name, value in weights.items():
        if name.endswith((DOWN, UP)):
            continue
        layer = name.removesuffix(f"{BASE}weight")
        if layer != name:
            value = value + ALPHA / config.rank * (weights[layer + UP] @ weights[layer + DOWN])
        state[name.replace(BASE, ".")] = value
    return state
