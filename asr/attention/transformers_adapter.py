"""Adapter to Hugging Face transformers: softmax mechanisms in pretrained encoders, without retraining."""

from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from asr.attention.layer import OwnParameterLayer, SelfAttentionLayer
from asr.attention.multihead import SelfAttention
from asr.attention.softmax import QueryKeyMechanism, SoftmaxMechanism, filled_lengths, without_padding
from asr.attention.table import build_mechanism, parse_name
from asr.errors import UserError
from asr.lengths import keep_mask, zero_padding


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


def register_attention(name: str, backend: str = "auto", cross_attention: bool = False) -> str:
    """Register a softmax mechanism and its padding mask with transformers (≥ 5).

    It replaces non-causal self-attention. Causal attention, and cross-attention by default, keep the SDPA of
    transformers. `shared-full` and `lsh` don't fit, because pretrained models have a key projection.

    Args:
        name: e.g. `i-clustered-25`.
        backend: `auto`, `reference` or `native`.
        cross_attention: whether to replace cross-attention too.

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


def fitting_mechanism(name: str, backend: str, dropout: float = 0.0) -> SoftmaxMechanism:
    """Build a mechanism that can replace the attention of a pretrained model.

    Raises:
        UserError: the mechanism isn't of the softmax family, or needs keys tied to the queries.
    """
    mechanism = build_mechanism(name, backend, dropout)
    if not isinstance(mechanism, SoftmaxMechanism):
        raise UserError(f"attention {name!r} can't replace the softmax attention of a pretrained model")
    if mechanism.needs_shared_keys:
        raise UserError(
            f"attention {name!r} needs keys tied to the queries; pretrained models have a key projection"
        )
    return mechanism


class ReplacedAttention:
    """Attention function that transformers calls in every attention module.

    Args:
        name, backend, cross_attention: see `register_attention`.
    """

    def __init__(self, name: str, backend: str, cross_attention: bool) -> None:
        self.name = fitting_mechanism(name, backend).name
        if "planes=layer" in self.name:
            raise UserError(
                f"attention {name!r}: planes=layer has no effect, because all layers share a mechanism"
            )
        self.backend, self.cross_attention = backend, cross_attention
        self.mechanisms: dict[tuple[torch.device, float, bool], QueryKeyMechanism] = {}

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
                    f"[batch, positions], found a mask of shape {tuple(attention_mask.shape)}"
                )
            key_lengths = attention_mask.sum(-1)
        groups = query.shape[1] // key.shape[1]
        if groups > 1:
            key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        if scaling is not None:
            query = query * (scaling * query.shape[-1] ** 0.5)  # the mechanism divides by √D
        mixed = self._mechanism(query.device, dropout, module.training)(
            query, key, value, query_lengths=None if is_cross else key_lengths, key_lengths=key_lengths
        )
        return mixed.transpose(1, 2).contiguous(), None

    def _mechanism(self, device: torch.device, dropout: float, training: bool) -> QueryKeyMechanism:
        """Return the mechanism for a device, a dropout, and training or evaluation."""
        mode = device, dropout, training
        if mode not in self.mechanisms:
            mechanism = build_mechanism(self.name, self.backend, dropout).to(device)
            self.mechanisms[mode] = mechanism.train(training)
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
        UserError: padding that isn't on the right.
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


def adapted_layer(attention: Any, name: str, backend: str) -> SelfAttentionLayer:
    """Return a self-attention layer with the weights of a transformers module.

    For models whose blocks this project runs itself: the mechanism is exchanged, moved, saved and exported
    like that of any other layer.

    Args:
        attention: self-attention with `q_proj`, `k_proj`, `v_proj` and `out_proj`, as of wav2vec 2.0; the
            result shares its weights.
        name: mechanism; for WavLM, only `full`.
        backend: `auto`, `reference` or `native`.

    Raises:
        UserError: the mechanism doesn't fit.
    """
    if hasattr(attention, "gru_rel_pos_linear"):
        return GatedBiasAttention(attention, name, backend)
    model_dim, heads = attention.embed_dim, attention.num_heads
    mechanism = fitting_mechanism(name, backend, attention.dropout)
    layer = SelfAttention(mechanism, model_dim, heads, model_dim // heads)
    layer.query, layer.key = attention.q_proj, attention.k_proj
    layer.value, layer.output = attention.v_proj, attention.out_proj
    return layer


class GatedBiasAttention(OwnParameterLayer):
    """WavLM's attention, with a gated relative position bias in the logits (Chen et al. 2022, equations 4–7).

    The learned bias of a pair's distance is multiplied by a gate that is computed from the query's state.
    Mechanisms have no such term, and transformers' module doesn't use the attention interface.

    Args:
        attention: WavLM's module, whose weights are shared.
        name: `full`.
        backend: `auto` or `reference`.
    """

    def __init__(self, attention: Any, name: str, backend: str) -> None:
        super().__init__("full", backend)
        self.heads, self.dropout = attention.num_heads, attention.dropout
        self.attention = attention
        self.set_mechanism(name, backend)

    def set_mechanism(self, name: str, backend: str | None = None) -> None:
        """Accept only `full`."""
        self._check_backend(backend or "auto")
        if parse_name(name).name != self.name:
            raise UserError(
                f"attention {name!r} can't run WavLM, whose gated relative position bias is part of the "
                "logits: expected 'full'"
            )

    def forward(self, x: Tensor, lengths: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        """Attend: [B, N, M] with [B] lengths to [B, N, M], given the ungated bias of `distance_bias`."""
        own = self.attention
        x, lengths = without_padding(x, lengths), filled_lengths(lengths, x)
        q, k, v = (self._split_heads(project(x)) for project in (own.q_proj, own.k_proj, own.v_proj))
        gates_BHN2 = own.gru_rel_pos_linear(self._split_heads(x)).unflatten(-1, (2, -1)).sum(-1).sigmoid()
        update_BHN1, reset_BHN1 = gates_BHN2.chunk(2, dim=-1)
        gate_BHN1 = update_BHN1 * (reset_BHN1 * own.gru_rel_pos_const - 1) + 2
        bias_BHNN = gate_BHN1 * (self.distance_bias(x.shape[1]) if bias is None else bias)
        keep_BN = keep_mask(lengths.clamp(min=1), x.shape[1])  # a softmax over no key is NaN
        scores_BHNN = (q @ k.mT) * q.shape[-1] ** -0.5 + bias_BHNN
        weights_BHNN = scores_BHNN.masked_fill(~keep_BN[:, None, None], -torch.inf).softmax(-1)
        mixed = nn.functional.dropout(weights_BHNN, self.dropout, self.training).to(v.dtype) @ v
        return zero_padding(own.out_proj(mixed.transpose(1, 2).flatten(2)), lengths)

    def distance_bias(self, positions: int) -> Tensor:
        """Return the learned bias of every pair, [H, N, N]; only the first layer of a model has it."""
        bias_HNN: Tensor = self.attention.compute_bias(positions, positions)
        return bias_HNN

    def _split_heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)
