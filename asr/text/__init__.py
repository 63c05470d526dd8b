"""Lexicon and tokenizers."""
