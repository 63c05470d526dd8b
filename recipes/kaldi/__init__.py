"""Kaldi data directories."""
