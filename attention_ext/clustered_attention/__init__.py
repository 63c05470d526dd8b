"""Clustered attention: one attention row per cluster of queries."""
