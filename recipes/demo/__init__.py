"""Synthetic English speech, generated on your machine."""
