"""Local attention: a window of neighbours and a few global positions."""

from dataclasses import dataclass

from torch import Tensor

import attention_ext
from asr.attention.softmax import SoftmaxMechanism, filled_lengths
from asr.attention.spec import COUNT
from asr.config import option
from attention_ext.library import lacks
from attention_ext.local_attention.reference import local_weights


@dataclass
class LocalOptions:
    """Window W, neighbours on the right R, chunks C and global positions G."""

    window: int = option(
        64,
        help="neighbours on each side, W; with right=, on the left",
        affects="result",
        letter="W",
        maximum=COUNT,
    )
    right: int | None = option(
        None,
        help="neighbours after a query or its chunk; null: as many as on the left",
        affects="result",
        maximum=COUNT,
    )
    chunk: int = option(
        1,
        help="positions in a chunk, counted from the first position; all of them see the same keys",
        affects="result",
        minimum=1,
        maximum=COUNT,
    )
    global_: int = option(
        0, help="initial positions, which see all and are seen by all", affects="result", maximum=COUNT
    )

    def __post_init__(self) -> None:
        """Fill in the neighbours on the right."""
        if self.right is None:
            self.right = self.window


class LocalAttention(SoftmaxMechanism):
    """Attention to a window of neighbours and a few global positions.

    Query i, in the chunk of positions c … c + C − 1, sees key j if c − W ≤ j < c + C + R, j < G or i < G.
    With chunks of one position, the default, the window is i − W ≤ j ≤ i + R. This is *Longformer* (Beltagy
    et al. 2020) §3.1, with a single set of projections, so that it is exchangeable, and with chunks that have
    left and right context as in *ChunkFormer* (Le et al. 2025). On CUDA, native is PyTorch's flash or fused
    attention.

    Args:
        name, backend, dropout: see `SoftmaxMechanism`.
        options: W, R, C and G. With R = 0 and chunks of one position, it is causal.
    """

    options = LocalOptions
    source = (
        "[Beltagy et al. 2020, Longformer](https://arxiv.org/abs/2004.05150); "
        "[Le et al. 2025, ChunkFormer](https://arxiv.org/abs/2502.14673)"
    )
    time, memory = "N·(W + right + chunk + global)", "N·(W + right + chunk + global) (native: N)"
    cross_attention = False  # distances are between positions of one sequence

    def __init__(self, name: str, backend: str, dropout: float, options: LocalOptions) -> None:
        reasons = {"cpu": why_no_local_kernels(), "cuda": None}
        super().__init__(name, backend, dropout, why_not_native=reasons)
        self.window, self.right = options.window, options.right or 0
        self.chunk, self.first = options.chunk, options.global_
        self.operators = self.backend.operators()

    @classmethod
    def is_causal(cls, options: LocalOptions) -> bool:
        """Return whether no position sees a later one."""
        return not options.right and options.chunk == 1 and not options.global_

    @classmethod
    def latest_seen(cls, options: LocalOptions, position: int) -> int | None:
        """See `Description`; global positions see the whole utterance, and pass it on."""
        if options.global_:
            return None
        return position - position % options.chunk + options.chunk - 1 + (options.right or 0)

    @classmethod
    def period(cls, options: LocalOptions) -> int:
        """See `Description`."""
        return options.chunk

    def sizes(self) -> dict[str, int]:
        """Return the sizes of windows as arguments of the operators."""
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
        """See `QueryKeyMechanism`; the CPU kernels take the addend directly."""
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
