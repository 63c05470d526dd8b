"""Recorded telephone prompts: one professional speaker."""
