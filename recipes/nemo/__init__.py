"""NeMo's manifests."""
