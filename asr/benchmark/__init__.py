"""Benchmarks of attention mechanisms."""
