"""Backends: plain PyTorch or compiled kernels for the same operators, and reasons why one can't run."""

import importlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

import attention_ext
from asr.config.names import BACKENDS
from asr.errors import UserError

DEVICES = ("cpu", "cuda")
MOST_CLUSTERS = 1_024  # limit of the compiled kernels
MOST_KEYS_CUDA = 1_024  # maximum of topk: the CUDA search keeps a cluster's chosen keys in shared memory
LARGEST_HEAD_CUDA = 256  # maximum size of queries, keys and values; CPU kernels take heads of any size
NOT_COMPILED = dict.fromkeys(DEVICES, "this mechanism has no compiled kernels")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Operators:
    """The operators of `attention_ext` for one backend; both backends take the same arguments."""

    hash_sign: Callable[..., Tensor]
    subtract_mean: Callable[..., Tensor]
    hamming_kmeans: Callable[..., Tensor]
    key_groups: Callable[..., Tensor]
    clustered_attention: Callable[..., Tensor]
    improved_clustered_attention: Callable[..., Tensor]
    lsh_buckets: Callable[..., Tensor]
    lsh_attention: Callable[..., Tensor]
    local_attention: Callable[..., Tensor]
    near_attention: Callable[..., Tensor]


def load_operators(backend: str) -> Operators:
    """Return the functions in `attention_ext/*/reference.py` or `attention_ext/*/native.py`."""

    def load(folder: str, function: str) -> Callable[..., Tensor]:
        return getattr(importlib.import_module(f"attention_ext.{folder}.{backend}"), function)

    return Operators(
        hash_sign=load("hashing", "hash_sign"),
        subtract_mean=load("hashing", "subtract_mean"),
        hamming_kmeans=load("kmeans", "hamming_kmeans"),
        key_groups=load("key_grouping", "key_groups"),
        clustered_attention=load("clustered_attention", "clustered_attention"),
        improved_clustered_attention=load("improved_clustered_attention", "improved_clustered_attention"),
        lsh_buckets=load("lsh_attention", "lsh_buckets"),
        lsh_attention=load("lsh_attention", "lsh_attention"),
        local_attention=load("local_attention", "local_attention"),
        near_attention=load("near_attention", "near_attention"),
    )


def why_no_kernels(clusters: int, keys: int = 0) -> dict[str, str | None]:
    """Return the reason why the compiled kernels can't run, by device type; None if they can.

    Args:
        clusters: C.
        keys: K of improved clustered and near attention.
    """
    if clusters > MOST_CLUSTERS:
        return dict.fromkeys(DEVICES, f"the compiled kernels support at most {MOST_CLUSTERS} clusters")
    reasons = {device: attention_ext.why_unavailable(device) for device in DEVICES}
    if keys > MOST_KEYS_CUDA:
        reasons["cuda"] = f"the CUDA kernels support topk of at most {MOST_KEYS_CUDA}"
    return reasons


def why_no_type(device_type: str, dtype: torch.dtype) -> str | None:
    """Return the reason why the compiled kernels of a device can't compute in a dtype; None if they can."""
    if device_type == "cuda" and dtype == torch.float64:
        return "the CUDA kernels don't compute in float64"
    return None


def why_no_heads(device_type: str, head_dim: int, dtype: torch.dtype) -> str | None:
    """Return the reason why the compiled kernels of clustered and near attention can't take heads, or None.

    Args:
        device_type: type of the device.
        head_dim: size of queries and keys, or of values if that is larger.
        dtype: type of queries, keys and values.
    """
    if device_type == "cuda" and head_dim > LARGEST_HEAD_CUDA:
        return f"the CUDA kernels attend with heads of at most {LARGEST_HEAD_CUDA}, found {head_dim}"
    return why_no_type(device_type, dtype)


class BackendChoice:
    """The choice of a backend for each device.

    Args:
        requested: `auto` (native if it can run), `reference` or `native`.
        mechanism: name of the mechanism, for messages.
        reasons: reason why native can't run, by device type; None if it can.

    Raises:
        UserError: an unknown backend; or `native`, although it can't run on any device, with the reasons.
    """

    def __init__(self, requested: str, mechanism: str, reasons: Mapping[str, str | None]) -> None:
        if requested not in BACKENDS:
            raise UserError(f"unknown backend {requested!r}: expected {' | '.join(BACKENDS)}")
        self.requested, self.mechanism, self.reasons = requested, mechanism, reasons
        if requested == "native" and all(reasons.values()):
            raise UserError(
                f"backend native can't run {mechanism}: "
                + "; ".join(f"{device}: {reason}" for device, reason in reasons.items())
            )

    def operators(self) -> dict[str, Operators]:
        """Return the operators of each backend that `on` may return."""
        backends = ["reference"]
        if self.requested != "reference" and not all(self.reasons.values()):
            backends.append("native")
        return {backend: load_operators(backend) for backend in backends}

    def on(self, device_type: str, unfit: str | None = None) -> str:
        """Return `reference` or `native` for tensors on a type of device, e.g. `cuda`.

        Args:
            device_type: type of the device.
            unfit: reason why native can't run on tensors of this size and dtype; None if it can.

        Raises:
            UserError: `native` was requested and can't run there.
        """
        if self.requested == "reference":
            return "reference"
        reason = self.reasons.get(device_type, f"no kernels for {device_type} devices") or unfit
        if reason is not None and self.requested == "native":
            raise UserError(f"backend native can't run {self.mechanism} on {device_type}: {reason}")
        if self.requested == "auto" and not torch.compiler.is_compiling():
            _log_once(self.mechanism, device_type, reason)
        return "native" if reason is None else "reference"


@cache
def _log_once(mechanism: str, device: str, reason: str | None) -> None:
    choice = "native" if reason is None else f"reference ({reason})"
    log.info("attention %s on %s: backend auto chose %s", mechanism, device, choice)
