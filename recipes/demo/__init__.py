"""Embedded corpus of synthetic speech, generated locally."""
