"""Manifests, batches and the data module."""
