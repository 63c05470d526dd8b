"""Losses of the acoustic model."""
