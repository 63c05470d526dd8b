"""Comparison of attention mechanisms under one protocol: candidates to trainings, evaluations and results."""
