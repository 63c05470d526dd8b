"""Sign-random-projection hashing: maps vectors to at most 63 bits, packed into an int64."""
