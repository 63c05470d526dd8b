"""Alignment of hypothesis and reference, error rates and their confidence intervals."""
