"""Attention mechanisms, exchangeable by name, for any PyTorch model.

A `torch.nn.TransformerEncoderLayer` with another attention:

>>> import torch
>>> class Block(torch.nn.TransformerEncoderLayer):
...     def __init__(self, attention: str, d_model: int, nhead: int) -> None:
...         super().__init__(d_model, nhead, batch_first=True)
...         self.self_attn = build_self_attention(attention, d_model, nhead)
...     def forward(self, x, lengths):
...         x = self.norm1(x + self.dropout1(self.self_attn(x, lengths)))
...         return self.norm2(x + self._ff_block(x))
>>> block = Block("full", 64, 4).eval()
>>> x, lengths = torch.randn(2, 300, 64), torch.tensor([300, 120])
>>> y = block(x, lengths)
>>> block.self_attn.set_mechanism("i-clustered-25")   # the same weights, another mechanism
>>> block(x, lengths).shape
torch.Size([2, 300, 64])

The mechanism alone, for a model with its own projections:

>>> attend = build_mechanism("clustered-25")
>>> q, k, v = torch.randn(3, 2, 4, 300, 16)
>>> attend(q, k, v, lengths).shape, attend.clusters(q, lengths).shape
(torch.Size([2, 4, 300, 16]), torch.Size([2, 4, 300]))

A mechanism of your own is a class in any module, derived from `SoftmaxMechanism`, `QueryKeyMechanism` or
`OwnParameterLayer` and named `my_module:MyClass`; `given_name` loads one from a file. For pretrained models
see `asr.attention.transformers_adapter`.
"""

from asr.attention.layer import OwnParameterLayer, SelfAttentionLayer
from asr.attention.multihead import SelfAttention, build_self_attention
from asr.attention.softmax import QueryKeyMechanism, SoftmaxMechanism, both_lengths
from asr.attention.spec import Spec
from asr.attention.table import (
    MECHANISMS,
    build_mechanism,
    default_names,
    given_name,
    mechanism_table,
    parse_name,
)
from asr.config import option

__all__ = [
    "MECHANISMS",
    "OwnParameterLayer",
    "QueryKeyMechanism",
    "SelfAttention",
    "SelfAttentionLayer",
    "SoftmaxMechanism",
    "Spec",
    "both_lengths",
    "build_mechanism",
    "build_self_attention",
    "default_names",
    "given_name",
    "mechanism_table",
    "option",
    "parse_name",
]
