"""Recorded telephone prompts in five languages: one professional speaker each."""
