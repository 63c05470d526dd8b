"""Multi-head self-attention: projections and rotary positions around a mechanism."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from asr.attention.layer import FrameRate, OwnParameterLayer, SelfAttentionLayer
from asr.attention.products import Linear, is_plain, linear
from asr.attention.softmax import QueryKeyMechanism, SoftmaxMechanism, without_padding
from asr.attention.table import build_mechanism, mechanism_class, parse_name
from asr.errors import UserError
from asr.lengths import zero_padding

ROTARY_BASE = 10_000.0


class SelfAttention(SelfAttentionLayer):
    """Multi-head projections around a mechanism without its own parameters.

    A layer for a mechanism with shared keys has no key projection: K = √D · Q/‖Q‖, so that q·k/√D is the
    product of a query with a unit-length query, as in Reformer.

    Args:
        mechanism: mechanism; its `needs_shared_keys` determines whether there is a key projection.
        model_dim: M.
        heads: H.
        head_dim: D.
        rotary_base: base of the angles by which positions rotate queries and keys, whose size D is even;
            None: no rotation.
        bias: whether the projections have biases.

    Attributes:
        finite_padding: whether padded positions are finite and the output there is ignored; then neither is
            zeroed.
    """

    finite_padding = False
    takes_rate = True

    def __init__(
        self,
        mechanism: QueryKeyMechanism,
        model_dim: int,
        heads: int,
        head_dim: int,
        rotary_base: float | None = None,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if rotary_base is not None and head_dim % 2:
            raise UserError(f"rotary positions need an even head_dim, found {head_dim}")
        self.heads, self.rotary_base = heads, rotary_base
        size = heads * head_dim
        self.query: nn.Linear = Linear(model_dim, size, bias=bias)
        self.key: nn.Linear | None = (
            None if mechanism.needs_shared_keys else Linear(model_dim, size, bias=bias)
        )
        self.value: nn.Linear = Linear(model_dim, size, bias=bias)
        self.output: nn.Linear = Linear(size, model_dim, bias=bias)
        self.mechanism = mechanism

    @property
    def name(self) -> str:  # type: ignore[override]
        """Canonical name of the mechanism."""
        return self.mechanism.name

    def forward(self, x: Tensor, lengths: Tensor | None = None, rate: FrameRate | None = None) -> Tensor:
        """Attend: [B, N, M] with [B] lengths, at the encoder's rate or at `rate`, to [B, N, M]."""
        if not self.finite_padding:
            # The mechanism protects the output; this protects the gradients of the projections.
            x = without_padding(x, lengths)
        factor, bias_BN, places_BN = rate or FrameRate(1, None)
        q, k, v = self.project(x, factor, places_BN)
        mixed = self.mechanism(q, k, v, lengths, finite_padding=True, bias_BS=bias_BN)
        y = self.output(mixed.transpose(1, 2).flatten(2))
        return y if lengths is None or self.finite_padding else zero_padding(y, lengths)

    def project(
        self, x: Tensor, distance: int = 1, places_BN: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values of x [B, N, M], [B, H, N, D] each; for the rest, see `rotate`."""
        layers = [layer for layer in (self.query, self.key, self.value) if layer is not None]
        q, *keys, v = map(self._split_heads, _projected(x, layers))
        if self.rotary_base is not None:
            q, *keys = (rotate(x, self.rotary_base, distance, places_BN) for x in (q, *keys))
        return q, keys[0] if keys else shared_keys(q), v

    def set_mechanism(self, name: str, backend: str | None = None) -> None:
        """Exchange the mechanism and keep the weights."""
        backend = backend or self.mechanism.backend.requested
        mechanism = build_mechanism(name, backend=backend, dropout=self.mechanism.dropout)
        both = isinstance(mechanism, SoftmaxMechanism) and isinstance(self.mechanism, SoftmaxMechanism)
        if mechanism.name != self.name and not both:
            raise UserError(
                f"attention {self.name!r} can't be exchanged for {name!r}: only mechanisms of the softmax "
                "family are exchangeable; train a model with it"
            )
        if mechanism.needs_shared_keys and self.key is not None:
            raise UserError(
                f"attention {name!r} needs keys tied to the queries, but this layer ({self.name!r}) has a "
                "key projection: train a model with shared-full or lsh"
            )
        device = self.output.weight.device
        self.mechanism = mechanism.to(device).train(self.training)

    def backend_on(self, device_type: str) -> str:
        """Return the mechanism's backend on a device."""
        head_dim = self.query.out_features // self.heads
        return self.mechanism.backend_on(device_type, head_dim, self.query.weight.dtype)

    def weights(self, name: str, x: Tensor, rate: FrameRate | None = None, **bias: Tensor) -> Tensor:
        """Return the dense attention weights of a mechanism, [B, H, N, N]."""
        q, k, _ = self.project(x, rate.factor if rate else 1)
        if name == self.name:  # with the layer's hash planes
            return self.mechanism.weights(q, k)
        return build_mechanism(name, self.mechanism.backend.requested).to(x.device).eval().weights(q, k)

    def _split_heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


def _projected(x: Tensor, layers: Sequence[nn.Linear]) -> list[Tensor]:
    """Return the output of each layer for x [B, N, M], [B, N, H·D]."""
    if x.device.type != "cpu" or not all(map(is_plain, layers)):
        return [layer(x) for layer in layers]
    # A single product takes 7 to 25 % less time than several, which read x repeatedly and add its gradients.
    return list(linear(x, layers).chunk(len(layers), dim=-1))


def shared_keys(q_BHND: Tensor) -> Tensor:
    """Return the keys √D · q/‖q‖; a zero query has a zero key."""
    wide_BHND = q_BHND.to(torch.promote_types(q_BHND.dtype, torch.float32))
    square_BHN1 = wide_BHND.square().sum(-1, keepdim=True)
    # Zeros are replaced before the root, whose derivative at zero is infinite.
    norm_BHN1 = square_BHN1.masked_fill(square_BHN1 == 0, 1.0).sqrt()
    return (q_BHND.shape[-1] ** 0.5 * wide_BHND / norm_BHN1).to(q_BHND.dtype)


def rotate(
    x_BHND: Tensor, base: float = ROTARY_BASE, distance: int = 1, places_BN: Tensor | None = None
) -> Tensor:
    """Rotate the pair (x_d, x_{d+D/2}) at position n by the angle n · distance · base^(−2d/D).

    *RoFormer* eq. 34, with the halves paired as in GPT-NeoX. Norms are preserved; the product of a rotated
    query and key depends on positions only through their difference.

    Args:
        x_BHND: queries or keys, D even.
        base: base of the angles, 1 or more; the slowest pair turns once in about 2π · base positions.
        distance: distance between neighbours.
        places_BN: positions in place of n · distance.

    Returns:
        [B, H, N, D] in the same dtype.
    """
    N, D = x_BHND.shape[2:]
    dtype = torch.promote_types(x_BHND.dtype, torch.float32)
    rate_D2 = base ** (-2.0 * torch.arange(D // 2, device=x_BHND.device, dtype=dtype) / D)
    place_N = distance * torch.arange(N, device=x_BHND.device, dtype=dtype)
    place = place_N if places_BN is None else places_BN.to(dtype).unsqueeze(1)
    angle = place.unsqueeze(-1) * rate_D2
    cos, sin = angle.cos(), angle.sin()
    first, second = x_BHND.to(dtype).chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1).to(x_BHND.dtype)


def build_self_attention(
    name: str,
    model_dim: int,
    heads: int,
    head_dim: int | None = None,
    dropout: float = 0.0,
    backend: str = "auto",
    rotary_base: float | None = None,
    bias: bool = True,
) -> SelfAttentionLayer:
    """Build a self-attention layer for any mechanism.

    Args:
        name: e.g. `full`, `i-clustered-100`, `cast-8`, `agglomerative-8:causal=true`.
        model_dim: M.
        heads: H.
        head_dim: D; None means M / H.
        dropout: dropout probability on the attention weights.
        backend: `auto`, `reference` or `native`.
        rotary_base: base of rotary positions, usually 10,000 (softmax family only); None: no positions.
        bias: whether the projections have biases; mechanisms with their own parameters follow their papers.

    Returns:
        A module `layer(x, lengths)`: [B, N, M] and [B] to [B, N, M].

    Raises:
        UserError: an invalid name, option or backend (see `build_mechanism`), or sizes that don't fit.
    """
    if head_dim is None:
        if model_dim % heads:
            raise UserError(f"model_dim={model_dim} is not a multiple of heads={heads}: set head_dim")
        head_dim = model_dim // heads
    spec = parse_name(name)
    build = mechanism_class(spec.mechanism)
    if rotary_base is not None and not issubclass(build, SoftmaxMechanism):
        raise UserError(f"attention {name!r} has no rotary positions: only the softmax family supports them")
    if not issubclass(build, OwnParameterLayer):
        mechanism = build_mechanism(name, backend=backend, dropout=dropout)
        return SelfAttention(mechanism, model_dim, heads, head_dim, rotary_base, bias)
    sizes = {"model_dim": model_dim, "heads": heads, "head_dim": head_dim}
    arguments: dict[str, Any] = {"dropout": dropout, **sizes, **spec.keywords()}
    return build(name=spec.name, backend=backend, **arguments)
