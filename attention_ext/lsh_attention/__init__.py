"""LSH attention: positions in the same hash bucket attend to each other."""
