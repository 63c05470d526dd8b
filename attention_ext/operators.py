"""Registers the compiled operators with PyTorch: output shapes for tracing, derivatives for autograd."""

from attention_ext.clustered_attention import native as clustered_attention
from attention_ext.hashing import native as hashing
from attention_ext.improved_clustered_attention import native as improved_clustered_attention
from attention_ext.key_grouping import native as key_grouping
from attention_ext.kmeans import native as kmeans
from attention_ext.library import lacks
from attention_ext.local_attention import native as local_attention
from attention_ext.lsh_attention import native as lsh_attention
from attention_ext.near_attention import native as near_attention

OPERATORS = (
    hashing.HASH,
    hashing.MEAN,
    kmeans.OPERATOR,
    key_grouping.OPERATOR,
    clustered_attention.OPERATOR,
    improved_clustered_attention.OPERATOR,
    lsh_attention.BUCKETS,
    lsh_attention.OPERATOR,
    local_attention.OPERATOR,
    near_attention.OPERATOR,
)


def register() -> None:
    """Register every operator that is not registered yet; the CPU library must be loaded."""
    for operator in OPERATORS:
        if not lacks(operator.name):  # in an older library, the other kernels still work
            operator.register()
