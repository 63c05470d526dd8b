"""Recipes: one folder per corpus, data and configuration only."""
