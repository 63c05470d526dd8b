"""Data prepared by lhotse: manifests of cuts, or of recordings and supervisions."""
