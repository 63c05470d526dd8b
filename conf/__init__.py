"""Hydra configuration: data only."""
