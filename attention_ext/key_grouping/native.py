"""K-means of queries in the metric of the keys: the reference, as long as there is no compiled kernel."""

from attention_ext.key_grouping.reference import key_groups

__all__ = ["key_groups"]
