"""Causal language models of characters or word pieces, *Agglomerative Attention*."""
