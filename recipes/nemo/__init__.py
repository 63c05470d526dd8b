"""NeMo manifests."""
