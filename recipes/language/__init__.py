"""Causal language models of characters or word pieces, on the King James Bible by default."""
