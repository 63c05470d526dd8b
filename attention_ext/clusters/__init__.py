"""What clustered and improved clustered attention share: centroids, and their attention over all keys."""
