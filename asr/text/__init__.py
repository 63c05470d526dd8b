"""Lexicons and tokenizers."""
