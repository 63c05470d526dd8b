"""Adapter to Hugging Face transformers: softmax mechanisms in pretrained encoders, without retraining."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from asr.attention.pretrained_layers import fitting_mechanism
from asr.attention.softmax import QueryKeyMechanism
from asr.attention.table import build_mechanism, joined_name, layer_runs
from asr.errors import UserError
from asr.lengths import keep_mask

ADAPTER = "adapter_config.json"


def import_transformers() -> ModuleType:
    """Return the package transformers; raise UserError unless version 5 or later is installed."""
    try:
        import transformers
    except ImportError:
        version = "none"
    else:
        version = transformers.__version__
        if int(version.split(".")[0]) >= 5:
            return transformers
    raise UserError(f"expected transformers ≥ 5, found {version}: pip install 'clustered-asr[transformers]'")


def refuse_adapter(folder: Path) -> None:
    """Raise UserError if a folder has weights that transformers would add with peft."""
    if (folder / ADAPTER).exists():
        raise UserError(f"{folder}: expected a whole model, found {ADAPTER}: merge it with peft first")


@contextmanager
def quiet() -> Iterator[None]:
    """Hide transformers' warnings about unused heads, and its progress bars."""
    logging = import_transformers().utils.logging
    level, shown = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()


def register_attention(name: str, backend: str = "auto", cross_attention: bool = False) -> str:
    """Register a softmax mechanism and its padding mask with transformers (≥ 5).

    It replaces non-causal self-attention. Causal attention, and by default cross-attention, keep
    transformers' SDPA. `shared-full` and `lsh` don't fit, because pretrained models have a key projection.

    Args:
        name: e.g. `i-clustered-25`; or a mechanism for each layer, in the order of their calls, e.g.
            `full*3,local-64*9`.
        backend: `auto`, `reference` or `native`.
        cross_attention: whether to replace cross-attention, too.

    Returns:
        The canonical name, for `model.set_attn_implementation`.

    Raises:
        UserError: transformers is missing, or the mechanism doesn't fit.

    Example:
        >>> from transformers import AutoModel                                    # doctest: +SKIP
        >>> model = AutoModel.from_pretrained("bert-base-uncased")                # doctest: +SKIP
        >>> model.set_attn_implementation(register_attention("i-clustered-25"))   # doctest: +SKIP
    """
    transformers = import_transformers()
    attention = ReplacedAttention(name, backend, cross_attention)
    transformers.AttentionInterface.register(attention.name, attention)
    # Without a mask function, transformers passes no mask and padding is attended to.
    transformers.AttentionMaskInterface.register(attention.name, padding_mask)
    return attention.name


class ReplacedAttention:
    """Attention function that transformers calls in every attention module.

    Args:
        name, backend, cross_attention: see `register_attention`.
    """

    def __init__(self, name: str, backend: str, cross_attention: bool) -> None:
        runs = [(fitting_mechanism(spec.name, backend).name, count) for spec, count in layer_runs(name)]
        self.names = [mechanism for mechanism, count in runs for _ in range(count or 1)]
        self.name = joined_name(self.names) if runs[0][1] else self.names[0]
        if "planes=layer" in self.name:
            raise UserError(
                f"attention {name!r}: planes=layer has no effect, because all layers share a mechanism"
            )
        self.for_each = bool(runs[0][1])
        self.backend, self.cross_attention = backend, cross_attention
        self.mechanisms: dict[tuple[str, torch.device, float, bool], QueryKeyMechanism] = {}
        self.layers: dict[nn.Module, int] = {}  # numbered in the order of their first calls

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        is_causal: bool | None = None,
        **options: Any,
    ) -> tuple[Tensor, None]:
        """Attend: query [B, H, N, D], key and value [B, H or fewer, S, D] to ([B, N, H, D], None)."""
        is_causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        is_cross = _is_cross_attention(module, query, key)
        if is_causal or (is_cross and not self.cross_attention):
            from transformers.integrations.sdpa_attention import sdpa_attention_forward

            if attention_mask is not None and attention_mask.dim() == 2:
                attention_mask = attention_mask[:, None, None, :]
            return sdpa_attention_forward(
                module, query, key, value, attention_mask, dropout, scaling, is_causal, **options
            )

        for option in ("position_bias", "softcap", "sliding_window", "cache"):
            if options.get(option) is not None:
                raise UserError(
                    f"attention {self.name!r} can't run {type(module).__name__}, which uses {option}"
                )
        key_lengths = None
        if attention_mask is not None:
            if attention_mask.dim() != 2:
                raise UserError(
                    f"attention {self.name!r} can't run {type(module).__name__}: expected a padding mask "
                    f"[batch, positions], found a mask of shape {list(attention_mask.shape)}"
                )
            key_lengths = attention_mask.sum(-1)
        groups = query.shape[1] // key.shape[1]
        if groups > 1:
            key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        if scaling is not None:
            query = query * (scaling * query.shape[-1] ** 0.5)  # the mechanism divides by √D
        mixed = self._mechanism(module, query.device, dropout)(
            query, key, value, query_lengths=None if is_cross else key_lengths, key_lengths=key_lengths
        )
        return mixed.transpose(1, 2).contiguous(), None

    def _mechanism(self, module: nn.Module, device: torch.device, dropout: float) -> QueryKeyMechanism:
        """Return a layer's mechanism for a device, a dropout probability, and training or evaluation mode."""
        name = self.name
        if self.for_each:
            number = self.layers.setdefault(module, len(self.layers))
            if number >= len(self.names):
                raise UserError(f"attention {self.name!r}: expected {len(self.names)} layers, found more")
            name = self.names[number]
        mode = name, device, dropout, module.training
        if mode not in self.mechanisms:
            mechanism = build_mechanism(name, self.backend, dropout).to(device)
            self.mechanisms[mode] = mechanism.train(module.training)
        return self.mechanisms[mode]


def padding_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Any = None,
    attention_mask: Tensor | None = None,
    **options: Any,
) -> Tensor | None:
    """Return the [B, S] mask of a bidirectional layer, or None without padding; other layers get SDPA's mask.

    Raises:
        UserError: padding isn't on the right.
    """
    from transformers.masking_utils import bidirectional_mask_function, sdpa_mask

    if mask_function is not bidirectional_mask_function:
        return sdpa_mask(
            batch_size,
            q_length,
            kv_length,
            q_offset=q_offset,
            kv_offset=kv_offset,
            mask_function=mask_function,
            attention_mask=attention_mask,
            **options,
        )
    if attention_mask is None:
        return None
    keep_BS = attention_mask.bool()
    on_the_right_B = (keep_BS == keep_mask(keep_BS.sum(-1), keep_BS.shape[-1])).all(-1)
    message = "expected padding on the right only: set tokenizer.padding_side='right'"
    if torch.compiler.is_compiling():
        torch._assert_async(on_the_right_B.all(), message)
    elif not on_the_right_B.all():
        row = int(on_the_right_B.long().argmin())
        raise UserError(f"attention mask of row {row}: {message}")
    return keep_BS


def _is_cross_attention(module: nn.Module, query: Tensor, key: Tensor) -> bool:
    """Detect cross-attention by naming conventions, because transformers' modules share no flag for it."""
    return (
        query.shape[2] != key.shape[2]
        or getattr(module, "is_cross_attention", False)
        or getattr(module, "is_decoder", False)
        or "Cross" in type(module).__name__
    )
