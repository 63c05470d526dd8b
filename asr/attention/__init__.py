"""Attention mechanisms, exchangeable by name."""

from asr.attention.layer import SelfAttentionLayer
from asr.attention.multihead import SelfAttention, build_self_attention
from asr.attention.softmax import SoftmaxMechanism
from asr.attention.spec import Spec
from asr.attention.table import MECHANISMS, build_mechanism, mechanism_table, parse_name

__all__ = [
    "MECHANISMS",
    "SelfAttention",
    "SelfAttentionLayer",
    "SoftmaxMechanism",
    "Spec",
    "build_mechanism",
    "build_self_attention",
    "mechanism_table",
    "parse_name",
]
