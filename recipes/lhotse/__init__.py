"""Manifests of lhotse."""
