"""Lloyd's K-means in Hamming space: groups hashes into clusters."""
