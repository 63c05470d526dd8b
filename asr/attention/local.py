"""Local attention: a window of neighbours and a few global positions."""

from collections.abc import Mapping

from torch import Tensor

import attention_ext
from asr.attention.softmax import SoftmaxMechanism, filled_lengths
from asr.attention.spec import Option, Schema, Value
from attention_ext.library import lacks
from attention_ext.local_attention.reference import local_weights


class LocalAttention(SoftmaxMechanism):
    """Attention to a window of neighbours and a few global positions.

    Query i, in the chunk of positions c … c + C − 1, sees key j if c − W ≤ j < c + C + R, j < G or i < G:
    *Longformer* (Beltagy et al. 2020) §3.1, with one set of projections, so that it is exchangeable, and
    chunks with left and right context as in *ChunkFormer* (Le et al. 2025). With chunks of one position,
    the default, that is i − W ≤ j ≤ i + R. On CUDA, native is PyTorch's flash or fused attention.

    Args:
        name, backend, dropout: see `SoftmaxMechanism`.
        window: W, neighbours on each side, or before the chunk.
        right: R, neighbours after the query, or after its chunk; 0 and chunks of one position: causal.
        chunk: C, positions of a chunk, counted from the first position.
        global_: G, first positions that see all and are seen by all.
    """

    schema = Schema(
        "W",
        Option("window", 64, range(65_537), "neighbours on each side, W; with right=, on the left"),
        (
            Option("right", 64, range(65_537), "neighbours after a query or its chunk", same="window"),
            Option("chunk", 1, range(1, 65_537), "positions of a chunk, which all see the same keys"),
            Option("global", 0, range(65_537), "first positions, which see all and are seen by all"),
        ),
    )
    source = (
        "[Beltagy et al. 2020, Longformer](https://arxiv.org/abs/2004.05150); "
        "[Le et al. 2025, ChunkFormer](https://arxiv.org/abs/2502.14673)"
    )
    time, memory = "N·(W + right + chunk + global)", "N·(W + right + chunk + global) (native: N)"
    cross_attention = False  # distances are between positions of one sequence

    def __init__(
        self, name: str, backend: str, dropout: float, window: int, right: int, chunk: int, global_: int
    ) -> None:
        reasons = {"cpu": why_no_local_kernels(), "cuda": None}
        super().__init__(name, backend, dropout, why_not_native=reasons)
        self.window, self.right, self.chunk, self.first = window, right, chunk, global_
        self.operators = self.backend.operators()

    @classmethod
    def is_causal(cls, arguments: Mapping[str, Value]) -> bool:
        """Return whether no position sees a later one."""
        return not arguments["right"] and arguments["chunk"] == 1 and not arguments["global"]

    @classmethod
    def latest_seen(cls, arguments: Mapping[str, Value], position: int) -> int | None:
        """See `Description`; global positions pass on what they see of the whole utterance."""
        if arguments["global"]:
            return None
        chunk = int(arguments["chunk"])
        return position - position % chunk + chunk - 1 + int(arguments["right"])

    @classmethod
    def period(cls, arguments: Mapping[str, Value]) -> int:
        """See `Description`."""
        return int(arguments["chunk"])

    def sizes(self) -> dict[str, int]:
        """Return the sizes of windows as the operators' arguments."""
        return {"left": self.window, "right": self.right, "chunk": self.chunk, "first": self.first}

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, query_lengths: Tensor | None, key_lengths: Tensor | None
    ) -> Tensor:
        """See `QueryKeyMechanism`."""
        lengths_B = filled_lengths(query_lengths, q)
        operators = self.operators[self.backend.on(q.device.type)]
        return operators.local_attention(q, k, v, lengths_B, dropout=self.active_dropout, **self.sizes())

    def attend_biased(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        query_lengths: Tensor | None,
        key_lengths: Tensor | None,
        bias_BS: Tensor,
        finite_padding: bool,
    ) -> Tensor:
        """See `QueryKeyMechanism`; the CPU's kernels take the addend as it is."""
        if q.device.type != "cpu" or self.backend.on("cpu") == "reference":
            return super().attend_biased(q, k, v, query_lengths, key_lengths, bias_BS, finite_padding)
        options = {"dropout": self.active_dropout, "bias_BN": bias_BS}
        lengths_B = filled_lengths(query_lengths, q)
        return self.operators["native"].local_attention(q, k, v, lengths_B, **self.sizes(), **options)

    def dense(self, q: Tensor, k: Tensor, query_lengths: Tensor, key_lengths: Tensor) -> Tensor:
        """See `QueryKeyMechanism`."""
        return local_weights(q, k, key_lengths, **self.sizes())


def why_no_local_kernels() -> str | None:
    """Return the reason why the compiled CPU kernels can't run; None if they can."""
    if lacks("local_attention", "bias"):
        return "the kernels were built before keys had addends: install the package again"
    return attention_ext.why_unavailable("cpu")
