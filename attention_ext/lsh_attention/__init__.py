"""LSH attention: positions whose vectors share a hash bucket attend to each other."""
