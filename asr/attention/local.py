"""Local attention: a window of neighbours and a few global positions."""

from collections.abc import Mapping

from torch import Tensor

import attention_ext
from asr.attention.softmax import SoftmaxMechanism, filled_lengths
from asr.attention.spec import Option, Schema, Value
from attention_ext.local_attention.reference import local_weights


class LocalAttention(SoftmaxMechanism):
    """Query i sees key j if |i − j| ≤ W, j < G or i < G.

    *Longformer* (Beltagy et al. 2020) §3.1, with one set of projections, so that it is exchangeable; see
    `attention_ext.local_attention`. On CUDA, native is PyTorch's flash or fused attention.

    Args:
        name, backend, dropout: see `SoftmaxMechanism`.
        window: W, neighbours on each side.
        global_: G, first positions that see all and are seen by all.
    """

    schema = Schema(
        "W",
        Option("window", 64, range(65_537), "neighbours on each side, W"),
        (Option("global", 0, range(65_537), "first positions that see all and are seen by all"),),
    )
    source = "Beltagy et al. 2020, Longformer"
    time, memory = "N·(W + global)", "N·(W + global) (native: N)"
    cross_attention = False  # distances are between positions of one sequence

    def __init__(self, name: str, backend: str, dropout: float, window: int, global_: int) -> None:
        reasons = {"cpu": attention_ext.why_unavailable("cpu"), "cuda": None}
        super().__init__(name, backend, dropout, why_not_native=reasons)
        self.window, self.first = window, global_
        self.operators = self.backend.operators()

    @classmethod
    def is_causal(cls, arguments: Mapping[str, Value]) -> bool:
        """Return whether each position sees itself alone."""
        return not arguments["window"] and not arguments["global"]

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, query_lengths: Tensor | None, key_lengths: Tensor | None
    ) -> Tensor:
        """See `QueryKeyMechanism`."""
        lengths_B = filled_lengths(query_lengths, q)
        operators = self.operators[self.backend.on(q.device.type)]
        return operators.local_attention(
            q, k, v, lengths_B, window=self.window, first=self.first, dropout=self.active_dropout
        )

    def dense(self, q: Tensor, k: Tensor, query_lengths: Tensor, key_lengths: Tensor) -> Tensor:
        """See `QueryKeyMechanism`."""
        return local_weights(q, k, key_lengths, self.window, self.first)
