"""Sign-random-projection hashing: vectors to at most 63 bits in one int64."""
