"""lhotse manifests."""
