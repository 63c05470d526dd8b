"""The language model of *Agglomerative Attention*: a universal transformer without adaptive computation."""

import torch
from torch import Tensor, nn

from asr.attention.products import Conv1d, Linear
from asr.attention.table import is_causal
from asr.errors import UserError
from asr.model.attention_model import AttentionModel
from asr.model.blocks import Block
from asr.model.options import ModelConfig

INITIAL = 0.05  # embeddings are drawn from ±0.05, Keras's default


def require_causal(attention: str) -> None:
    """Raise UserError if a mechanism lets positions see later ones."""
    if not is_causal(attention):
        raise UserError(
            f"attention={attention}: expected a causal mechanism, e.g. full:causal=true, "
            "agglomerative-8:causal=true, linear:causal=true or local-64:right=0"
        )


class CausalConvolution(nn.Module):
    """ReLU of a convolution over the last `kernel` positions.

    Args:
        size: M.
        kernel: number of positions that an output depends on, including its own.
    """

    def __init__(self, size: int, kernel: int) -> None:
        super().__init__()
        self.kernel = kernel
        self.convolution = Conv1d(size, size, kernel)
        # As in the author's program: PyTorch's random biases would drown the small token embeddings.
        nn.init.kaiming_uniform_(self.convolution.weight, nonlinearity="relu")
        nn.init.zeros_(self.convolution.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, N, M] to [B, N, M]."""
        before = nn.functional.pad(x.transpose(1, 2), (self.kernel - 1, 0))
        return self.convolution(before).relu().transpose(1, 2)


class LanguageModel(AttentionModel):
    """Predicts each token of a sequence from the preceding ones.

    Spellings 2019, section *Language Modeling Accuracy*: one transformer block is applied `config.layers`
    times (*Universal Transformers*, Dehghani et al. 2018). Learned embeddings of position and depth are added
    before each application, or a causal convolution precedes the first, or both. Logits are E·(Wx + b), where
    E are the token embeddings. Adaptive computation time is left out: every position passes through all
    applications. recipes/language/README.md compares this with the author's program.

    Args:
        config: sizes of the block, and the number of its applications.
        vocabulary: number of symbols V.
        length: maximum length of a sequence.
        encoding: `embedding`, `convolution` or `both`.
        kernel: kernel size of the convolution.
        attention: attention mechanism.
        backend: `auto`, `reference` or `native`.
    """

    def __init__(
        self,
        config: ModelConfig,
        vocabulary: int,
        length: int,
        encoding: str,
        kernel: int,
        attention: str,
        backend: str,
    ) -> None:
        super().__init__()
        require_causal(attention)
        self.config = config
        self.tokens = nn.Embedding(vocabulary, config.size)
        self.positions = self.depths = self.convolution = None
        if encoding != "convolution":
            self.positions = nn.Parameter(torch.empty(length, config.size))
            self.depths = nn.Parameter(torch.empty(config.layers, config.size))
        if encoding != "embedding":
            self.convolution = CausalConvolution(config.size, kernel)
        self.block = Block(config, attention, backend)
        self.projection = Linear(config.size, config.size)
        for table in (self.tokens.weight, self.positions, self.depths):
            if table is not None:
                nn.init.uniform_(table, -INITIAL, INITIAL)

    def set_attention(self, name: str, backend: str | None = None) -> None:
        """See `AttentionModel.set_attention`; raises UserError for a mechanism that sees later tokens."""
        require_causal(name)
        super().set_attention(name, backend)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens [B, N] to logits of the tokens that follow [B, N, V]."""
        x = self.tokens(tokens)
        if self.convolution is not None:
            # Only once: if repeated before each application, as in the author's program, the model predicts
            # no better than character frequencies for a hundred steps, without adaptive computation time.
            x = self.convolution(x)
        for depth in range(self.config.layers):
            if self.positions is not None and self.depths is not None:
                x = x + self.positions[: x.shape[1]] + self.depths[depth]
            x = self.block(x, None)  # all positions are valid
        return self.projection(x) @ self.tokens.weight.mT
