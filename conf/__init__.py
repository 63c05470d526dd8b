"""Configurations: data only."""
