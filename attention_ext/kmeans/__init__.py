"""Lloyd's K-means in Hamming space: hashes to cluster indices."""
