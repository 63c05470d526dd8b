"""Recipes: one folder per corpus; data preparation only."""
