"""Small mechanisms and layers, and batches of mixed lengths padded with NaN, for checks and tests."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from asr.attention.layer import SelfAttentionLayer
from asr.attention.multihead import build_self_attention, shared_keys
from asr.attention.softmax import QueryKeyMechanism
from asr.attention.spec import effective, number
from asr.attention.table import build_mechanism, mechanism_class, parse_name
from asr.config.schema import Setting, accepted, default_of, settings, written
from asr.lengths import keep_mask

# 0, 1, around 4 and 5 (the small numbers of clusters and keys), primes, and more than two LSH chunks.
LENGTHS = torch.tensor([31, 0, 1, 3, 4, 4, 5, 6, 13, 8, 9, 31])
SMALL = 4  # larger numbers are replaced by the smallest allowed one that is at least this


def inputs(
    mechanism: QueryKeyMechanism,
    lengths: Tensor = LENGTHS,
    size: int = 31,
    dtype: torch.dtype = torch.float64,
    poison: float = float("nan"),
    scale: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return q and k [B, 2, N, 6] and v [B, 2, N, 7] with `poison` as padding."""
    generator = torch.Generator().manual_seed(0)
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
    """Return a name with small numbers, and further names with every other value of each option.

    Numbers have one other value: 2, or the smallest allowed one.

    Example:
        >>> small_names("near")[:2], small_names("linear")
        (['near-4:topk=4,window=4', 'near-4:topk=2,window=4'], ['linear', 'linear:causal=true'])
    """
    schema = mechanism_class(mechanism).options
    size = number(schema)
    head = f"{mechanism}-{_small(size)}" if size else mechanism
    names = [_name(head, {})]
    for x in settings(schema()):
        if not x.letter:
            case = {only.option: only.values[0] for only, _ in x.conditions}
            names += [_name(head, {**case, x.key: value}) for value in _others(x)]
    return list(dict.fromkeys(names))


def _name(head: str, chosen: Mapping[str, Any]) -> str:
    """Return a name with the chosen values, and small ones for other options that then have an effect."""
    given = {key: written(value) for key, value in chosen.items()}
    options = parse_name(_with_options(head, given)).options
    for x in effective(options):
        # A default that follows another option's value is kept.
        if not x.letter and default_of(x.field) is not None:
            given.setdefault(x.key, written(_small(x)))
    return parse_name(_with_options(head, given)).name


def _with_options(head: str, given: Mapping[str, str]) -> str:
    text = ",".join(f"{key}={value}" for key, value in given.items())
    return f"{head}:{text}" if text else head


def _small(setting: Setting) -> Any:
    if setting.kind is int and setting.value > SMALL:
        return next(x for x in range(SMALL, setting.value + 1) if not accepted(setting.field).expected(x))
    return setting.value


def _others(setting: Setting) -> list[Any]:
    allowed = accepted(setting.field)
    if allowed.choices or setting.kind is bool:
        return [x for x in allowed.choices or (False, True) if x != setting.value]
    return [2 if not allowed.expected(2) else int(allowed.minimum)]
