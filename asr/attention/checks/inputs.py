"""Small mechanisms and layers, and batches of mixed lengths padded with NaN, for checks and tests."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from asr.attention.layer import SelfAttentionLayer
from asr.attention.multihead import build_self_attention, shared_keys
from asr.attention.softmax import QueryKeyMechanism
from asr.attention.spec import Option, Schema, Value, write_value
from asr.attention.table import build_mechanism, mechanism_class, parse_name
from asr.lengths import keep_mask

# Empty, 1, around 4 and 5 (small numbers of clusters and keys), primes, and more than two LSH chunks.
LENGTHS = torch.tensor([31, 0, 1, 3, 4, 4, 5, 6, 13, 8, 9, 31])
SMALL = 4  # larger numbers become the smallest allowed one of at least this


def inputs(
    mechanism: QueryKeyMechanism,
    lengths: Tensor = LENGTHS,
    size: int = 31,
    dtype: torch.dtype = torch.float64,
    poison: float = float("nan"),
    seed: int = 0,
    scale: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return q and k [B, 2, N, 6] and v [B, 2, N, 7] with `poison` as padding."""
    generator = torch.Generator().manual_seed(seed)
    shape = (len(lengths), 2, size)
    q, k, v = (torch.randn(*shape, d, generator=generator, dtype=torch.float64) for d in (6, 6, 7))
    q = q * scale
    if mechanism.needs_shared_keys:
        k = shared_keys(q)
    padding = (torch.arange(size) >= lengths.unsqueeze(1))[:, None, :, None]
    q, k, v = (x.masked_fill(padding, poison).to(dtype) for x in (q, k, v))
    return q, k, v


def layer_input(model_dim: int = 12, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return a batch for `LENGTHS`, [B, 31, M], with NaN as padding."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(len(LENGTHS), 31, model_dim, generator=generator, dtype=dtype)
    return x.masked_fill(~keep_mask(LENGTHS, 31).unsqueeze(-1), float("nan"))


def build(name: str, **options: Any) -> QueryKeyMechanism:
    """Return a mechanism in evaluation mode, on the reference backend by default."""
    return build_mechanism(name, **{"backend": "reference", **options}).eval()


def build_layer(name: str, model_dim: int = 12, **options: Any) -> SelfAttentionLayer:
    """Return a layer with two heads in evaluation mode, with the same weights in each call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build_self_attention(name, model_dim, 2, **{"backend": "reference", **options}).eval()


def small_names(mechanism: str) -> list[str]:
    """Return a name with small numbers, and a further one for every other value of each option.

    Numbers take one other value: 2, or the smallest allowed one.

    Example:
        >>> small_names("near")[:2], small_names("linear")
        (['near-4:topk=4,window=4', 'near-4:topk=2,window=4'], ['linear', 'linear:causal=true'])
    """
    schema = mechanism_class(mechanism).schema
    head = f"{mechanism}-{_small(schema.size)}" if schema.size else mechanism
    names = [_name(head, schema, {})]
    for option in schema.options:
        case = dict([option.only]) if option.only else {}
        names += [_name(head, schema, {**case, option.name: value}) for value in _others(option)]
    return list(dict.fromkeys(names))


def _name(head: str, schema: Schema, chosen: Mapping[str, Value]) -> str:
    values: dict[str, Value] = {}
    for option in schema.options:
        if option.only is None or values.get(option.only[0]) == option.only[1]:
            if option.same and option.name not in chosen:
                continue
            values[option.name] = chosen.get(option.name, _small(option))
    text = ",".join(f"{name}={write_value(value)}" for name, value in values.items())
    return parse_name(f"{head}:{text}" if text else head).name


def _small(option: Option) -> Value:
    allowed, default = option.allowed, option.default
    if isinstance(allowed, range) and isinstance(default, int) and default > SMALL:
        return next((value for value in allowed if value >= SMALL), default)
    return default


def _others(option: Option) -> list[Value]:
    if isinstance(option.allowed, range):
        return [2 if 2 in option.allowed else option.allowed[0]]
    return [value for value in option.allowed if value != option.default]
